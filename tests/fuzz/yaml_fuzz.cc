// Any bytes as a configuration file. What loads must survive being explained and loaded again.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policies/check.h"
#include "policies/status.h"
#include "server/config.h"

namespace ebb {
namespace {

absl::StatusOr<LoadedConfig> Load(std::string_view yaml) {
  EBB_ASSIGN(const std::vector<ConfigSetting> settings, ReadConfigYaml(yaml, "fuzz.yaml"));
  return ResolveConfig(settings);
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto loaded = ebb::Load({reinterpret_cast<const char*>(data), size});
  if (!loaded.ok()) return 0;
  const auto again = ebb::Load(ebb::ExplainConfig(*loaded));
  EBB_CHECK(again.ok());
  EBB_CHECK(again->config.DebugString() == loaded->config.DebugString());
  return 0;
}
