#include "engine/lab/planted.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/hash_random.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

constexpr const char* kNames[] = {"Clara", "Harold", "Edith", "Walter", "Agnes", "Philip", "Martha", "Arthur"};

using Tokens = std::vector<int32_t>;

void Append(Tokens& to, std::span<const int32_t> tokens) { to.insert(to.end(), tokens.begin(), tokens.end()); }

// Where a sentence ends in the stretch: a piece that ends with a full stop, before one that begins with white space.
std::vector<size_t> SentenceEnds(const Tokenizer& tokenizer, std::span<const int32_t> stretch) {
  std::vector<size_t> ends;
  for (size_t i = 0; i + 1 < stretch.size(); ++i) {
    const std::string_view piece = tokenizer.Piece(stretch[i]);
    const std::string_view next = tokenizer.Piece(stretch[i + 1]);
    if (piece.ends_with('.') && (next.starts_with(' ') || next.starts_with('\n'))) ends.push_back(i + 1);
  }
  return ends;
}

struct Fact {
  Tokens line = {};
  size_t at = 0;  // tokens of the stretch before it
};

// One prompt before the text is laid around the facts.
struct Draft {
  std::vector<Fact> facts = {};  // the asked one first
  Tokens question = {};
  Tokens answer = {};

  size_t size() const {
    size_t size = question.size();
    for (const Fact& fact : facts) size += fact.line.size();
    return size;
  }
};

Draft Drafted(const Tokenizer& tokenizer, const Planted& planted, HashRandom& random) {
  std::vector<std::string> names(std::begin(kNames), std::end(kNames));
  Draft draft;
  for (int32_t i = 0; i <= planted.distractors; ++i) {
    const auto pick = static_cast<size_t>(random.Uniform(i, static_cast<int32_t>(names.size()) - 1));
    std::swap(names[static_cast<size_t>(i)], names[pick]);
    const std::string key = absl::StrFormat("%05d", random.Uniform(0, 99999));
    const std::string& name = names[static_cast<size_t>(i)];
    draft.facts.push_back({.line = tokenizer.Encode(absl::StrFormat(" The passkey of %s is %s.", name, key))});
    if (i > 0) continue;
    draft.question =
        tokenizer.Encode(absl::StrFormat("\n\nWhat is the passkey of %s? The passkey of %s is", name, name));
    draft.answer = tokenizer.Encode(" " + key);
  }
  return draft;
}

}  // namespace

absl::StatusOr<std::vector<Prompt>> PlantPasskeys(const Tokenizer& tokenizer, const std::string& text,
                                                  const Planted& planted) {
  const Tokens haystack = tokenizer.Encode(text);
  Tokens begin;
  if (tokenizer.adds_bos() && tokenizer.bos()) begin.push_back(*tokenizer.bos());
  std::vector<Prompt> prompts;
  for (int32_t i = 0; i < planted.prompts; ++i) {
    HashRandom random(static_cast<uint64_t>(planted.seed), static_cast<uint64_t>(i));
    Draft draft = Drafted(tokenizer, planted, random);
    const auto length = static_cast<size_t>(planted.length);
    const size_t taken = begin.size() + draft.size();
    if (taken >= length) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--length: %d tokens; facts and question alone take %d", planted.length, taken));
    }
    const size_t fill = length - taken;
    if (haystack.size() < length * static_cast<size_t>(planted.prompts)) {
      return absl::InvalidArgumentError(absl::StrFormat("the text has %d tokens, but %d prompts of %d need %d",
                                                        haystack.size(), planted.prompts, length,
                                                        length * static_cast<size_t>(planted.prompts)));
    }
    const std::span<const int32_t> stretch = std::span(haystack).subspan(static_cast<size_t>(i) * length, fill);
    const std::vector<size_t> ends = SentenceEnds(tokenizer, stretch);
    if (ends.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat("no sentence ends in %d tokens of the text", fill));
    }
    const double wanted = planted.depth * static_cast<double>(ends.back());
    draft.facts[0].at =
        *std::ranges::min_element(ends, {}, [&](size_t end) { return std::abs(static_cast<double>(end) - wanted); });
    for (size_t f = 1; f < draft.facts.size(); ++f) {
      draft.facts[f].at = ends[static_cast<size_t>(random.Uniform(0, static_cast<int32_t>(ends.size()) - 1))];
    }
    std::ranges::stable_sort(draft.facts, {}, &Fact::at);
    Prompt& prompt = prompts.emplace_back(Prompt{.tokens = begin, .answer = draft.answer});
    size_t at = 0;
    for (const Fact& fact : draft.facts) {
      Append(prompt.tokens, stretch.subspan(at, fact.at - at));
      Append(prompt.tokens, fact.line);
      at = fact.at;
    }
    Append(prompt.tokens, stretch.subspan(at));
    Append(prompt.tokens, draft.question);
  }
  return prompts;
}

}  // namespace ebb::lab
