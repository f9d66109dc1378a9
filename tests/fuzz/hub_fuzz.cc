// Any bytes as config.json of a small folder of tensors; whatever is taken is a model whose weights can be looked for.
// The input up to the first zero byte is the configuration, the rest the index of files.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "engine/model/architecture.h"
#include "engine/model/hub_model.h"
#include "tests/support/hub_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ebb::HubFolder kSound = [] {
    ebb::HubFolder folder;
    folder.Finish();
    return folder;
  }();
  const auto input = std::as_bytes(std::span(data, size));
  const auto end = std::ranges::find(input, std::byte{0});
  const auto read = [&](const std::string& name) -> absl::StatusOr<std::span<const std::byte>> {
    if (name == "config.json") return std::span<const std::byte>(input.begin(), end);
    if (name == "model.safetensors.index.json" && end != input.end()) {
      return std::span<const std::byte>(end + 1, input.end());
    }
    return kSound.Read(name);
  };
  const auto file = ebb::ReadHubModel("fuzz", read);
  if (!file.ok()) return 0;
  if (const auto config = ebb::ReadConfig(*file); config.ok()) ebb::FindWeights(*file, *config).IgnoreError();
  return 0;
}
