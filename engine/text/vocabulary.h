// A tokenizer as a model file states it, and the same thing checked.
//
// Vocabulary is the boundary: a reader of files fills it (read_vocabulary.h), and nothing in it is trusted. TokenTable
// is a Vocabulary that cannot be wrong in form: what the algorithms, bpe.h, characters.h and unigram.h, build upon.

#ifndef EBB_ENGINE_TEXT_VOCABULARY_H_
#define EBB_ENGINE_TEXT_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/token_type.h"

namespace ebb {

// Each field is the key `tokenizer.ggml.` + the name in its comment, unless it says otherwise.
struct Vocabulary {
  std::string model = {};                     // model: "gpt2", "llama" or "t5"
  std::string pre = {};                       // pre; empty where the file has none
  std::vector<std::string> tokens = {};       // tokens, by id
  std::vector<float> scores = {};             // scores, by id; may be empty for gpt2
  std::vector<int32_t> types = {};            // token_type, by id; empty: all normal but those below
  std::vector<std::string> merges = {};       // merges: "left right", best first; for gpt2, and where rules ask for it
  std::optional<int32_t> bos = {};            // bos_token_id
  std::optional<int32_t> eos = {};            // eos_token_id
  std::optional<int32_t> eot = {};            // eot_token_id: ends a turn
  std::optional<int32_t> eom = {};            // eom_token_id: ends a message within a turn
  std::optional<int32_t> unk = {};            // unknown_token_id: stands for what cannot be encoded
  std::optional<bool> add_bos = {};           // add_bos_token; absent: as is usual for the model
  std::optional<bool> add_space_prefix = {};  // add_space_prefix; absent: as is usual for the model
  std::string chars_map = {};                 // precompiled_charsmap (chars_map.h); for t5, may be empty
  bool one_space = false;                     // remove_extra_whitespaces; for t5
  std::string chat_template = {};             // tokenizer.chat_template; empty where the file has none
  std::string rules = {};  // tokenizer.ebb.rules: a tokenizer.json without its vocabulary (tokenizer_rules.h); empty
                           // where model and pre name the rules
};

// DATA_LOSS, reason MODEL_DAMAGED: "tokenizer.ggml.merges: what". `key` goes without the prefix.
absl::Status VocabularyDamaged(std::string_view key, const std::string& what);

// Tokens by id and by text. Types are known, counts agree, every id named is in range, no two tokens have one text.
class TokenTable {
 public:
  // DATA_LOSS names the key. The ids of bos, eos, eot and eom are control tokens whatever token_type says.
  static absl::StatusOr<TokenTable> Make(Vocabulary vocabulary);

  TokenTable(TokenTable&&) = default;
  TokenTable& operator=(TokenTable&&) = default;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  int32_t size() const { return static_cast<int32_t>(vocabulary_.tokens.size()); }

  // REQUIRES of all below: 0 <= id < size().
  const std::string& text(int32_t id) const { return vocabulary_.tokens[id]; }
  TokenType type(int32_t id) const { return types_[id]; }
  // Whether cutting text may make this token: not control tokens, nor those for bytes.
  bool CanBeMade(int32_t id) const {
    return types_[id] == TokenType::kNormal || types_[id] == TokenType::kUnused ||
           types_[id] == TokenType::kUserDefined;
  }

  void MakeNormal(int32_t id) { types_[id] = TokenType::kNormal; }

  // The token with exactly this text; absent where there is none, and for the empty text.
  std::optional<int32_t> Find(std::string_view text) const;

 private:
  explicit TokenTable(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  absl::Status ReadTypes();
  absl::Status IndexTexts();

  Vocabulary vocabulary_;
  std::vector<TokenType> types_ = {};
  absl::flat_hash_map<std::string_view, int32_t> ids_ = {};  // views into vocabulary_.tokens, whose buffer never moves
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_VOCABULARY_H_
