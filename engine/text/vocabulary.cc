#include "engine/text/vocabulary.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int32_t kTypeMin = static_cast<int32_t>(TokenType::kNormal);
constexpr int32_t kTypeMax = static_cast<int32_t>(TokenType::kByte);

absl::Status CheckCount(std::string_view key, size_t found, size_t tokens) {
  if (found == 0 || found == tokens) return absl::OkStatus();
  return VocabularyDamaged(key, absl::StrFormat("expected %d entries, one per token, found %d", tokens, found));
}

absl::Status CheckId(std::string_view key, std::optional<int32_t> id, size_t tokens) {
  if (!id || (*id >= 0 && static_cast<size_t>(*id) < tokens)) return absl::OkStatus();
  return VocabularyDamaged(key, absl::StrFormat("expected a token in 0..%d, found %d", tokens - 1, *id));
}

absl::Status CheckForm(const Vocabulary& v) {
  const size_t tokens = v.tokens.size();
  if (tokens == 0) return VocabularyDamaged("tokens", "expected at least one token, found none");
  if (tokens > std::numeric_limits<int32_t>::max()) {
    return VocabularyDamaged("tokens", absl::StrFormat("expected fewer than 2^31 tokens, found %d", tokens));
  }
  EBB_TRY(CheckCount("scores", v.scores.size(), tokens));
  EBB_TRY(CheckCount("token_type", v.types.size(), tokens));
  EBB_TRY(CheckId("bos_token_id", v.bos, tokens));
  EBB_TRY(CheckId("eos_token_id", v.eos, tokens));
  EBB_TRY(CheckId("eot_token_id", v.eot, tokens));
  EBB_TRY(CheckId("eom_token_id", v.eom, tokens));
  EBB_TRY(CheckId("unknown_token_id", v.unk, tokens));
  if (v.add_bos.value_or(false) && !v.bos) {
    return VocabularyDamaged("add_bos_token", "true, but there is no tokenizer.ggml.bos_token_id to add");
  }
  for (size_t id = 0; id < v.scores.size(); ++id) {
    if (std::isnan(v.scores[id])) {
      return VocabularyDamaged("scores", absl::StrFormat("expected a number for token %d, found NaN", id));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VocabularyDamaged(std::string_view key, const std::string& what) {
  return Refuse(absl::StatusCode::kDataLoss, absl::StrFormat("tokenizer.ggml.%s: %s", key, what),
                {.reason = "MODEL_DAMAGED"});
}

absl::StatusOr<TokenTable> TokenTable::Make(Vocabulary vocabulary) {
  EBB_TRY(CheckForm(vocabulary));
  TokenTable table(std::move(vocabulary));
  EBB_TRY(table.ReadTypes());
  EBB_TRY(table.IndexTexts());
  return table;
}

absl::Status TokenTable::ReadTypes() {
  types_.assign(vocabulary_.tokens.size(), TokenType::kNormal);
  for (size_t id = 0; id < vocabulary_.types.size(); ++id) {
    const int32_t type = vocabulary_.types[id];
    if (type < kTypeMin || type > kTypeMax) {
      return VocabularyDamaged("token_type",
                               absl::StrFormat("expected %d..%d for token %d, found %d", kTypeMin, kTypeMax, id, type));
    }
    types_[id] = static_cast<TokenType>(type);
  }
  for (const auto& id : {vocabulary_.bos, vocabulary_.eos, vocabulary_.eot, vocabulary_.eom}) {
    if (id) types_[*id] = TokenType::kControl;
  }
  return absl::OkStatus();
}

absl::Status TokenTable::IndexTexts() {
  ids_.reserve(vocabulary_.tokens.size());
  for (int32_t id = 0; id < size(); ++id) {
    const std::string& token = vocabulary_.tokens[id];
    if (token.empty()) continue;  // a hole in the numbering; no text becomes it
    const auto [found, is_new] = ids_.emplace(token, id);
    if (!is_new) {
      return VocabularyDamaged("tokens", absl::StrFormat("tokens %d and %d have the same text", found->second, id));
    }
  }
  return absl::OkStatus();
}

std::optional<int32_t> TokenTable::Find(std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace ebb
