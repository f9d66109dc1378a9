// Files beside a model in which commands of the laboratory keep what they found out about it. JSON:
//
//   {"format": "ebb ...", "version": 1,
//    "model": "9f3c...",                fingerprint of the model it was found out about
//    "source": "...",                   from what, for people
//    ...}                               what the kind of file says of itself

#ifndef EBB_ENGINE_MODEL_FILE_BESIDE_H_
#define EBB_ENGINE_MODEL_FILE_BESIDE_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/architecture.h"

namespace ebb {

// A kind of such files: what they are called, and how they are refused.
struct FileBeside {
  const char* ending = "";  // in the place of the model's, ".heads.json"
  const char* format = "";  // "ebb head gates"
  int version = 1;          // the only one that is read
  // DATA_LOSS naming file, place and what was expected there.
  absl::Status (*damaged)(const std::string& path, const std::string& place, const std::string& expected) = nullptr;
  // FAILED_PRECONDITION naming the file, without its folder, the model it was made for, and this one.
  absl::Status (*foreign)(const std::string& name, const std::string& made_for, const std::string& model) = nullptr;
};

using OrderedJson = nlohmann::ordered_json;

// Without its folder: a server's callers are told no more of where its files lie.
std::string NameOfFile(const std::string& path);

// The object that the file's text is; what lies deeper in it than any kind goes is left out. kind.damaged where it is
// no object.
absl::StatusOr<OrderedJson> ParseBeside(const FileBeside& kind, const std::string& path, const std::string& text);

// kind.damaged where `key` is missing or has another value.
absl::Status CheckKeyBeside(const FileBeside& kind, const std::string& path, const OrderedJson& json, const char* key,
                            const OrderedJson& expected);

// Format, version and model: kind.damaged or kind.foreign where one does not fit. REQUIRES: an object.
absl::Status CheckHeadBeside(const FileBeside& kind, const std::string& path, const OrderedJson& json,
                             const ModelConfig& model);

// What every such file begins with.
OrderedJson HeadBeside(const FileBeside& kind, const ModelConfig& model, const std::string& source);

// UNAVAILABLE when the file cannot be written.
absl::Status WriteBeside(const std::string& path, const OrderedJson& json);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_FILE_BESIDE_H_
