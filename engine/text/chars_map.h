// The `precompiled_charsmap` of SentencePiece: which characters, or short runs of them, are replaced by what, as a
// double-array trie and a block of texts (its normalizer.cc; the trie is that of Darts-clone).
//
// Thread safety: immutable.

#ifndef EBB_ENGINE_TEXT_CHARS_MAP_H_
#define EBB_ENGINE_TEXT_CHARS_MAP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb {

class CharsMap {
 public:
  // `bytes`: the trie's size in bytes (32 bits, little-endian), the trie, texts that end in a zero byte.
  // INVALID_ARGUMENT says what does not fit.
  static absl::StatusOr<CharsMap> Make(std::string_view bytes);

  // As tokenizer.json's `Precompiled` applies it: short graphemes as a whole where the table has the beginning of them,
  // else character by character. REQUIRES: `text` is valid UTF-8; so is the result.
  std::string Apply(std::string_view text) const;

 private:
  // What the shortest beginning of `text` that the table has becomes.
  std::optional<std::string_view> Find(std::string_view text) const;

  std::vector<uint32_t> trie_ = {};
  std::string texts_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_CHARS_MAP_H_
