// Byte-level byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909, on the bytes of UTF-8 as in GPT-2): the `gpt2`
// model of GGUF files.
//
// A word begins as its bytes, and of all neighbouring pairs that stand in the list of merges the one listed first is
// joined, again and again.

#ifndef EBB_ENGINE_TEXT_BPE_H_
#define EBB_ENGINE_TEXT_BPE_H_

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/text/merge.h"
#include "engine/text/vocabulary.h"
#include "engine/text/word_encoder.h"

namespace ebb {

// Pairs that can be joined, by the ids of both.
class Merges {
 public:
  // DATA_LOSS naming the key: a merge that is not two tokens whose joined text is a token.
  static absl::StatusOr<Merges> Make(const TokenTable& table);

  std::optional<Join> Find(int32_t left, int32_t right) const {
    const auto join = joins_.find(Pair(left, right));
    if (join == joins_.end()) return std::nullopt;
    return join->second;
  }

 private:
  static uint64_t Pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  absl::flat_hash_map<uint64_t, Join> joins_ = {};
};

// User-defined tokens that are also a byte or come of a merge, and whose letters read as other bytes than their text (a
// file that adds "à" may name the token of byte 0xE0), become normal: in text they are no names, so that it reads back.
void DropNamesOfBytes(TokenTable& table);

// `table` outlives the encoder. `whole_words`: a word that is a token is that token, also where the merges would not
// lead there. DATA_LOSS naming the key: Merges; a byte without a token.
absl::StatusOr<std::unique_ptr<const WordEncoder>> MakeBpe(const TokenTable& table, bool whole_words);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_BPE_H_
