#include "server/model_options.h"

#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/files.h"

namespace ebb {
namespace {

// A model beside the main one keeps what it keeps in a folder of its own, DIR/models/NAME.
absl::StatusOr<std::string> MakeStoreOf(const std::string& dir, const std::string& model) {
  if (dir.empty()) return dir;
  const std::string all = dir + "/models";
  if (mkdir(all.c_str(), kFolderMode) != 0 && errno != EEXIST) return StoreUnusable(all, "making it", errno);
  return absl::StrFormat("%s/%s", all, model);
}

}  // namespace

absl::StatusOr<ServerOptions> OptionsOf(const ServerOptions& main, const std::string& name, const ModelSpec& spec) {
  ServerOptions options = main;
  options.model_name = name;
  options.engine.model_path = spec.path;
  options.engine.calibration_path = spec.calibration_path;
  options.engine.head_gates_path = spec.head_gates_path;
  options.engine.threads = spec.threads;
  options.engine.arena_bytes = spec.arena_bytes;
  options.engine.accuracy = spec.accuracy;
  options.device.kind = spec.worker;
  options.device.device = spec.gpu_device;
  options.device.arena_bytes = spec.gpu_arena_bytes;
  options.draft = {};
  options.swap_bytes_max = 0;
  EBB_ASSIGN(options.store_dir, MakeStoreOf(main.store_dir, name));
  return options;
}

absl::Status CheckSpecs(const ModelTable& models, const ServerOptions& options) {
  if (!models.empty() && options.shared_store) {
    return RefuseField("BAD_VALUE", "models", "servers share sessions of one model: it is empty with store.redis");
  }
  for (const auto& [name, spec] : models) {
    if (spec.path.empty()) return RefuseField("BAD_VALUE", absl::StrFormat("models.%s.path", name), "it is empty");
  }
  return absl::OkStatus();
}

}  // namespace ebb
