// What the built-in model's card says about policies: how many prompts each solves, by the protocols of
// the script that made the card's tables (models/MODEL_CARD.md, "Eviction policies on this model").
//
//   stream   facts go by in blocks of 32 under the budget, the question comes last
//   again    all facts lie in the first third; the question is asked and answered there, and asked again at the end
//
// The card's numbers are of the BF16 weights, the file here is Q8_0 (its logits lie up to 0.23 away), so a prompt that
// hung by a hair may turn. Measured over all 50 prompts, both tasks and three policies: 0 of 300 do.

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

constexpr int32_t kBlock = 32;

Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  return Json::parse(file);
}

struct Prompt {
  std::vector<int32_t> tokens = {};
  std::vector<int32_t> answer = {};
};

std::vector<Prompt> ReadPrompts(const std::string& task) {
  std::vector<Prompt> prompts;
  const Json cases = ReadJson("models/ebb-tiny.cases.json");
  for (const Json& json : cases.at(task)) {
    prompts.push_back({json.at("prompt").get<std::vector<int32_t>>(), json.at("answer").get<std::vector<int32_t>>()});
  }
  return prompts;
}

// "1" for each prompt that the BF16 weights solved.
std::string ReadOutcomes(const std::string& task, const std::string& policy, int32_t budget) {
  const Json outcomes = ReadJson("models/ebb-tiny.outcomes.json");
  for (const Json& row : outcomes) {
    if (row.at("task") == task && row.at("policy") == policy && (budget == 0 || row.at("budget") == budget)) {
      return row.at("right");
    }
  }
  ADD_FAILURE() << "no outcome of " << task << " under " << policy;
  return {};
}

class Card : public testing::Test {
 protected:
  bool Solves(const PolicySpec& spec, const Prompt& prompt) {
    const auto session = OpenTestSession(*engine_, spec, kBlock);
    std::vector<float> logits;
    for (size_t first = 0; first < prompt.tokens.size(); first += kBlock) {
      const size_t count = std::min<size_t>(kBlock, prompt.tokens.size() - first);
      const bool last = first + count == prompt.tokens.size();
      logits =
          Step(*engine_, *session, std::span(prompt.tokens).subspan(first, count), last ? Want::kLast : Want::kNone);
    }
    return Greedy(*engine_, *session, logits, static_cast<int32_t>(prompt.answer.size())) == prompt.answer;
  }

  // Every third prompt: the depths of the facts spread from start to end.
  void ExpectOutcomes(const std::string& task, const PolicySpec& spec) {
    const std::vector<Prompt> prompts = ReadPrompts(task == "stream" ? "passkey" : task);
    const std::string card = ReadOutcomes(task, spec.scorer, spec.scorer == "full" ? 0 : *spec.budget);
    ASSERT_EQ(prompts.size(), card.size());
    std::string ours;
    std::string theirs;
    int differ = 0;
    for (size_t i = 0; i < prompts.size(); i += 3) {
      ours += Solves(spec, prompts[i]) ? '1' : '0';
      theirs += card[i];
      differ += ours.back() != theirs.back() ? 1 : 0;
    }
    std::cout << task << " under " << spec.scorer << ": " << ours << ", on the card " << theirs << "\n";
    EXPECT_LE(differ, 1);
  }

  // The mean loss over the second halves of the card's windows of book text, in nats.
  double Loss(const PolicySpec& spec) {
    const Json cases = ReadJson("models/ebb-tiny.cases.json");
    const auto vocab = static_cast<size_t>(engine_->config().vocab);
    double loss = 0;
    size_t counted = 0;
    for (const Json& window : cases.at("windows")) {
      const auto tokens = window.get<std::vector<int32_t>>();
      const auto session = OpenTestSession(*engine_, spec, kBlock);
      const std::vector<float> logits = Feed(*engine_, *session, tokens, kBlock);
      for (size_t next = tokens.size() / 2; next < tokens.size(); ++next, ++counted) {
        loss -= LogProbability(std::span(logits).subspan((next - 1) * vocab, vocab), tokens[next]);
      }
    }
    return loss / static_cast<double>(counted);
  }

  void ExpectLoss(const PolicySpec& spec, const std::string& positions) {
    const Json rows = ReadJson("models/ebb-tiny.eviction.json");
    for (const Json& row : rows) {
      if (row.at("task") != "text" || row.at("policy") != spec.scorer || row.at("positions") != positions) continue;
      if (spec.scorer != "full" && row.at("budget") != *spec.budget) continue;
      const double loss = Loss(spec);
      std::cout << "loss under " << spec.scorer << ": " << loss << ", on the card " << row.at("loss") << "\n";
      // 4096 tokens; Q8_0 moves single logits by hundredths and their mean by far less.
      EXPECT_NEAR(loss, row.at("loss").get<double>(), 0.002);
      return;
    }
    ADD_FAILURE() << "no loss under " << spec.scorer << " on the card";
  }

  std::unique_ptr<Engine> engine_ = OpenTestEngine("models/ebb-tiny-q8_0.gguf", {.threads = 2});
};

PolicySpec Kept(const std::string& scorer, int32_t budget) {
  return {.scorer = scorer, .budget = budget, .positions = Positions::kOriginal, .kv_type = KvType::kF32};
}

TEST_F(Card, FullRecallsAcrossTheWholePrompt) {
  ExpectOutcomes("stream", Kept("full", 964));
  ExpectOutcomes("again", Kept("full", 964));
}

TEST_F(Card, StreamingRecallsWhatItsWindowHolds) {
  ExpectOutcomes("stream", Kept("streaming", 256));
  ExpectOutcomes("again", Kept("streaming", 256));
}

TEST_F(Card, H2oRecallsWhatWasAskedBefore) {
  ExpectOutcomes("stream", Kept("h2o", 256));
  ExpectOutcomes("again", Kept("h2o", 256));
}

TEST_F(Card, BookTextCostsWhatTheTableSays) {
  ExpectLoss(Kept("full", 1024), "kept");
  ExpectLoss(Kept("h2o", 256), "kept");
  PolicySpec closed_up = Kept("streaming", 256);
  closed_up.positions = Positions::kCompacted;
  ExpectLoss(closed_up, "closed");
}

}  // namespace
}  // namespace ebb
