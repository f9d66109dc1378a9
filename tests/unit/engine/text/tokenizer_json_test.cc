// A hub's tokenizer.json: what it says is done, what it says that is not known is refused by name and place.

#include <gmock/gmock.h>

#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/model/architecture.h"
#include "engine/model/hub_model.h"
#include "engine/text/tokenizer.h"
#include "policies/status.h"
#include "tests/support/hub_folder.h"
#include "tests/support/sample_vocabulary.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json BpeJson() { return SampleTokenizerJson(SampleBpe("gpt-2", {{"h", "e"}, {" ", "he"}, {"l", "l"}})); }
Json UnigramJson() { return SampleTokenizerJson(SampleSpm({"\xE2\x96\x81", "h", "e", "\xE2\x96\x81he", "he"})); }

class Folder {
 public:
  Folder& With(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path() + "/" + name, std::ios::binary) << text;
    return *this;
  }
  absl::StatusOr<std::unique_ptr<const Tokenizer>> Open() const { return Tokenizer::Open(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

std::unique_ptr<const Tokenizer> Opened(const Json& tokenizer, const Json& config = Json::object()) {
  Folder folder;
  folder.With("tokenizer.json", tokenizer.dump()).With("tokenizer_config.json", config.dump());
  auto opened = folder.Open();
  EXPECT_THAT(opened, IsOk());
  return opened.ok() ? *std::move(opened) : nullptr;
}

std::vector<int32_t> Trusted(const Tokenizer& tokenizer, const std::string& text) {
  return tokenizer.Encode(text, Special::kParse, Start::kText);
}

TEST(TokenizerJson, CutsAndJoinsAsItSays) {
  const auto bpe = Opened(BpeJson());
  ASSERT_NE(bpe, nullptr);
  EXPECT_THAT(bpe->Encode("he hell\xFF"), ElementsAre(256, 257, 258, 0xFF));
  EXPECT_EQ(bpe->Decode(bpe->Encode("he hell\xFF")), "he hell\xFF");
  EXPECT_FALSE(bpe->adds_bos());
  const auto unigram = Opened(UnigramJson());
  ASSERT_NE(unigram, nullptr);
  EXPECT_THAT(unigram->Encode("he he"), ElementsAre(262, 262));
  EXPECT_THAT(unigram->Encode("he", Special::kPlain, Start::kContinuation), ElementsAre(260, 261));  // -1 - 2 > -4
  EXPECT_THAT(unigram->Encode("h\xFF", Special::kPlain, Start::kContinuation), ElementsAre(260, 3 + 0xFF));
  EXPECT_TRUE(unigram->adds_space());
}

TEST(TokenizerJson, TheTokensItAddsAreFoundAsTheySay) {
  Json json = BpeJson();
  json["normalizer"] = {{"type", "Lowercase"}};
  const int32_t first = 262;
  const auto add = [&](const char* text, const Json& flags) {
    Json token = {{"id", first + static_cast<int32_t>(json["added_tokens"].size()) - 3}, {"content", text}};
    token.update(flags);
    json["added_tokens"].push_back(token);
  };
  add("<L>", {{"lstrip", true}});
  add("<R>", {{"rstrip", true}});
  add("word", {{"single_word", true}});
  add("Low", {{"normalized", true}});
  add("<S>", {{"special", true}});
  const auto tokenizer = Opened(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("a \t<L> b"), ElementsAre('a', first, ' ', 'b'));
  EXPECT_THAT(tokenizer->Encode("a <R> \n b"), ElementsAre('a', ' ', first + 1, 'b'));
  EXPECT_THAT(tokenizer->Encode("word"), ElementsAre(first + 2));
  EXPECT_THAT(tokenizer->Encode("swords"), ElementsAre('s', 'w', 'o', 'r', 'd', 's'));
  EXPECT_THAT(tokenizer->Encode("loW"), ElementsAre(first + 3));
  EXPECT_THAT(Trusted(*tokenizer, "<S>"), ElementsAre(first + 4));
  EXPECT_THAT(tokenizer->Encode("<S>"), ElementsAre('<', 's', '>'));  // plain text makes no control token
}

TEST(TokenizerJson, OfNamesThatBecomeAlikeTheLowestIsMeant) {
  Json json = BpeJson();
  json["normalizer"] = {{"type", "Lowercase"}};
  int32_t id = 262;
  for (const char* text : {"LOW", "Low", "lOw", "loW", "LOw", "lOW", "LoW", "low"}) {
    json["added_tokens"].push_back({{"id", id++}, {"content", text}, {"normalized", true}});
  }
  const auto tokenizer = Opened(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("lOw"), ElementsAre(262));
}

// BPE of characters; there is no more to say of it.
Json CharactersJson(const Json& vocab, const Json& merges) {
  return {{"added_tokens", Json::array()},
          {"model", {{"type", "BPE"}, {"unk_token", "?"}, {"fuse_unk", true}, {"vocab", vocab}, {"merges", merges}}}};
}

TEST(TokenizerJson, UnknownCharactersInARowAreOneWhereItSaysSo) {
  const auto tokenizer = Opened(CharactersJson({{"?", 0}, {"a", 1}, {"xy", 2}}, Json::array()));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("ayxa"), ElementsAre(1, 0, 1));  // in the text of a token, and no tokens themselves
  EXPECT_THAT(tokenizer->Encode("zza"), ElementsAre(0, 1));
}

TEST(TokenizerJson, TheCharacterZeroIsOneLikeOthers) {
  const std::string zero(1, '\0');
  const auto tokenizer = Opened(CharactersJson({{"?", 0}, {"a", 1}, {zero, 2}, {zero + "a", 3}, {"a" + zero, 4}},
                                               Json::array({Json::array({zero, "a"})})));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("a" + zero + "a" + zero), ElementsAre(1, 3, 2));
}

Json OnlyBytes() { return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}; }
Json Cuts(const Json& first) { return {{"type", "Sequence"}, {"pretokenizers", Json::array({first, OnlyBytes()})}}; }

// However far PCRE2 follows a word, all of it is encoded.
TEST(TokenizerJson, ALongWordIsNotDropped) {
  Json json = BpeJson();
  json["pre_tokenizer"] =
      Cuts({{"type", "Split"}, {"pattern", {{"Regex", "(?:a|bc)+"}}}, {"behavior", "Removed"}, {"invert", true}});
  const auto tokenizer = Opened(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("xabcx"), ElementsAre('a', 'b', 'c'));
  for (const size_t letters : {size_t{5000}, size_t{1000000}}) {
    EXPECT_EQ(tokenizer->Encode(std::string(letters, 'a')).size(), letters);
  }
}

TEST(TokenizerJson, WhitespaceKeepsLettersInCirclesApartFromSymbols) {
  Json json = SampleTokenizerJson(SampleBpe("gpt-2", {{"-", "\xE2"}}));
  json["pre_tokenizer"] = Cuts({{"type", "Whitespace"}});
  const auto tokenizer = Opened(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("-\xE2\x92\xB6"), ElementsAre('-', 0xE2, 0x92, 0xB6));
  EXPECT_THAT(tokenizer->Encode("-\xE2\x97\x8B"), ElementsAre(256, 0x97, 0x8B));  // a circle
}

TEST(TokenizerJson, ANameThatIsNoUtf8IsRefused) {
  Vocabulary vocabulary = SampleBpe("gpt-2", {});
  vocabulary.tokens[0] = "\xFF";
  vocabulary.types[0] = static_cast<int32_t>(TokenType::kUserDefined);
  vocabulary.rules = Json({{"added_tokens", Json::array({{{"id", 0}, {"content", "x"}, {"normalized", true}}})},
                           {"normalizer", {{"type", "NFC"}}},
                           {"pre_tokenizer", OnlyBytes()},
                           {"decoder", OnlyBytes()},
                           {"model", {{"type", "BPE"}}}})
                         .dump();
  const auto made = Tokenizer::Make(vocabulary);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(GetRefusal(made.status()).reason, "MODEL_DAMAGED");
  EXPECT_THAT(std::string(made.status().message()),
              HasSubstr("added_tokens[0].id: expected a token whose text is UTF-8"));
}

TEST(TokenizerJson, TheFilesBesideItNameEndsAndTheTemplate) {
  const auto tokenizer =
      Opened(BpeJson(), {{"bos_token", "<|begin|>"},
                         {"eos_token", {{"content", "<|end|>"}}},
                         {"add_bos_token", true},
                         {"chat_template", Json::array({{{"name", "tool_use"}, {"template", "T"}},
                                                        {{"name", "default"}, {"template", "D"}}})}});
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("h", Special::kPlain, Start::kSequence), ElementsAre(*tokenizer->bos(), 'h'));
  EXPECT_EQ(tokenizer->TokenText(*tokenizer->eos()), "<|end|>");
  EXPECT_TRUE(tokenizer->IsStop(*tokenizer->eos()));
  EXPECT_EQ(tokenizer->chat_template(), "D");
  Folder folder;
  folder.With("tokenizer.json", BpeJson().dump()).With("chat_template.jinja", "J");
  const auto with_file = folder.Open();
  ASSERT_THAT(with_file, IsOk());
  EXPECT_EQ((*with_file)->chat_template(), "J");
}

TEST(TokenizerJson, ATemplateProcessorPutsItsTokenBeforeASequence) {
  Json json = BpeJson();
  const Json text = {{"Sequence", {{"id", "A"}}}};
  const auto special = [](const char* name) { return Json{{"SpecialToken", {{"id", name}}}}; };
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", Json::array({special("B"), text, special("E")})},
                            {"special_tokens", {{"B", {{"ids", {259}}}}, {"E", {{"ids", {260}}}}}}};
  const auto tokenizer = Opened(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("h", Special::kPlain, Start::kSequence), ElementsAre(259, 'h'));
  EXPECT_EQ(tokenizer->bos(), 259);
}

TEST(TokenizerJson, WhatIsNotKnownIsRefusedByNameAndPlace) {
  struct Case {
    std::function<void(Json&)> change;
    std::string reason, place;
  };
  const std::string unsupported = "UNSUPPORTED_TOKENIZER";
  const std::string damaged = "MODEL_DAMAGED";
  const std::vector<Case> cases = {
      {[](Json& j) { j["model"]["type"] = "WordPiece"; }, unsupported, "model.type: \"WordPiece\""},
      {[](Json& j) { j["model"]["dropout"] = 0.1; }, unsupported, "model.dropout: 0.1"},
      {[](Json& j) { j["model"]["new_thing"] = 1; }, unsupported, "model.new_thing"},
      {[](Json& j) { j["model"]["vocab"]["x"] = -1; }, damaged, "model.vocab.x"},
      {[](Json& j) { j["model"]["vocab"]["x"] = 1 << 30; }, damaged, "model.vocab.x"},
      {[](Json& j) { j["model"]["vocab"]["x y"] = 3; }, damaged, "model.vocab."},
      {[](Json& j) { j["model"]["merges"][1] = Json::array({"h"}); }, damaged, "model.merges[1]"},
      {[](Json& j) { j["model"]["merges"][1] = "h nothing"; }, damaged, "merge 1"},
      {[](Json& j) { j["model"]["vocab"].erase("a"); }, damaged, "0x61"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Nmt"}};
       },
       unsupported, "normalizer.type: \"Nmt\""},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({{{"type", "Bert"}}})}};
       },
       unsupported, "pre_tokenizer.pretokenizers[0].type: \"Bert\""},
      {[](Json& j) { j["pre_tokenizer"]["type"] = 3; }, damaged, "pre_tokenizer.type"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "a\\b"}}}, {"behavior", "Isolated"}};
       },
       unsupported, "pre_tokenizer.pattern.Regex"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Sometimes"}};
       },
       unsupported, "pre_tokenizer.behavior: \"Sometimes\""},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", std::string(33000, 'a')}}}, {"content", ""}};
       },
       unsupported, "is not known; known: a text of at most 16384 bytes"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "CharDelimiterSplit"}, {"delimiter", std::string(33000, 'a')}};
       },
       unsupported, "pre_tokenizer.delimiter"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", std::string(33000, 'a')}};
       },
       unsupported, "pre_tokenizer.replacement"},
      {[](Json& j) {
         j["decoder"] = {{"type", "CTC"}};
       },
       unsupported, "decoder.type: \"CTC\""},
      {[](Json& j) { j["decoder"] = nullptr; }, unsupported, "decoder"},
      {[](Json& j) {
         j["post_processor"] = {{"type", "Other"}};
       },
       unsupported, "post_processor.type"},
      {[](Json& j) { j["added_tokens"][0]["lstrip"] = 1; }, damaged, "added_tokens[0].lstrip"},
      {[](Json& j) { j["added_tokens"][1]["id"] = 5; }, damaged, "added_tokens[1]"},
      {[](Json& j) { j["added_tokens"] = 1; }, damaged, "added_tokens"},
      {[](Json& j) { j["extra"] = 1; }, unsupported, "extra"},
  };
  for (const Case& c : cases) {
    Json json = BpeJson();
    c.change(json);
    SCOPED_TRACE(c.place);
    Folder folder;
    folder.With("tokenizer.json", json.dump());
    const auto opened = folder.Open();
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(GetRefusal(opened.status()).reason, c.reason) << opened.status();
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(c.place));
  }
}

TEST(TokenizerJson, ACutFileIsOneErrorThatNamesIt) {
  const std::string whole = UnigramJson().dump();
  for (size_t size = 0; size < whole.size(); size += 1 + size / 50) {
    Folder folder;
    folder.With("tokenizer.json", whole.substr(0, size));
    const auto opened = folder.Open();
    ASSERT_FALSE(opened.ok()) << size;
    EXPECT_EQ(GetRefusal(opened.status()).reason, "MODEL_DAMAGED");
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr("/tokenizer.json: "));
  }
}

TEST(TokenizerJson, AModelsFolderBringsItsTokenizerWithARowForEachToken) {
  HubFolder hub;
  hub.config["vocab_size"] = 5;
  hub.config["eos_token_id"] = 3;
  const Json json = {{"added_tokens", Json::array({{{"id", 3}, {"content", "</s>"}, {"special", true}}})},
                     {"model",
                      {{"type", "BPE"},
                       {"unk_token", "?"},
                       {"vocab", {{"?", 0}, {"a", 1}, {"aa", 2}}},
                       {"merges", Json::array({"a a"})}}}};
  const std::string text = json.dump();
  const auto bytes = std::as_bytes(std::span(text));
  hub.files["tokenizer.json"] = {bytes.begin(), bytes.end()};
  hub.Finish();
  const auto file = ReadHubModel("m", [&](const std::string& name) { return hub.Read(name); });
  ASSERT_THAT(file, IsOk());
  ASSERT_THAT(ReadConfig(*file), IsOk());
  const auto tokenizer = Tokenizer::FromGguf(*file);
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ((*tokenizer)->size(), 5);
  EXPECT_THAT((*tokenizer)->Encode("aaab"), ElementsAre(2, 1, 0));
  EXPECT_TRUE((*tokenizer)->IsStop(3));  // config.json's

  hub.config["vocab_size"] = 3;
  hub.files.erase("config.json");
  hub.Finish();
  const auto small = ReadHubModel("m", [&](const std::string& name) { return hub.Read(name); });
  EXPECT_EQ(GetRefusal(small.status()).reason, "MODEL_DAMAGED");
  EXPECT_THAT(std::string(small.status().message()), HasSubstr("m/tokenizer.json: added_tokens: expected ids below"));
}

TEST(TokenizerJson, AFolderWithoutItIsNoTokenizer) {
  const Folder folder;
  EXPECT_EQ(folder.Open().status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ebb
