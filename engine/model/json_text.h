// JSON that comes with a model: parsed whole, with one error that names file and byte.

#ifndef EBB_ENGINE_MODEL_JSON_TEXT_H_
#define EBB_ENGINE_MODEL_JSON_TEXT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ebb {

// DATA_LOSS MODEL_DAMAGED: "FILE: WHERE: expected E, found F"; without `where` "FILE: expected E, found F".
absl::Status DamagedJson(const std::string& file, const std::string& where, const std::string& expected,
                         const std::string& found);

// An object whose names are unique at its top, nested at most 16 deep. `offset` is where `text` begins in the file.
// MODEL_DAMAGED as above, with "byte N" for the place.
absl::StatusOr<nlohmann::json> ParseJsonObject(const std::string& file, std::string_view text, int64_t offset = 0);

// A value on one line, cut after 80 characters.
std::string ShowJson(const nlohmann::json& value);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_JSON_TEXT_H_
