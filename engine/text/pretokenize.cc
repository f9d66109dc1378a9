#include "engine/text/pretokenize.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "engine/model/gguf.h"
#include "engine/text/byte_alphabet.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

using Matches = CutStep::Matches;

// A step of a rule that is known by name.
struct KnownStep {
  const char* pattern = nullptr;  // of a split; null: kBytes
  Matches matches = Matches::kIsolated;
};

constexpr KnownStep kGpt2[] = {{kGpt2Pattern}};

// Llama 3 and Qwen 2 differ in how many digits make a word.
constexpr KnownStep kLlama3[] = {
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
constexpr KnownStep kQwen2[] = {
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
constexpr KnownStep kStarcoder[] = {{kDigitPattern}, {kGpt2Pattern}};
// What follows the bytes cuts characters that stand for bytes, as the model's own software does.
constexpr KnownStep kFalcon[] = {
    {kPunctuationPattern, Matches::kContiguous}, {kGpt2Pattern},      {nullptr},
    {kDigitPattern, Matches::kContiguous},       {"[0-9][0-9][0-9]"},
};
constexpr KnownStep kDeepseekCoder[] = {
    {R"([\r\n])"}, {R"(\s?\p{L}+)"}, {R"(\s?\p{P}+)"}, {"[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"}, {kDigitPattern}};
constexpr KnownStep kDeepseek3[] = {
    {R"(\p{N}{1,3})"},
    {"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"},
    {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
constexpr KnownStep kTekken[] = {{R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                                  R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                                  R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
constexpr KnownStep kGpt4o[] = {
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
constexpr KnownStep kBloom[] = {{R"( ?[^(\s|[.,!?…。，、।۔،])]+)"}};

struct Rule {
  std::string_view name = {};
  std::span<const KnownStep> steps = {};
  bool whole_words = false;
  bool add_bos = false;
};

constexpr Rule kRules[] = {
    {.name = "gpt-2", .steps = kGpt2},
    {.name = "default", .steps = kGpt2},
    {.name = "phi-2", .steps = kGpt2},
    {.name = "mpt", .steps = kGpt2},
    {.name = "olmo", .steps = kGpt2},
    {.name = "jais", .steps = kGpt2},
    {.name = "llama-bpe", .steps = kLlama3, .whole_words = true, .add_bos = true},
    {.name = "llama3", .steps = kLlama3, .whole_words = true, .add_bos = true},
    {.name = "llama-v3", .steps = kLlama3, .whole_words = true, .add_bos = true},
    {.name = "falcon3", .steps = kLlama3, .whole_words = true, .add_bos = true},
    {.name = "dbrx", .steps = kLlama3},
    {.name = "smaug-bpe", .steps = kLlama3},
    {.name = "qwen2", .steps = kQwen2},
    {.name = "deepseek-r1-qwen", .steps = kQwen2},
    {.name = "stablelm2", .steps = kQwen2},
    {.name = "starcoder", .steps = kStarcoder},
    {.name = "refact", .steps = kStarcoder},
    {.name = "command-r", .steps = kStarcoder},
    {.name = "smollm", .steps = kStarcoder},
    {.name = "codeshell", .steps = kStarcoder},
    {.name = "exaone", .steps = kStarcoder},
    {.name = "falcon", .steps = kFalcon},
    {.name = "deepseek-coder", .steps = kDeepseekCoder},
    {.name = "deepseek-v3", .steps = kDeepseek3},
    {.name = "tekken", .steps = kTekken, .whole_words = true, .add_bos = true},
    {.name = "gpt-4o", .steps = kGpt4o},
    {.name = "bloom", .steps = kBloom},
};

std::string KnownNames() {
  return absl::StrJoin(kRules, ", ", [](std::string* out, const Rule& rule) { *out += rule.name; });
}

// A stretch of a word: a match of the step's pattern or what lies between two.
struct Piece {
  size_t begin = 0;
  size_t end = 0;
  bool match = false;
};

std::vector<Piece> PiecesOf(const CutStep& step, std::string_view word) {
  std::vector<Piece> pieces;
  size_t done = 0;
  const Regex::Found found = step.pattern->FindAll(word);
  for (const Regex::Match& match : found.matches) {
    if (done < match.begin) pieces.push_back({done, match.begin, step.invert});
    pieces.push_back({match.begin, match.end, !step.invert});
    done = match.end;
  }
  // What was not searched is no match either way: no text is removed for that.
  if (done < word.size()) pieces.push_back({done, word.size(), step.invert && !found.ended_early});
  return pieces;
}

// Which pieces become one word; empty ones are dropped by the caller.
std::vector<Piece> Merged(Matches matches, std::vector<Piece> pieces) {
  std::vector<Piece> kept;
  bool previous = false;
  switch (matches) {
    case Matches::kIsolated:
      return pieces;
    case Matches::kRemoved:
      std::erase_if(pieces, [](const Piece& piece) { return piece.match; });
      return pieces;
    case Matches::kContiguous:
      for (const Piece& piece : pieces) {
        if (!kept.empty() && kept.back().match == piece.match) {
          kept.back().end = piece.end;
        } else {
          kept.push_back(piece);
        }
      }
      return kept;
    case Matches::kMergedWithPrevious:
      for (const Piece& piece : pieces) {
        if (piece.match && !previous && !kept.empty()) {
          kept.back().end = piece.end;
        } else {
          kept.push_back(piece);
        }
        previous = piece.match;
      }
      return kept;
    case Matches::kMergedWithNext:
      for (const Piece& piece : std::vector<Piece>(pieces.rbegin(), pieces.rend())) {
        if (piece.match && !previous && !kept.empty()) {
          kept.back().begin = piece.begin;
        } else {
          kept.push_back(piece);
        }
        previous = piece.match;
      }
      std::ranges::reverse(kept);
      return kept;
  }
  return kept;
}

void SplitWords(const CutStep& step, std::vector<std::string_view>& words) {
  std::vector<std::string_view> cut;
  cut.reserve(words.size());
  for (const std::string_view word : words) {
    for (const Piece& piece : Merged(step.matches, PiecesOf(step, word))) {
      if (piece.begin < piece.end) cut.push_back(word.substr(piece.begin, piece.end - piece.begin));
    }
  }
  words = std::move(cut);
}

}  // namespace

Pretokenizer::Pretokenizer(std::vector<CutStep> steps) : steps_(std::move(steps)) {
  // The words are read as bytes (bpe.h), so that to write them as characters last of all changes nothing.
  if (!steps_.empty() && steps_.back().kind == CutStep::Kind::kBytes) steps_.pop_back();
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
  std::vector<CutStep> steps;
  for (const KnownStep& known : rule->steps) {
    CutStep step = {.kind = CutStep::Kind::kBytes};
    if (known.pattern != nullptr) {
      absl::StatusOr<Regex> pattern = Regex::Make(known.pattern);
      EBB_CHECK(pattern.ok());  // the patterns are ours
      step = {.kind = CutStep::Kind::kSplit, .pattern = *std::move(pattern), .matches = known.matches};
    }
    steps.push_back(std::move(step));
  }
  Pretokenizer made(std::move(steps));
  made.whole_words_ = rule->whole_words;
  made.add_bos_ = rule->add_bos;
  return made;
}

Pretokenizer::Words Pretokenizer::Split(std::string_view text, Before before) const {
  Words split;
  if (!text.empty()) split.words.push_back(text);
  const auto change = [&split](const auto& changed) {
    for (std::string_view& word : split.words) word = split.memory.emplace_back(changed(word));
  };
  bool as_characters = false;
  for (const CutStep& step : steps_) {
    switch (step.kind) {
      case CutStep::Kind::kSplit:
        SplitWords(step, split.words);
        break;
      case CutStep::Kind::kReplace:
        change([&](std::string_view word) {
          return absl::StrReplaceAll(absl::string_view(word.data(), word.size()), {{" ", step.content}});
        });
        break;
      case CutStep::Kind::kPrefix: {
        const bool applies = before != Before::kText && (!step.at_start_only || before == Before::kNothing);
        if (!applies) break;
        // Where the text begins; of words that were cut before, each begins a text of its own.
        bool first = true;
        change([&](std::string_view word) {
          const bool prefix = !word.starts_with(step.content) && (first || !step.at_start_only);
          first = false;
          return prefix ? step.content + std::string(word) : std::string(word);
        });
        break;
      }
      case CutStep::Kind::kBytes:
        change(PrintableOfBytes);
        as_characters = true;
        break;
    }
  }
  if (as_characters) {
    change([](std::string_view word) { return BytesOfPrintable(word).value_or(std::string(word)); });
  }
  return split;
}

}  // namespace ebb
