#include "engine/text/tokenizer_rules.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/model/gguf.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr char kSpace[] = "\xE2\x96\x81";  // U+2581

NormalizerStep Replacing(Regex pattern, std::string content) {
  return {.kind = NormalizerStep::Kind::kReplace, .content = std::move(content), .pattern = std::move(pattern)};
}

// Spaces are written U+2581; one is put before text that goes on no other.
absl::Status WriteSpaces(const Vocabulary& vocabulary, std::vector<NormalizerStep> steps, TokenizerRules& rules) {
  rules.adds_space = vocabulary.add_space_prefix.value_or(true);
  if (rules.adds_space) steps.push_back({.kind = NormalizerStep::Kind::kPrepend, .content = kSpace});
  EBB_ASSIGN(Regex space, Regex::Literal(" "));
  steps.push_back(Replacing(std::move(space), kSpace));
  rules.normalizer = Normalizer(std::move(steps));
  rules.bytes_print = false;
  rules.space = kSpace;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerRules> ReadTokenizerRules(const TokenTable& table) {
  const Vocabulary& vocabulary = table.vocabulary();
  if (!vocabulary.rules.empty()) return ReadTokenizerJson(table);
  TokenizerRules rules;
  if (vocabulary.model == "gpt2") {
    EBB_ASSIGN(rules.pretokenizer, Pretokenizer::Make(vocabulary.pre));
    rules.whole_words = rules.pretokenizer.whole_words();
    rules.adds_bos = rules.pretokenizer.add_bos() && vocabulary.bos;
    return rules;
  }
  if (vocabulary.model == "llama") {
    EBB_TRY(WriteSpaces(vocabulary, {}, rules));
    rules.model = TokenizerRules::Model::kCharacters;
    rules.adds_bos = vocabulary.bos.has_value();
    return rules;
  }
  if (vocabulary.model == "t5") {
    std::vector<NormalizerStep> steps;
    if (!vocabulary.chars_map.empty()) {
      absl::StatusOr<CharsMap> map = CharsMap::Make(vocabulary.chars_map);
      if (!map.ok()) return VocabularyDamaged("precompiled_charsmap", std::string(map.status().message()));
      steps.push_back({.kind = NormalizerStep::Kind::kCharsMap, .chars_map = *std::move(map)});
    }
    if (vocabulary.one_space) {
      steps.push_back({.kind = NormalizerStep::Kind::kStripLeft});
      steps.push_back({.kind = NormalizerStep::Kind::kStripRight});
      EBB_ASSIGN(Regex spaces, Regex::Make(" {2,}"));
      steps.push_back(Replacing(std::move(spaces), " "));
    }
    EBB_TRY(WriteSpaces(vocabulary, std::move(steps), rules));
    rules.model = TokenizerRules::Model::kUnigram;
    rules.unigram.unk = vocabulary.unk;
    return rules;
  }
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("tokenizer.ggml.model: the tokenizer '%s' is not known; known: gpt2 (byte-level BPE), "
                                "llama (SPM), t5 (Unigram)",
                                Printable(vocabulary.model)),
                {.reason = "UNSUPPORTED_TOKENIZER"});
}

}  // namespace ebb
