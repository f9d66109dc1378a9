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
// Letters that have cases, as Unicode had them when this was written; ':' to '~' has those of ASCII once more.
constexpr KnownStep kDeepseekLlm[] = {
    {R"([\r\n])"},
    {"\\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF"
     "\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5"
     "\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF"
     "\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57"
     "\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3"
     "\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124"
     "\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B"
     "\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E"
     "\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F"
     "\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2"
     "\U000118A0-\U000118DF\U0001E900-\U0001E943]+"},
    {"\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+"},
    {R"(\s+$)"},
    {"[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"},
    {kDigitPattern}};
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
    {.name = "deepseek-llm", .steps = kDeepseekLlm},
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
