// What a token is, in the numbers of `tokenizer.ggml.token_type`.

#ifndef EBB_ENGINE_MODEL_TOKEN_TYPE_H_
#define EBB_ENGINE_MODEL_TOKEN_TYPE_H_

#include <cstdint>

namespace ebb {

enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,      // stands for what cannot be encoded
  kControl = 3,      // begin, end, a turn's marker: never made from plain text
  kUserDefined = 4,  // found in any text before it is cut, trusted or not
  kUnused = 5,       // a hole in the numbering, where it has no text
  kByte = 6,         // <0xNN>
};

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_TOKEN_TYPE_H_
