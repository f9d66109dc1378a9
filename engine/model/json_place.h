// A value of a JSON file and where in the file it is, so that what is wrong with it can be said: "model.merges[3]".

#ifndef EBB_ENGINE_MODEL_JSON_PLACE_H_
#define EBB_ENGINE_MODEL_JSON_PLACE_H_

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ebb {

// A view: file name and value outlive it. What is missing, and what is null, is a place too, of which nothing is asked
// but whether it is there. Errors: DATA_LOSS MODEL_DAMAGED, FAILED_PRECONDITION UNSUPPORTED_TOKENIZER.
class JsonPlace {
 public:
  JsonPlace(const std::string& file, const nlohmann::json& value) : file_(&file), value_(&value) {}

  explicit operator bool() const { return value_ != nullptr && !value_->is_null(); }
  const nlohmann::json& value() const { return *value_; }  // REQUIRES: it is there
  const std::string& path() const { return path_; }

  // Of an object; missing where this is none.
  JsonPlace operator[](std::string_view name) const;
  // Of an array. REQUIRES: there is such an element.
  JsonPlace operator[](size_t index) const;
  // Of an array. MODEL_DAMAGED: it is none. What is missing has no elements.
  absl::StatusOr<std::vector<JsonPlace>> Elements() const;

  // MODEL_DAMAGED: it is missing, or of another kind. With `otherwise` what is missing is that.
  absl::StatusOr<std::string> Text() const;
  absl::StatusOr<std::string> Text(std::string_view otherwise) const;
  absl::StatusOr<bool> Flag(bool otherwise) const;
  absl::StatusOr<int32_t> Id() const;  // from 0

  // MODEL_DAMAGED: this is no object. UNSUPPORTED_TOKENIZER: it has a member of another name, other than null.
  absl::Status HasOnly(std::span<const std::string_view> names) const;

  // "FILE: PATH: expected `expected`, found THE VALUE".
  absl::Status Wrong(const std::string& expected) const;
  // "FILE: PATH: THE VALUE is not known; known: `known`".
  absl::Status NotKnown(const std::string& known) const;

 private:
  std::string Found() const;

  const std::string* file_ = nullptr;
  const nlohmann::json* value_ = nullptr;  // null: missing
  std::string path_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_JSON_PLACE_H_
