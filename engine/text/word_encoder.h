// Words to token ids: what bpe.h, characters.h and unigram.h do, each in its way. Any word can be encoded.
//
// Thread safety: immutable after construction.

#ifndef EBB_ENGINE_TEXT_WORD_ENCODER_H_
#define EBB_ENGINE_TEXT_WORD_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace ebb {

class WordEncoder {
 public:
  virtual ~WordEncoder() = default;

  // Appends the tokens of `word`, which may be any bytes and is not empty. Never a control token.
  virtual void Encode(std::string_view word, std::vector<int32_t>& ids) const = 0;

  // Bytes of the first part of `word` that no token goes beyond: the parts' tokens are those of the word, but parts
  // come again more often. REQUIRES: `word` is not empty.
  virtual size_t FirstPart(std::string_view word) const { return word.size(); }
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_WORD_ENCODER_H_
