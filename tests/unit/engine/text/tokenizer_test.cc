#include "engine/text/tokenizer.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>
#include <vector>

#include "engine/text/byte_alphabet.h"
#include "engine/text/merge.h"
#include "policies/hash_random.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/sample_vocabulary.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Vocabulary Bpe(const std::string& pre = "gpt-2") {
  return SampleBpe(pre, {{"l", "l"}, {"h", "e"}, {"he", "ll"}, {"hell", "o"}, {" ", "w"}, {"o", "r"}, {" w", "or"}});
}

Vocabulary Spm() { return SampleSpm({"he", "ll", "hell", "\xE2\x96\x81h", "\xE2\x96\x81", "h", "e", "l", "o"}); }

std::unique_ptr<const Tokenizer> Made(Vocabulary vocabulary) {
  auto made = Tokenizer::Make(std::move(vocabulary));
  EXPECT_THAT(made, IsOk());
  return made.ok() ? *std::move(made) : nullptr;
}

TEST(ByteAlphabet, IsTheOneThatFilesUse) {
  std::string bytes(256, '\0');
  for (int byte = 0; byte < 256; ++byte) bytes[byte] = static_cast<char>(byte);
  EXPECT_EQ(BytesOfPrintable(PrintableBytes(bytes)), bytes);
  EXPECT_EQ(BytesOfPrintable("\xC4\xA0x"), " x");             // U+0120
  EXPECT_EQ(BytesOfPrintable("\xE2\x96\x81"), std::nullopt);  // U+2581 stands for no byte
  EXPECT_EQ(BytesOfPrintable("\xC4"), std::nullopt);
}

TEST(Bpe, JoinsByRankAndNotByLength) {
  const auto tokenizer = Made(Bpe());
  // ll before he, then he+ll, then hell+o; the space belongs to the second word.
  EXPECT_THAT(tokenizer->Encode("hello world"), ElementsAre(259, 262, 'l', 'd'));
  EXPECT_THAT(tokenizer->Encode("lll"), ElementsAre(256, 'l'));  // equal ranks: leftmost first
}

TEST(Spm, JoinsByScoreAndFallsBackToBytes) {
  const auto tokenizer = Made(Spm());
  // he (score 0) before _h (score -3); the space before the text is a token of its own then.
  EXPECT_THAT(tokenizer->Encode("hello"), ElementsAre(263, 261, 267));
  EXPECT_THAT(tokenizer->Encode("h\xC3\xA9"), ElementsAre(262, 3 + 0xC3, 3 + 0xA9));
  EXPECT_THAT(tokenizer->Encode(""), IsEmpty());
}

TEST(Spm, PutsASpaceBeforeTextThatGoesOnNoOther) {
  const auto tokenizer = Made(Spm());
  EXPECT_THAT(tokenizer->Encode("o", Special::kPlain, Start::kSequence), ElementsAre(1, 263, 267));
  EXPECT_THAT(tokenizer->Encode("o", Special::kPlain, Start::kText), ElementsAre(263, 267));
  EXPECT_THAT(tokenizer->Encode("o", Special::kPlain, Start::kContinuation), ElementsAre(267));
  EXPECT_THAT(tokenizer->Encode("o</s>o", Special::kParse, Start::kContinuation), ElementsAre(267, 2, 263, 267));
  Vocabulary without = Spm();
  without.add_space_prefix = false;
  EXPECT_THAT(Made(without)->Encode("o"), ElementsAre(267));
}

TEST(Tokenizer, BeginsASequenceWhereTheModelSaysSo) {
  const auto starts = [](Vocabulary vocabulary, std::optional<bool> add_bos) {
    vocabulary.add_bos = add_bos;
    const auto tokenizer = Made(vocabulary);
    const std::vector<int32_t> ids = tokenizer->Encode("", Special::kPlain, Start::kSequence);
    EXPECT_EQ(!ids.empty(), tokenizer->adds_bos());
    EXPECT_THAT(tokenizer->Encode("", Special::kPlain, Start::kText), IsEmpty());
    return !ids.empty() && ids[0] == tokenizer->bos();
  };
  EXPECT_TRUE(starts(Spm(), {}));
  EXPECT_TRUE(starts(Bpe("llama-bpe"), {}));
  EXPECT_FALSE(starts(Bpe("gpt-2"), {}));
  EXPECT_FALSE(starts(Spm(), false));
  EXPECT_TRUE(starts(Bpe("gpt-2"), true));
}

TEST(Tokenizer, ParsesControlTokensOnlyInTrustedText) {
  const auto tokenizer = Made(Bpe());
  const int32_t end = *tokenizer->eos();
  EXPECT_THAT(tokenizer->Encode("l<|end|>l", Special::kParse), ElementsAre('l', end, 'l'));
  for (const int32_t id : tokenizer->Encode("l<|end|>l<|begin|><|user|>")) EXPECT_FALSE(tokenizer->is_control(id));

  const std::vector<Segment> mixed = {
      {"<|user|>", Special::kParse}, {"<|end|>", Special::kPlain}, {"<|end|>", Special::kParse}};
  const std::vector<int32_t> ids = tokenizer->Encode(mixed, Start::kText);
  EXPECT_EQ(ids.front(), tokenizer->FindControl("<|user|>"));
  EXPECT_EQ(ids.back(), end);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 1);
}

TEST(Tokenizer, AControlTokenMustLieInsideOneTrustedSegment) {
  const auto tokenizer = Made(Bpe());
  const std::vector<Segment> split = {
      {"<|e", Special::kParse}, {"nd|>", Special::kPlain}, {"<|us", Special::kPlain}, {"er|>", Special::kParse}};
  for (const int32_t id : tokenizer->Encode(split, Start::kText)) EXPECT_FALSE(tokenizer->is_control(id));
}

TEST(Tokenizer, SegmentsAreCutAsOneText) {
  const auto tokenizer = Made(Bpe());
  const std::vector<Segment> split = {{"hel", Special::kParse}, {"lo w", Special::kPlain}, {"orld", Special::kParse}};
  EXPECT_EQ(tokenizer->Encode(split, Start::kText), tokenizer->Encode("hello world"));
}

TEST(Tokenizer, LongerSpecialNamesWin) {
  Vocabulary vocabulary = Bpe();
  const auto first = static_cast<int32_t>(vocabulary.tokens.size());
  for (const char* name : {"<x>", "<x><y>", "z<x"}) {
    vocabulary.tokens.emplace_back(name);
    vocabulary.types.push_back(static_cast<int32_t>(TokenType::kControl));
  }
  const auto tokenizer = Made(vocabulary);
  EXPECT_THAT(tokenizer->Encode("<x><x><y>", Special::kParse), ElementsAre(first, first + 1));
  EXPECT_THAT(tokenizer->Encode("z<x><y>", Special::kParse),
              ElementsAre('z', first + 1));  // the longest, not the first
}

TEST(Tokenizer, UserDefinedTokensAreFoundInAnyText) {
  Vocabulary vocabulary = Bpe();
  const auto tab = static_cast<int32_t>(vocabulary.tokens.size());
  vocabulary.tokens.emplace_back("\t\t");
  vocabulary.types.push_back(static_cast<int32_t>(TokenType::kUserDefined));
  const auto tokenizer = Made(vocabulary);
  EXPECT_THAT(tokenizer->Encode("a\t\t\tb"), ElementsAre('a', tab, '\t', 'b'));
  EXPECT_EQ(tokenizer->Decode({{'a', tab}}), "a\t\t");
}

// A file may name a token of bytes, or of a merge, by letters that mean other text; both texts must read back.
TEST(Tokenizer, ANameThatIsAlsoMadeOfOtherBytesIsNoName) {
  Vocabulary vocabulary = SampleBpe("gpt-2", {{" ", "h"}});
  vocabulary.types[0xE0] = static_cast<int32_t>(TokenType::kUserDefined);  // its letter is "à"
  vocabulary.types[256] = static_cast<int32_t>(TokenType::kUserDefined);   // its letters are "Ġh"
  const auto other = static_cast<int32_t>(vocabulary.tokens.size());
  vocabulary.tokens.emplace_back("caf\xC3\xA9");  // no merge leads to it
  vocabulary.types.push_back(static_cast<int32_t>(TokenType::kUserDefined));
  const auto tokenizer = Made(vocabulary);
  EXPECT_THAT(tokenizer->Encode(" h"), ElementsAre(256));
  EXPECT_THAT(tokenizer->Encode("a caf\xC3\xA9"), ElementsAre('a', ' ', other));
  for (const std::string_view text : {" h", "\xC4\xA0h", "\xC3\xA0", "\xE0", "caf\xC3\xA9", "caf\xE9"}) {
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text)), text);
  }
}

TEST(Tokenizer, ANameThatIsAlsoMadeOfSpacesReadsAsSpaces) {
  Vocabulary vocabulary = SampleSpm({"\xE2\x96\x81", "\xE2\x96\x81\xE2\x96\x81", "a"});
  vocabulary.types[260] = static_cast<int32_t>(TokenType::kUserDefined);
  const auto tokenizer = Made(vocabulary);
  EXPECT_THAT(tokenizer->Encode("a  a", Special::kPlain, Start::kContinuation), ElementsAre(261, 260, 261));
  EXPECT_EQ(tokenizer->Decode({{261, 260, 261}}), "a  a");
}

TEST(Tokenizer, PlainTextNeverJoinsIntoAControlToken) {
  Vocabulary bpe = SampleBpe("llama-bpe", {{"o", "k"}});
  bpe.types[256] = static_cast<int32_t>(TokenType::kControl);
  EXPECT_THAT(Made(bpe)->Encode("ok"), ElementsAre('o', 'k'));
  Vocabulary spm = SampleSpm({"o", "k", "ok"});
  spm.types.back() = static_cast<int32_t>(TokenType::kControl);
  EXPECT_THAT(Made(spm)->Encode("ok", Special::kPlain, Start::kContinuation), ElementsAre(259, 260));
}

TEST(Tokenizer, DecodesControlTokensOnlyWhereAsked) {
  const auto tokenizer = Made(Bpe());
  const std::vector<int32_t> ids = {*tokenizer->bos(), 'o', *tokenizer->eos()};
  EXPECT_EQ(tokenizer->Decode(ids), "o");
  EXPECT_EQ(tokenizer->Decode(ids, Special::kParse), "<|begin|>o<|end|>");
  EXPECT_EQ(tokenizer->Piece(*tokenizer->bos()), "");
  EXPECT_EQ(tokenizer->TokenText(*tokenizer->bos()), "<|begin|>");
}

TEST(Tokenizer, StopsAtTheEndsThatFilesNameAndThoseOfCommonFormats) {
  Vocabulary vocabulary = Bpe();
  const auto known = static_cast<int32_t>(vocabulary.tokens.size());
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"<|im_end|>", "<|eot_id|>"});
  vocabulary.types.insert(vocabulary.types.end(), {3, 1});  // the second is no control token
  vocabulary.eot = known - 1;                               // <|user|>
  const auto tokenizer = Made(vocabulary);
  EXPECT_TRUE(tokenizer->IsStop(*tokenizer->eos()));
  EXPECT_TRUE(tokenizer->IsStop(known - 1));
  EXPECT_TRUE(tokenizer->IsStop(known));
  EXPECT_FALSE(tokenizer->IsStop(known + 1));
  EXPECT_FALSE(tokenizer->IsStop(*tokenizer->bos()));
}

TEST(Tokenizer, RefusesWhatItDoesNotKnowByName) {
  Vocabulary vocabulary = Bpe("gpt-9");
  const auto pre = Tokenizer::Make(vocabulary);
  EXPECT_THAT(pre, IsRefusal(absl::StatusCode::kFailedPrecondition, "UNKNOWN_PRE_TOKENIZER", ""));
  EXPECT_THAT(std::string(pre.status().message()), HasSubstr("'gpt-9'"));
  vocabulary.model = "rwkv";
  const auto model = Tokenizer::Make(vocabulary);
  EXPECT_THAT(model, IsRefusal(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_TOKENIZER", ""));
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("'rwkv'"));
}

TEST(Tokenizer, RefusesADamagedVocabularyNamingTheKey) {
  struct Case {
    std::string key;
    Vocabulary vocabulary;
  };
  std::vector<Case> cases;
  const auto add = [&](const std::string& key, Vocabulary vocabulary, auto break_it) {
    break_it(vocabulary);
    cases.push_back({key, std::move(vocabulary)});
  };
  add("tokens", Bpe(), [](Vocabulary& v) { v.tokens.clear(); });
  add("tokens", Bpe(), [](Vocabulary& v) { v.tokens[65] = v.tokens[66]; });
  add("tokens", Bpe(), [](Vocabulary& v) { v.tokens[65] = "no longer A"; });
  add("tokens", Bpe(), [](Vocabulary& v) { v.types[65] = 3; });
  add("tokens", Spm(), [](Vocabulary& v) { v.tokens[3] = "no byte"; });
  add("tokens", Spm(), [](Vocabulary& v) { v.types[3] = 1; });
  add("token_type", Bpe(), [](Vocabulary& v) { v.types.pop_back(); });
  add("token_type", Bpe(), [](Vocabulary& v) { v.types[7] = 7; });
  add("token_type", Bpe(), [](Vocabulary& v) { v.types[7] = 0; });
  add("scores", Spm(), [](Vocabulary& v) { v.scores.pop_back(); });
  add("scores", Spm(), [](Vocabulary& v) { v.scores.clear(); });
  add("scores", Spm(), [](Vocabulary& v) { v.scores[5] = std::numeric_limits<float>::quiet_NaN(); });
  add("merges", Bpe(), [](Vocabulary& v) { v.merges[1] = "he"; });
  add("merges", Bpe(), [](Vocabulary& v) { v.merges[1] = "h "; });
  add("merges", Bpe(), [](Vocabulary& v) { v.merges[1] = ""; });
  add("merges", Bpe(), [](Vocabulary& v) { v.merges[1] = "h zz"; });
  add("merges", Bpe(), [](Vocabulary& v) { v.merges[1] = "h h"; });
  add("bos_token_id", Bpe(), [](Vocabulary& v) { v.bos = static_cast<int32_t>(v.tokens.size()); });
  add("eos_token_id", Bpe(), [](Vocabulary& v) { v.eos = -1; });
  add("eot_token_id", Bpe(), [](Vocabulary& v) { v.eot = 100000; });
  add("eom_token_id", Bpe(), [](Vocabulary& v) { v.eom = 100000; });
  add("add_bos_token", Bpe(), [](Vocabulary& v) {
    v.add_bos = true;
    v.bos.reset();
  });
  for (const Case& c : cases) {
    const auto made = Tokenizer::Make(c.vocabulary);
    SCOPED_TRACE(std::string(made.status().message()));
    EXPECT_THAT(made, IsRefusal(absl::StatusCode::kDataLoss, "MODEL_DAMAGED", ""));
    EXPECT_THAT(std::string(made.status().message()), HasSubstr("tokenizer.ggml." + c.key + ":"));
  }
}

void WriteVocabulary(const Vocabulary& v, GgufWriter& writer) {
  writer.Add("tokenizer.ggml.model", v.model);
  writer.Add("tokenizer.ggml.pre", v.pre);
  writer.AddArray("tokenizer.ggml.tokens", v.tokens);
  writer.AddArray("tokenizer.ggml.token_type", v.types);
  writer.AddArray("tokenizer.ggml.merges", v.merges);
  writer.Add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(*v.eos));
}

TEST(Tokenizer, IsReadFromAModelFile) {
  GgufWriter writer;
  WriteVocabulary(Bpe(), writer);
  writer.Add("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(*Bpe().bos));
  writer.Add("tokenizer.ggml.add_bos_token", true);
  writer.Add("tokenizer.chat_template", std::string("{{ x }}"));
  const std::vector<std::byte> bytes = writer.Bytes();
  const auto file = GgufFile::Parse("sample.gguf", bytes);
  ASSERT_THAT(file, IsOk());
  const auto tokenizer = Tokenizer::FromGguf(*file);
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_THAT((*tokenizer)->Encode("hello", Special::kPlain, Start::kSequence), ElementsAre(*Bpe().bos, 259));
  EXPECT_EQ((*tokenizer)->chat_template(), "{{ x }}");
  EXPECT_EQ((*tokenizer)->eos(), Bpe().eos);
}

TEST(Tokenizer, NamesTheFileThatIsDamaged) {
  GgufWriter writer;
  WriteVocabulary(Bpe(), writer);
  writer.Add("tokenizer.ggml.bos_token_id", int32_t{1 << 20});
  const std::vector<std::byte> bytes = writer.Bytes();
  const auto file = GgufFile::Parse("sample.gguf", bytes);
  ASSERT_THAT(file, IsOk());
  const auto tokenizer = Tokenizer::FromGguf(*file);
  EXPECT_THAT(tokenizer, IsRefusal(absl::StatusCode::kDataLoss, "MODEL_DAMAGED", ""));
  EXPECT_THAT(std::string(tokenizer.status().message()),
              HasSubstr("sample.gguf: tokenizer.ggml.bos_token_id: expected a token in 0..265, found 1048576"));
}

std::string RandomText(HashRandom& random, bool valid) {
  constexpr std::string_view kParts[] = {"a",           "hello",   " ",        "\n",           "\r\n",
                                         "  ",          "12345",   "'s",       "'LL",          "...",
                                         "<|",          "<|end|>", "\xC3\xA9", "\xE4\xB8\xAD", "\t",
                                         "</s>",        "_",       "\xC2\x85", "\xC2\xA0",     "\xF0\x9F\x98\x80",
                                         "\xE2\x80\x8D"};
  std::string text;
  for (int32_t n = random.Uniform(0, 30); n > 0; --n) {
    if (valid || random.Uniform(0, 2) > 0) {
      text += kParts[random.Uniform(0, static_cast<int32_t>(std::size(kParts)) - 1)];
    } else {
      text += static_cast<char>(random.Uniform(0, 255));
    }
  }
  return text;
}

// Whatever the bytes: encoding loses none, makes no control token of plain text, and reads back.
TEST(Tokenizer, EncodedTextDecodesToItself) {
  const std::vector<std::unique_ptr<const Tokenizer>> tokenizers = [] {
    std::vector<std::unique_ptr<const Tokenizer>> made;
    for (const char* pre : {"gpt-2", "llama-bpe", "qwen2"}) made.push_back(Made(Bpe(pre)));
    made.push_back(Made(Spm()));
    return made;
  }();
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const std::string text = RandomText(random, seed % 2 == 0);
    for (const auto& tokenizer : tokenizers) {
      const std::vector<int32_t> ids = tokenizer->Encode(text);
      for (const int32_t id : ids) ASSERT_FALSE(tokenizer->is_control(id));
      const std::string space = tokenizer->adds_space() && !text.empty() ? " " : "";
      ASSERT_EQ(tokenizer->Decode(ids), space + text);
      ASSERT_EQ(tokenizer->Decode(tokenizer->Encode(text, Special::kPlain, Start::kContinuation)), text);
      if (tokenizer->adds_space()) continue;
      ASSERT_EQ(tokenizer->Decode(tokenizer->Encode(text, Special::kParse), Special::kParse), text);
    }
  }
}

// The heap joins exactly what looking for the best pair anew after each join would.
TEST(MergeSymbols, IsTheNaiveLoop) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const int32_t kinds = random.Uniform(2, 12);
    const auto find = [&](const Symbol& left, const Symbol& right) -> std::optional<Join> {
      const uint64_t bits = HashBits(seed, 1, left.id * 64 + right.id);
      if (bits % 3 == 0) return std::nullopt;
      return Join{.cost = static_cast<double>(bits >> 8 & 7), .id = static_cast<int32_t>(bits >> 16) & 31};
    };
    std::vector<Symbol> symbols;
    for (int32_t n = random.Uniform(0, 40); n > 0; --n) {
      symbols.push_back({.id = random.Uniform(0, kinds), .begin = static_cast<int32_t>(symbols.size()), .size = 1});
    }
    std::vector<int32_t> naive;
    for (const Symbol& symbol : symbols) naive.push_back(symbol.id);
    while (true) {
      std::optional<Join> best;
      size_t at = 0;
      for (size_t i = 0; i + 1 < naive.size(); ++i) {
        const auto join = find({.id = naive[i]}, {.id = naive[i + 1]});
        if (join && (!best || join->cost < best->cost)) {
          best = join;
          at = i;
        }
      }
      if (!best) break;
      naive[at] = best->id;
      naive.erase(naive.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
    MergeSymbols(symbols, find);
    std::vector<int32_t> merged;
    for (const Symbol& symbol : symbols) {
      if (symbol.size > 0) merged.push_back(symbol.id);
    }
    ASSERT_EQ(merged, naive);
  }
}

// A quadratic loop would need minutes for each.
TEST(Tokenizer, LongWordsAndRunsAreEncodedInOneGo) {
  constexpr size_t kBytes = 1 << 17;
  std::string broken(kBytes, '\x80');
  for (size_t i = 0; i < broken.size(); i += 2) broken[i] = 'a';
  for (const Vocabulary& vocabulary :
       {SampleBpe("llama-bpe", {{"a", "a"}, {"aa", "aa"}}), SampleSpm({"a", "aa", "aaaa", "\xE2\x96\x81"})}) {
    const auto tokenizer = Made(vocabulary);
    for (const std::string& text : {std::string(kBytes, 'a'), std::string(kBytes, ' '), std::string(kBytes, '<'),
                                    std::string(kBytes, '\xFF'), std::string(kBytes, '\n') + "x", broken}) {
      const std::vector<int32_t> ids = tokenizer->Encode(text, Special::kParse, Start::kContinuation);
      EXPECT_EQ(tokenizer->Decode(ids), text) << text.substr(0, 2);
    }
  }
}

}  // namespace
}  // namespace ebb
