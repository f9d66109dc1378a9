#include "engine/model/file_beside.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {

std::string NameOfFile(const std::string& path) { return std::filesystem::path(path).filename().string(); }

absl::StatusOr<OrderedJson> ParseBeside(const FileBeside& kind, const std::string& path, const std::string& text) {
  constexpr int kDepthMax = 4;
  // To print it, or to forget it, takes stack for each level, and a file may have any number of them.
  const auto is_shallow = [](int depth, OrderedJson::parse_event_t, const OrderedJson&) { return depth <= kDepthMax; };
  OrderedJson json;
  try {
    json = OrderedJson::parse(text, is_shallow);
  } catch (const OrderedJson::parse_error& error) {
    return kind.damaged(path, absl::StrFormat("byte %d", error.byte), "JSON");
  } catch (const OrderedJson::out_of_range&) {
    return kind.damaged(path, "a number", "one that a double can hold");
  }
  if (!json.is_object()) return kind.damaged(path, "byte 1", "an object, found " + json.dump());
  return json;
}

absl::Status CheckKeyBeside(const FileBeside& kind, const std::string& path, const OrderedJson& json, const char* key,
                            const OrderedJson& expected) {
  const auto at = json.find(key);
  if (at == json.end()) return kind.damaged(path, key, absl::StrFormat("%s, found nothing", expected.dump()));
  if (*at == expected) return absl::OkStatus();
  return kind.damaged(path, key, absl::StrFormat("%s, found %s", expected.dump(), at->dump()));
}

absl::Status CheckHeadBeside(const FileBeside& kind, const std::string& path, const OrderedJson& json,
                             const ModelConfig& model) {
  EBB_TRY(CheckKeyBeside(kind, path, json, "format", kind.format));
  EBB_TRY(CheckKeyBeside(kind, path, json, "version", kind.version));
  const OrderedJson found = json.value("model", OrderedJson());
  if (!found.is_string()) return kind.damaged(path, "model", "a model's fingerprint, found " + found.dump());
  if (found == model.fingerprint) return absl::OkStatus();
  return kind.foreign(NameOfFile(path), found.get<std::string>(), model.fingerprint);
}

OrderedJson HeadBeside(const FileBeside& kind, const ModelConfig& model, const std::string& source) {
  return {{"format", kind.format}, {"version", kind.version}, {"model", model.fingerprint}, {"source", source}};
}

absl::Status WriteBeside(const std::string& path, const OrderedJson& json) {
  std::ofstream file(path, std::ios::binary);
  file << json.dump(1) << "\n";
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat("%s: cannot be written", path));
}

}  // namespace ebb
