// Any bytes as the parts of a model: a byte of length for each but the last, times 16, then that part. The first is
// opened, and asks for the others by name.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "engine/model/architecture.h"
#include "engine/model/gguf_split.h"

namespace {

// Part `index` of the input, empty where there is none.
std::span<const std::byte> Part(std::span<const std::byte> input, int32_t index) {
  for (int32_t i = 0;; ++i) {
    if (input.empty()) return {};
    const size_t length = std::min(input.size() - 1, std::to_integer<size_t>(input[0]) * 16);
    if (i == index) return input.subspan(1, length);
    input = input.subspan(1 + length);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  int32_t opened = 0;
  const auto open = [&](const std::string& name) -> absl::StatusOr<ebb::GgufFile> {
    const auto bytes = Part(input, ++opened);
    if (bytes.empty()) return absl::NotFoundError(name);
    return ebb::GgufFile::Parse(name, bytes);
  };
  // The name of the first of as many parts as it says it has.
  auto first = ebb::GgufFile::Parse("fuzz.gguf", Part(input, 0));
  if (!first.ok()) return 0;
  const auto count = first->GetInt("split.count", 1);
  if (count.ok() && *count > 1 && *count <= ebb::kSplitPartsMax) {
    first = ebb::GgufFile::Parse("fuzz" + ebb::SplitSuffix(0, static_cast<int32_t>(*count)), Part(input, 0));
  }
  const auto file = ebb::JoinSplit(*std::move(first), open);
  if (!file.ok()) return 0;
  if (const auto config = ebb::ReadConfig(*file); config.ok()) ebb::FindWeights(*file, *config).IgnoreError();
  return 0;
}
