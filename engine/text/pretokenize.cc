#include "engine/text/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/gguf.h"
#include "engine/text/utf8.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

// In place of the usual \s stands [\t-\r\x{85}\p{Z}], Unicode's White_Space: PCRE2's \s counts U+180E too, which
// Unicode took off the list.

// Radford et al. 2019: contractions, words, numbers and the rest, each with the one space before it.
constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{L}\p{N}\t-\r\x{85}\p{Z}]+)"
                         R"(|[\t-\r\x{85}\p{Z}]+(?![^\t-\r\x{85}\p{Z}])|[\t-\r\x{85}\p{Z}]+)";

// Llama 3 and Qwen 2 differ in how many digits make a word.
constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\p{L}\p{N}\t-\r\x{85}\p{Z}]+[\r\n]*)"
    R"(|[\t-\r\x{85}\p{Z}]*[\r\n]+|[\t-\r\x{85}\p{Z}]+(?![^\t-\r\x{85}\p{Z}])|[\t-\r\x{85}\p{Z}]+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\p{L}\p{N}\t-\r\x{85}\p{Z}]+[\r\n]*)"
    R"(|[\t-\r\x{85}\p{Z}]*[\r\n]+|[\t-\r\x{85}\p{Z}]+(?![^\t-\r\x{85}\p{Z}])|[\t-\r\x{85}\p{Z}]+)";

struct Rule {
  std::string_view name = {};
  const char* pattern = nullptr;  // matches at every place of every text, so that words leave no gap
  bool whole_words = false;
  bool add_bos = false;
};

constexpr Rule kRules[] = {
    {.name = "gpt-2", .pattern = kGpt2},
    {.name = "default", .pattern = kGpt2},
    {.name = "phi-2", .pattern = kGpt2},
    {.name = "mpt", .pattern = kGpt2},
    {.name = "olmo", .pattern = kGpt2},
    {.name = "llama-bpe", .pattern = kLlama3, .whole_words = true, .add_bos = true},
    {.name = "llama3", .pattern = kLlama3, .whole_words = true, .add_bos = true},
    {.name = "llama-v3", .pattern = kLlama3, .whole_words = true, .add_bos = true},
    {.name = "falcon3", .pattern = kLlama3, .whole_words = true, .add_bos = true},
    {.name = "qwen2", .pattern = kQwen2},
    {.name = "deepseek-r1-qwen", .pattern = kQwen2},
    {.name = "stablelm2", .pattern = kQwen2},
};

std::string KnownNames() {
  return absl::StrJoin(kRules, ", ", [](std::string* out, const Rule& rule) { *out += rule.name; });
}

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

struct Pretokenizer::Regex {
  pcre2_code* code = nullptr;
};

void Pretokenizer::FreeRegex::operator()(Regex* regex) const {
  pcre2_code_free(regex->code);
  delete regex;
}

absl::StatusOr<Pretokenizer> Pretokenizer::Make(std::string_view name) {
  const std::string_view wanted = name.empty() ? "gpt-2" : name;
  const auto* rule = std::ranges::find(kRules, wanted, &Rule::name);
  if (rule == std::end(kRules)) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("tokenizer.ggml.pre: no rule is known for the pre-tokenizer '%s'; known: %s",
                                  Printable(name), KnownNames()),
                  {.reason = "UNKNOWN_PRE_TOKENIZER"});
  }
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rule->pattern), PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &error_offset, nullptr);
  EBB_CHECK(code != nullptr);                   // the patterns are ours
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where the system forbids it, matching is slower and the same
  Pretokenizer made;
  made.regex_.reset(new Regex{code});
  made.whole_words_ = rule->whole_words;
  made.add_bos_ = rule->add_bos;
  return made;
}

std::vector<std::string_view> Pretokenizer::Split(std::string_view text) const {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t valid = ValidUtf8Size(text);
    SplitValid(text.substr(0, valid), words);
    text.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < text.size()) {
      const Utf8Unit unit = FirstUtf8(text.substr(invalid));
      if (unit.kind == Utf8Kind::kCharacter) break;
      invalid += unit.size;
    }
    if (invalid > 0) words.push_back(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
  return words;
}

void Pretokenizer::SplitValid(std::string_view text, std::vector<std::string_view>& words) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  size_t begin = 0;
  while (begin < text.size()) {
    // The text was checked: PCRE2 would check all of the rest again for each word.
    const int found = pcre2_match(regex_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                                  PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    // A match fails only at PCRE2's own limits (10^7 steps back in one run of spaces). Then the rest is one word:
    // cut differently, but nothing is lost.
    const size_t end = found < 0 ? text.size() : pcre2_get_ovector_pointer(match.get())[1];
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace ebb
