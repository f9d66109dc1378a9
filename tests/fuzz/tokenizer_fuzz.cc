// Any bytes as a vocabulary and a text. What Make accepts must encode every text without losing a byte, make no control
// token of plain text, and stream what it decodes in whole characters.
//
// The first byte picks the vocabulary: 0..2 byte-level BPE with the rule of GPT-2, Llama 3, Qwen 2; 3 SPM; the rest is
// the text. With 4 (BPE) or 5 (SPM) lines up to an empty one change the vocabulary first, each a letter and a value:
//   tNtext  a token of type N      mleft right  a merge      pname  the rule      b, e, o number  bos, eos, eot
//   s       one token fewer        c  no begin token         x  no space before the text

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "engine/text/utf8_stream.h"
#include "policies/check.h"
#include "tests/support/sample_vocabulary.h"

namespace ebb {
namespace {

Vocabulary Bpe(const char* pre) {
  return SampleBpe(pre,
                   {{"l", "l"}, {"h", "e"}, {"he", "ll"}, {"hell", "o"}, {" ", "w"}, {" ", " "}, {"\xC3", "\xA9"}});
}

Vocabulary Spm() {
  return SampleSpm(
      {"he", "ll", "hell", "\xE2\x96\x81h", "\xE2\x96\x81", "\xE2\x96\x81\xE2\x96\x81", "h", "e", "l", "\n"});
}

std::unique_ptr<const Tokenizer> Fixed(Vocabulary vocabulary) {
  auto made = Tokenizer::Make(std::move(vocabulary));
  EBB_CHECK(made.ok());
  return *std::move(made);
}

int32_t Number(std::string_view text) {
  int32_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

void Change(std::string_view line, Vocabulary& vocabulary) {
  const std::string_view value = line.substr(1);
  switch (line[0]) {
    case 't':
      if (value.empty()) return;
      vocabulary.types.push_back(value[0] - '0');
      vocabulary.tokens.emplace_back(value.substr(1));
      if (!vocabulary.scores.empty()) vocabulary.scores.push_back(-static_cast<float>(vocabulary.tokens.size() % 16));
      return;
    case 'm':
      vocabulary.merges.emplace_back(value);
      return;
    case 'p':
      vocabulary.pre = value;
      return;
    case 'b':
      vocabulary.bos = Number(value);
      return;
    case 'e':
      vocabulary.eos = Number(value);
      return;
    case 'o':
      vocabulary.eot = Number(value);
      return;
    case 's':
      vocabulary.tokens.pop_back();
      vocabulary.types.pop_back();
      if (!vocabulary.scores.empty()) vocabulary.scores.pop_back();
      return;
    case 'c':
      vocabulary.add_bos = false;
      return;
    case 'x':
      vocabulary.add_space_prefix = false;
      return;
    default:
      return;
  }
}

Vocabulary Changed(Vocabulary vocabulary, std::string_view& rest) {
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty() || vocabulary.tokens.size() < 2) break;
    Change(line, vocabulary);
  }
  return vocabulary;
}

void CheckStream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Utf8Stream stream;
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string delta = stream.Add(tokenizer.Piece(id));
    EBB_CHECK(ValidUtf8Size(delta) == delta.size());
    streamed += delta;
  }
  streamed += stream.Flush();
  EBB_CHECK(streamed == SanitisedUtf8(tokenizer.Decode(ids)));
}

// What SPM promises to read back: it cannot tell a literal U+2581 from a space, a change may have taken its token for
// one, and it puts a space after special tokens.
bool ReadsBack(const Tokenizer& tokenizer, std::string_view text, bool changed) {
  const bool any_space = text.find(' ') != std::string_view::npos;
  const std::vector<int32_t> space = tokenizer.Encode(" ", Special::kPlain, Start::kContinuation);
  return text.find("\xE2\x96\x81") == std::string_view::npos && !(any_space && tokenizer.Decode(space) != " ") &&
         !(changed && tokenizer.adds_space());
}

void CheckText(const Tokenizer& tokenizer, std::string_view text, bool changed) {
  const std::vector<int32_t> plain = tokenizer.Encode(text, Special::kPlain, Start::kContinuation);
  for (const int32_t id : plain) EBB_CHECK(!tokenizer.is_control(id));
  CheckStream(tokenizer, plain);
  for (const Start start : {Start::kSequence, Start::kText, Start::kContinuation}) {
    for (const int32_t id : tokenizer.Encode(text, Special::kParse, start)) EBB_CHECK(id < tokenizer.size());
  }
  if (ReadsBack(tokenizer, text, changed)) EBB_CHECK(tokenizer.Decode(plain) == text);
}

void Run(std::string_view input) {
  static const std::vector<std::unique_ptr<const Tokenizer>> fixed = [] {
    std::vector<std::unique_ptr<const Tokenizer>> made;
    for (const char* pre : {"gpt-2", "llama-bpe", "qwen2"}) made.push_back(Fixed(Bpe(pre)));
    made.push_back(Fixed(Spm()));
    return made;
  }();
  if (input.empty()) return;
  const auto pick = static_cast<size_t>(input[0] - '0');
  std::string_view rest = input.substr(1);
  if (pick < fixed.size()) {
    CheckText(*fixed[pick], rest, false);
  } else {
    const auto made = Tokenizer::Make(Changed(pick == 4 ? Bpe("gpt-2") : Spm(), rest));
    if (made.ok()) CheckText(**made, rest, true);
  }
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::Run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
