// Any bytes as tokenizer.json, and behind the first zero byte as tokenizer_config.json. Whatever is taken encodes every
// text, to tokens that it has.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "engine/model/hub_tokenizer.h"
#include "engine/text/tokenizer.h"
#include "policies/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  const auto end = std::ranges::find(input, std::byte{0});
  const auto read = [&](const std::string& name) -> absl::StatusOr<std::span<const std::byte>> {
    if (name == "tokenizer.json") return std::span<const std::byte>(input.begin(), end);
    if (name == "tokenizer_config.json" && end != input.end()) return std::span<const std::byte>(end + 1, input.end());
    return absl::NotFoundError(name);
  };
  ebb::GgufHeader header;
  if (!ebb::AddHubTokenizer("fuzz", read, 0, {}, header).ok()) return 0;
  const auto file = ebb::GgufFile::From({.name = "fuzz", .header = header.Bytes()});
  if (!file.ok()) return 0;
  const auto tokenizer = ebb::Tokenizer::FromGguf(*file);
  if (!tokenizer.ok()) return 0;
  for (const char* text :
       {"Hello  world's 1234!\n", " \xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80\xFF\xE2\x82 <|end|></s>", "e\xCC\x81"}) {
    for (const int32_t id : (*tokenizer)->Encode(text, ebb::Special::kPlain, ebb::Start::kText)) {
      // A character that has no token is the unknown one, which counts as control.
      EBB_CHECK(id >= 0 && id < (*tokenizer)->size());
    }
    const auto ids = (*tokenizer)->Encode(text, ebb::Special::kParse, ebb::Start::kSequence);
    (*tokenizer)->Decode(ids);
  }
  return 0;
}
