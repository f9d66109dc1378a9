// A small random model file, of architecture llama unless told otherwise, whole with a tokenizer, for tests that need
// some model and not a clever one.
//
// Weights are scaled so that activations stay near unit variance and attention is peaked: a missing or misplaced key
// shows in the logits. Same struct, same bytes. The tokenizer is byte-level BPE without merges: a text has one token
// per byte, id = the byte, and every text can be tokenized. Behind the bytes come the five special tokens and the chat
// template of the built-in model; what is left of the vocabulary is pairs of letters, which no text is tokenized to.

#ifndef EBB_TESTS_SUPPORT_TINY_MODEL_H_
#define EBB_TESTS_SUPPORT_TINY_MODEL_H_

#include <cstdint>
#include <string>

#include "engine/tensor.h"
#include "tests/support/gguf_writer.h"

namespace ebb {

// Ids of the special tokens.
inline constexpr int32_t kTinyBos = 256;
inline constexpr int32_t kTinyEos = 257;
inline constexpr int32_t kTinyUser = 258;
inline constexpr int32_t kTinyAssistant = 259;
inline constexpr int32_t kTinyEnd = 260;  // ends a turn

struct TinyModel {
  // Or qwen3 (norms of q and k, head by head), qwen3moe (these, and experts), gemma2 (norms of what a layer adds, caps)
  // or gemma3 (all these norms). Or opt, gpt2, gptneox, gptj or bloom, which have layer norms; opt and gpt2 learned
  // their `context` positions. REQUIRES of these: kv_heads = heads; heads * head_dim = dim.
  std::string architecture = "llama";
  int32_t layers = 2;
  int32_t dim = 64;
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 16;
  int32_t rotary_dims = 0;     // 0: all of a head
  int32_t ffn_dim = 96;        // of each expert
  int32_t vocab = 261;         // 261..937
  int32_t context = 512;       // trained context that the file states; 1 and more
  int32_t experts = 6;         // of qwen3moe
  int32_t experts_used = 2;    // by a token
  int32_t window = 0;          // tokens that a layer's queries see, the newest; 0: all
  int32_t window_pattern = 0;  // of so many layers all but the last have the window; 0: every layer
  DType type = DType::kF32;    // of matrices; dim, ffn_dim and heads * head_dim are multiples of its block
  bool tied_head = false;
  uint64_t seed = 1;
  std::string chat_template = {};  // empty: the built-in model's
  bool without_chat_template = false;
  bool calibrated = true;
};

// The file, ready to be changed further.
GgufWriter MakeTinyModel(const TinyModel& model);

// The same without tokenizer; here `vocab` is any number from 1.
GgufWriter MakeTinyTransformer(const TinyModel& model);

// The same as a file in the system's temporary folder, removed with the object; beside it, unless told otherwise, a
// calibration of random weights.
class TinyModelFile {
 public:
  explicit TinyModelFile(const TinyModel& model);
  ~TinyModelFile();
  TinyModelFile(const TinyModelFile&) = delete;
  TinyModelFile& operator=(const TinyModelFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_TINY_MODEL_H_
