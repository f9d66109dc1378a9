#include "engine/lab/calibration_texts.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/text/chat_template.h"
#include "policies/hash_random.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

constexpr std::string_view kNames[] = {"Harold", "Alice",  "Peter",  "Clara", "Edmund", "Rosa",  "Thomas", "Helen",
                                       "Arthur", "Martha", "George", "Emily", "Walter", "Agnes", "Robert", "Sophia",
                                       "Henry",  "Laura",  "Victor", "Nora",  "Samuel", "Ellen", "Hugh",   "Diana"};
constexpr int32_t kFacts = 4;          // in a document
constexpr int32_t kDigits = 5;         // of a passkey
constexpr int32_t kTurnsTokens = 128;  // room for facts, questions and answers

struct Fact {
  std::string name = {};
  std::string key = {};

  std::string Statement() const { return absl::StrFormat("The passkey of %s is %s.", name, key); }
  std::string Question() const { return absl::StrFormat("What is the passkey of %s?", name); }
};

class Writer {
 public:
  Writer(const Tokenizer& tokenizer, std::vector<int32_t> text, const CalibrationTextOptions& options)
      : tokenizer_(tokenizer), text_(std::move(text)), options_(options), random_(options.seed) {}

  std::vector<int32_t> Passage() {
    std::vector<int32_t> ids = tokenizer_.Encode("", Special::kPlain, Start::kSequence);
    std::ranges::copy(Draw(options_.window - static_cast<int32_t>(ids.size())), std::back_inserter(ids));
    return ids;
  }

  absl::StatusOr<std::vector<int32_t>> AskedAtTheEnd() {
    const std::vector<Fact> facts = Facts();
    const std::string passage = With(facts, Draw(options_.window - kTurnsTokens));
    return Dialogue({{"user", passage + "\n\n" + facts[0].Question()}, {"assistant", facts[0].Statement()}});
  }

  absl::StatusOr<std::vector<int32_t>> AskedTwice() {
    const std::vector<Fact> facts = Facts();
    const std::span<const int32_t> passage = Draw(options_.window - kTurnsTokens);
    const std::span<const int32_t> first = passage.first(passage.size() / 3);
    const std::string rest = tokenizer_.Decode(passage.subspan(first.size()));
    return Dialogue({{"user", With(facts, first) + "\n\n" + facts[0].Question()},
                     {"assistant", facts[0].Statement()},
                     {"user", rest + "\n\n" + facts[0].Question()},
                     {"assistant", facts[0].Statement()}});
  }

 private:
  // Tokens of the text in a row, from anywhere.
  std::span<const int32_t> Draw(int32_t count) {
    const int32_t last = static_cast<int32_t>(text_.size()) - count;
    return std::span(text_).subspan(static_cast<size_t>(random_.Uniform(0, last)), static_cast<size_t>(count));
  }

  // Names that differ, each with digits.
  std::vector<Fact> Facts() {
    std::vector<std::string> names(std::begin(kNames), std::end(kNames));
    std::vector<Fact> facts;
    for (int32_t i = 0; i < kFacts; ++i) {
      std::swap(names[static_cast<size_t>(i)],
                names[static_cast<size_t>(random_.Uniform(i, static_cast<int32_t>(names.size()) - 1))]);
      Fact& fact = facts.emplace_back(Fact{.name = names[static_cast<size_t>(i)]});
      for (int32_t d = 0; d < kDigits; ++d) fact.key += static_cast<char>('0' + random_.Uniform(0, 9));
    }
    return facts;
  }

  bool EndsSentence(int32_t id) const {
    std::string_view piece = tokenizer_.Piece(id);
    while (!piece.empty() && (piece.back() == '"' || piece.back() == '\'')) piece.remove_suffix(1);
    return !piece.empty() && std::string_view(".!?").find(piece.back()) != std::string_view::npos;
  }

  // The passage as text, with each fact after some sentence of it, or before the first.
  std::string With(const std::vector<Fact>& facts, std::span<const int32_t> passage) {
    std::vector<size_t> ends = {0};
    for (size_t i = 0; i < passage.size(); ++i) {
      if (EndsSentence(passage[i])) ends.push_back(i + 1);
    }
    std::vector<std::pair<size_t, size_t>> places;  // of a fact
    for (size_t i = 0; i < facts.size(); ++i) {
      places.emplace_back(ends[static_cast<size_t>(random_.Uniform(0, static_cast<int32_t>(ends.size()) - 1))], i);
    }
    std::ranges::sort(places);
    std::string text;
    size_t at = 0;
    for (const auto& [place, fact] : places) {
      text += tokenizer_.Decode(passage.subspan(at, place - at)) + " " + facts[fact].Statement();
      at = place;
    }
    return text + tokenizer_.Decode(passage.subspan(at));
  }

  // The last message is an answer.
  absl::StatusOr<std::vector<int32_t>> Dialogue(std::vector<ChatMessage> messages) const {
    const std::string answer = messages.back().content;
    messages.pop_back();
    if (tokenizer_.chat_template().empty()) {
      std::string text;
      for (const ChatMessage& message : messages) text += message.content + (message.role == "user" ? " " : "\n\n");
      return tokenizer_.Encode(text + answer, Special::kPlain, Start::kSequence);
    }
    EBB_ASSIGN(std::vector<int32_t> ids, EncodeChat(tokenizer_, messages, {}, {}));
    std::ranges::copy(tokenizer_.Encode(answer), std::back_inserter(ids));
    return ids;
  }

  const Tokenizer& tokenizer_;
  const std::vector<int32_t> text_;
  const CalibrationTextOptions options_;
  HashRandom random_;
};

}  // namespace

absl::StatusOr<std::vector<std::vector<int32_t>>> MakeCalibrationTexts(const Tokenizer& tokenizer,
                                                                       const std::string& text,
                                                                       const CalibrationTextOptions& options) {
  std::vector<int32_t> ids = tokenizer.Encode(text);
  if (ids.size() < static_cast<size_t>(options.window)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the text has %d tokens; at least %d are needed, a window", ids.size(), options.window));
  }
  Writer writer(tokenizer, std::move(ids), options);
  std::vector<std::vector<int32_t>> documents;
  for (int32_t i = 0; i < options.of_each; ++i) {
    documents.push_back(writer.Passage());
    EBB_ASSIGN(documents.emplace_back(), writer.AskedAtTheEnd());
    EBB_ASSIGN(documents.emplace_back(), writer.AskedTwice());
  }
  return documents;
}

}  // namespace ebb::lab
