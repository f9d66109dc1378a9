// Text without control tokens to token ids: normalizer, pre-tokenizer and model, one after the other, on each stretch
// of valid UTF-8; what is none goes to the model as it is.
//
// Thread safety: immutable after Make.

#ifndef EBB_ENGINE_TEXT_TEXT_ENCODER_H_
#define EBB_ENGINE_TEXT_TEXT_ENCODER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/text/special_tokens.h"
#include "engine/text/tokenizer_rules.h"
#include "engine/text/vocabulary.h"
#include "engine/text/word_encoder.h"

namespace ebb {

class TextEncoder {
 public:
  // `table` outlives the encoder. Errors as bpe.h, characters.h, unigram.h.
  static absl::StatusOr<std::unique_ptr<const TextEncoder>> Make(const TokenTable& table, TokenizerRules rules);

  // Parts of words of one text that have been encoded, and where in `ids` of Encode their tokens are.
  class Seen {
   private:
    friend TextEncoder;
    struct Place {
      size_t begin = 0;
      size_t count = 0;
    };
    absl::flat_hash_map<std::string, Place> words = {};
  };

  // Appends the tokens of `text`, which may be any bytes. `seen` is for all calls that append to the same `ids`.
  void Encode(std::string_view text, Before before, Seen& seen, std::vector<int32_t>& ids) const;

  // The bytes that a token stands for that is no control token.
  std::string Bytes(int32_t id) const;

  const TokenizerRules& rules() const { return rules_; }

 private:
  TextEncoder(const TokenTable& table, TokenizerRules rules);

  void EncodeValid(std::string_view text, Before before, Seen& seen, std::vector<int32_t>& ids) const;
  void EncodeNormal(std::string_view text, Before before, Seen& seen, std::vector<int32_t>& ids) const;
  void EncodePart(std::string_view part, Seen& seen, std::vector<int32_t>& ids) const;

  const TokenTable& table_;
  const TokenizerRules rules_;
  SpecialTokens normalized_;  // names that are looked for in normalized text
  std::unique_ptr<const WordEncoder> words_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_TEXT_ENCODER_H_
