// Text to tokens and back, as the model's file says.
//
//   EBB_ASSIGN(auto tokenizer, Tokenizer::FromGguf(file));
//   std::vector<int32_t> prompt = tokenizer->Encode("Once upon a time", Special::kPlain, Start::kSequence);
//   std::string text = tokenizer->Decode(prompt);
//
// Plain text never becomes a control token: names of control tokens in it are ordinary text. Any bytes can be encoded,
// valid UTF-8 or not, and none are lost but to a normalizer or steps that drop what they match. (A vocabulary that
// writes spaces as U+2581 and has no token for one reads them back as that character.) `tokenizer.ggml.add_eos_token`
// is not followed: texts here are to be continued.
//
// Thread safety: immutable after Make; any thread may call.

#ifndef EBB_ENGINE_TEXT_TOKENIZER_H_
#define EBB_ENGINE_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/text/special_tokens.h"
#include "engine/text/text_encoder.h"
#include "engine/text/tokenizer_rules.h"
#include "engine/text/vocabulary.h"

namespace ebb {

// Names of control tokens (and of the unknown token) in a text.
enum class Special {
  kPlain,  // are ordinary text; for what comes from outside
  kParse,  // become these tokens; for what the operator wrote
};

// What the text begins.
enum class Start {
  kSequence,      // a sequence: the begin token comes first where the model has one added, also for the empty text
  kText,          // a text of its own, for example after a special token: no begin token
  kContinuation,  // nothing, it goes on ordinary text: nor does the model's space come before it
};

// A piece of a text that is encoded in one go.
struct Segment {
  std::string text = {};
  Special special = Special::kPlain;
};

class Tokenizer {
 public:
  // DATA_LOSS, reason MODEL_DAMAGED, naming the key; FAILED_PRECONDITION UNSUPPORTED_TOKENIZER or
  // UNKNOWN_PRE_TOKENIZER, naming what the file asks for and what is known.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Make(Vocabulary vocabulary);
  // The same; errors begin with the file's name.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> FromGguf(const GgufFile& file);
  // Of a path: a hub's folder with a tokenizer.json (a model need not be in it), else a GGUF file.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Open(const std::string& path);

  // The segments' text put together and cut as a whole; a control token must lie inside one kParse segment.
  // REQUIRES: less than 2^29 bytes of text.
  std::vector<int32_t> Encode(std::span<const Segment> segments, Start start) const;
  std::vector<int32_t> Encode(std::string_view text, Special special = Special::kPlain,
                              Start start = Start::kText) const;

  // The pieces put together: bytes, which may be cut inside a character (utf8_stream.h). Control tokens are nothing,
  // or their names with Special::kParse. Of Encode's result this is the text again, but for the spaces that
  // adds_space() tells of. REQUIRES: every id in 0 .. size() - 1.
  std::string Decode(std::span<const int32_t> ids, Special special = Special::kPlain) const;

  // The bytes that one token adds to the text; empty for control tokens. REQUIRES: 0 <= id < size().
  std::string_view Piece(int32_t id) const { return is_control(id) ? std::string_view() : pieces_[id]; }

  // The token as a person may read it: the file's own text. REQUIRES: 0 <= id < size().
  const std::string& TokenText(int32_t id) const { return table_->text(id); }

  int32_t size() const { return table_->size(); }
  std::optional<int32_t> bos() const { return bos_; }
  std::optional<int32_t> eos() const { return table_->vocabulary().eos; }
  std::optional<int32_t> eot() const { return table_->vocabulary().eot; }
  bool adds_bos() const { return adds_bos_; }      // Start::kSequence begins with bos()
  bool adds_space() const { return adds_space_; }  // a space is put before text that does not go on other text
  const std::string& chat_template() const { return table_->vocabulary().chat_template; }

  // The control token of this name, absent where there is none.
  std::optional<int32_t> FindControl(std::string_view name) const;

  // Whether generation ends at this token: eos, eot and eom of the file, and control tokens that end a turn by their
  // well-known name, since files often name only one. REQUIRES: 0 <= id < size().
  bool IsStop(int32_t id) const { return stops_[id]; }
  bool is_control(int32_t id) const {
    return table_->type(id) == TokenType::kControl || table_->type(id) == TokenType::kUnknown;
  }

 private:
  explicit Tokenizer(std::unique_ptr<const TokenTable> table);
  absl::Status MakeEncoder(TokenizerRules rules);
  void FindNames();
  void FindStops();

  std::unique_ptr<const TokenTable> table_;  // the encoder keeps references to it
  std::optional<SpecialTokens> special_ = {};
  std::unique_ptr<const TextEncoder> encoder_ = {};
  std::optional<int32_t> bos_ = {};
  bool adds_bos_ = false;
  bool adds_space_ = false;
  std::vector<std::string> pieces_ = {};  // by id; a control token's is its name
  std::vector<bool> stops_ = {};          // by id
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_TOKENIZER_H_
