// Text without special tokens to token ids: what bpe.h and spm.h do, each in its way.
//
// Thread safety: immutable after construction.

#ifndef EBB_ENGINE_TEXT_TEXT_ENCODER_H_
#define EBB_ENGINE_TEXT_TEXT_ENCODER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ebb {

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // What lies before a text: the start of the sequence or a special token; or tokens of ordinary text that it goes on.
  enum class Before { kNothing, kText };

  // Appends the tokens of `text`, which may be any bytes and is not empty. Ordinary tokens (TokenTable) and those for
  // bytes alone.
  virtual void Encode(std::string_view text, Before before, std::vector<int32_t>& ids) const = 0;

  // The bytes that a token of type normal, unused or byte stands for.
  virtual std::string Bytes(int32_t id) const = 0;
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_TEXT_ENCODER_H_
