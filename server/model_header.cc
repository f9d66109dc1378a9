#include "server/model_header.h"

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "absl/strings/str_cat.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf.h"
#include "engine/model/gguf_header.h"
#include "engine/model/hub_config.h"
#include "engine/model/json_text.h"
#include "engine/model/mapped_folder.h"
#include "engine/model/model_path.h"
#include "policies/status.h"
#include "server/finished_within.h"
#include "server/small_file.h"

namespace ebb {
namespace {

absl::Status CheckFolder(const std::string& path) {
  MappedFolder folder(path);
  const auto file = [&](const char* name) { return absl::StrCat(folder.path(), "/", name); };
  const auto read = [&](const char* name) -> absl::StatusOr<nlohmann::json> {
    EBB_ASSIGN(const std::span<const std::byte> bytes, folder.Read(name));
    return ParseJsonObject(file(name), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  constexpr char kConfig[] = "config.json";
  constexpr char kGeneration[] = "generation_config.json";
  EBB_ASSIGN(const nlohmann::json config, read(kConfig));
  absl::StatusOr<nlohmann::json> generation = read(kGeneration);
  if (absl::IsNotFound(generation.status())) generation = nlohmann::json::object();
  EBB_TRY(generation.status());
  GgufHeader unused;
  return ReadHubConfig(file(kConfig), config, file(kGeneration), *generation, unused).status();
}

absl::Status CheckNow(const std::string& path) {
  if (IsModelFolder(path)) return CheckFolder(path);
  EBB_ASSIGN(const GgufFile file, GgufFile::Open(path));
  return ReadConfig(file).status();
}

}  // namespace

absl::Status CheckModelHeader(const std::string& path) {
  const auto header = std::make_shared<absl::Status>();
  if (FinishedWithin(path, kFilePatience, [=] { *header = CheckNow(path); })) return *header;
  return Refuse(absl::StatusCode::kUnavailable, absl::StrCat(path, ": ", NothingCame(kFilePatience)),
                {.reason = "FILE_UNREADABLE", .metadata = {{"file", path}}});
}

}  // namespace ebb
