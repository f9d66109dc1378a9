// Same session, same tokens: alone or in company, with any number of threads, in any blocks while nothing is evicted.

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "policies/registry.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

constexpr int32_t kPrompt = 60;
constexpr int32_t kAnswer = 60;
constexpr int32_t kLargestBlock = 16;

// A session with its sampler, fed a block of its prompt or its own last token at each turn.
struct Talker {
  std::unique_ptr<Session> session = {};
  std::vector<int32_t> prompt = {};
  SamplingOptions sampling = {};
  size_t fed = 0;
  std::vector<int32_t> answer = {};
  std::vector<float> logits = {};  // of every sampled row

  std::span<const int32_t> Next() const {
    if (fed < prompt.size()) {
      return std::span(prompt).subspan(fed, std::min<size_t>(kLargestBlock, prompt.size() - fed));
    }
    return {&answer.back(), 1};
  }
  bool done() const { return answer.size() == kAnswer; }
};

Talker MakeTalker(Engine& engine, const PolicySpec& spec, uint64_t seed) {
  return {.session = OpenTestSession(engine, spec, kLargestBlock),
          .prompt = RandomTokens(seed, kPrompt, engine.config().vocab),
          .sampling = {.temperature = 0.9F, .top_p = 0.95F, .seed = seed}};
}

// Runs the talkers until each has its answer; `late` of them join only after that many steps.
void Talk(Engine& engine, std::vector<Talker*> talkers, size_t joins_per_step) {
  Sampler sampler(engine.config().vocab);
  size_t joined = 0;
  while (std::ranges::any_of(talkers, [](const Talker* t) { return !t->done(); })) {
    joined = std::min(talkers.size(), joined + joins_per_step);
    std::vector<BatchRow> rows;
    std::vector<Talker*> in_step;
    for (size_t i = 0; i < joined; ++i) {
      if (talkers[i]->done()) continue;
      rows.push_back({.session = talkers[i]->session.get(), .tokens = talkers[i]->Next(), .want = Want::kLast});
      in_step.push_back(talkers[i]);
    }
    engine.Run(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      Talker& t = *in_step[i];
      if (t.fed < t.prompt.size()) t.fed += rows[i].tokens.size();
      if (t.fed < t.prompt.size()) continue;
      t.logits.insert(t.logits.end(), rows[i].logits.begin(), rows[i].logits.end());
      t.answer.push_back(sampler.Draw(t.sampling, rows[i].logits, t.session->log()).token);
    }
  }
}

PolicySpec Policy(const ScorerRow& row) {
  return {
      .scorer = std::string(row.name), .budget = row.evicts ? 40 : kPrompt + kAnswer, .schedule = Schedule::kEveryStep};
}

class SessionDeterminism : public testing::Test {
 protected:
  Talker Alone(const PolicySpec& spec, const TestEngineOptions& options) {
    const auto engine = OpenTestEngine(file_.path(), options);
    Talker talker = MakeTalker(*engine, spec, 1);
    Talk(*engine, {&talker}, 1);
    talker.session.reset();
    return talker;
  }

  // Wide enough that work is split: ops do small products on one thread.
  TinyModelFile file_ = TinyModelFile({.dim = 256, .heads = 8, .kv_heads = 4, .head_dim = 32, .ffn_dim = 512});
};

TEST_F(SessionDeterminism, ASessionIsTheSameBesideFifteenOthers) {
  for (const ScorerRow& row : ScorerRegistry()) {
    SCOPED_TRACE(row.name);
    const Talker alone = Alone(Policy(row), {.threads = 1});
    const auto engine = OpenTestEngine(file_.path(), {.threads = 2});
    // Others of every policy; ours joins in the middle, so that its slots, pages and place in the batch differ.
    std::vector<Talker> others;
    for (uint64_t i = 0; i < 15; ++i) {
      const auto& rows = ScorerRegistry();
      others.push_back(MakeTalker(*engine, Policy(rows[i % rows.size()]), 100 + i));
    }
    Talker ours = MakeTalker(*engine, Policy(row), 1);
    std::vector<Talker*> all;
    for (Talker& other : others) all.push_back(&other);
    all.insert(all.begin() + 7, &ours);
    Talk(*engine, all, 2);
    EXPECT_EQ(ours.answer, alone.answer);
    EXPECT_EQ(LargestDifference(ours.logits, alone.logits), 0);
  }
}

// With more threads than a layer has lanes, who leaves is chosen at the end of a step instead of lane by lane.
TEST_F(SessionDeterminism, ASessionIsTheSameWithAnyNumberOfThreads) {
  for (const ScorerRow& row : ScorerRegistry()) {
    for (const Modifier modifier : {Modifier::kNone, Modifier::kCaote}) {
      if (modifier != Modifier::kNone && !row.non_negative) continue;
      PolicySpec spec = Policy(row);
      spec.modifier = modifier;
      SCOPED_TRACE(row.name);
      const Talker one = Alone(spec, {.threads = 1});
      for (const int32_t threads : {2, 5}) {
        const Talker several = Alone(spec, {.threads = threads});
        EXPECT_EQ(one.answer, several.answer);
        EXPECT_EQ(LargestDifference(one.logits, several.logits), 0);
      }
    }
  }
}

TEST_F(SessionDeterminism, ASessionIsTheSameOnEveryInstructionSetHere) {
  for (const KvType type : {KvType::kF32, KvType::kInt8, KvType::kFp8}) {
    const PolicySpec spec = {.scorer = "h2o", .budget = 40, .kv_type = type};
    const Talker scalar = Alone(spec, {.isa = "scalar"});
    for (const std::string isa : {"avx2", "avx512"}) {
      const auto engine = Engine::Open({.model_path = file_.path(), .threads = 1, .arena_bytes = 1 << 20, .isa = isa});
      if (!engine.ok()) continue;  // this CPU lacks it
      const Talker other = Alone(spec, {.isa = isa});
      EXPECT_EQ(other.answer, scalar.answer) << isa;
      EXPECT_EQ(LargestDifference(other.logits, scalar.logits), 0) << isa;
    }
  }
}

TEST_F(SessionDeterminism, WhileNothingIsEvictedAnyBlockSizeGivesTheSameBits) {
  const auto engine = OpenTestEngine(file_.path(), {.threads = 2});
  const std::vector<int32_t> tokens = RandomTokens(4, 150, engine->config().vocab);
  for (const ScorerRow& row : ScorerRegistry()) {
    SCOPED_TRACE(row.name);
    const PolicySpec spec = {.scorer = std::string(row.name), .budget = 200};
    const auto whole = OpenTestSession(*engine, spec, 150);
    const std::vector<float> expected = Feed(*engine, *whole, tokens, 150);
    for (const int32_t block : {1, 2, 3, 16, 17, 64, 149}) {
      const auto session = OpenTestSession(*engine, spec, 150);
      EXPECT_EQ(LargestDifference(Feed(*engine, *session, tokens, block), expected), 0) << "blocks of " << block;
    }
  }
}

}  // namespace
}  // namespace ebb
