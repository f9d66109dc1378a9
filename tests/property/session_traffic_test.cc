// Sessions of every kind in random traffic: blocks, decode steps, eviction by hand, sessions that end and leave their
// pages to the next. Invariants hold after every call, and each session is, bit for bit, what it is alone.

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/session_on_engine.h"
#include "policies/hash_random.h"
#include "policies/registry.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

constexpr int32_t kTrafficBlock = 24;
constexpr int32_t kVocab = 261;

// One call on a session. What it does depends on the session alone, so that it means the same in any company.
struct Call {
  std::vector<int32_t> tokens = {};  // appended, unless empty
  EvictRequest evict = {};           // else carried out
};

struct Script {
  PolicySpec policy = {};
  std::vector<Call> calls = {};
};

PolicySpec RandomPolicy(HashRandom& random) {
  const std::span<const ScorerRow> rows = ScorerRegistry();
  const ScorerRow& row = rows[random.Uniform(0, static_cast<int32_t>(rows.size()) - 1)];
  PolicySpec spec = {.scorer = std::string(row.name),
                     .budget = random.Uniform(40, 70),
                     .positions = random.Uniform(0, 1) == 0 ? Positions::kOriginal : Positions::kCompacted,
                     .kv_type = static_cast<KvType>(random.Uniform(0, 2)),
                     .rope_cache = random.Uniform(0, 3) == 0 ? RopeCache::kRk : RopeCache::kFused};
  if (!row.evicts) return spec;
  spec.schedule = random.Uniform(0, 2) == 0 ? Schedule::kEveryN : Schedule::kEveryStep;
  if (spec.schedule == Schedule::kEveryN) spec.every_n = random.Uniform(1, 9);
  if (random.Uniform(0, 1) == 0) return spec;
  spec.overflow = random.Uniform(1, 12);
  spec.slack = random.Uniform(0, 12);
  spec.max_drop = random.Uniform(0, 12);
  return spec;
}

EvictRequest RandomEviction(HashRandom& random) {
  EvictRequest request = {.dry_run = random.Uniform(0, 3) == 0};
  const int32_t start = random.Uniform(0, 120);
  switch (random.Uniform(0, 3)) {
    case 0:
      request.range = {start, start + random.Uniform(1, 40)};
      break;
    case 1:
      request.older_than = random.Uniform(0, 150);
      break;
    case 2:
      request.keep = random.Uniform(1, 60);
      request.scorer = "streaming";
      break;
    default:
      request.keep = random.Uniform(1, 60);
  }
  return request;
}

Script RandomScript(uint64_t seed) {
  HashRandom random(seed);
  Script script = {.policy = RandomPolicy(random)};
  for (int i = 0; i < 40; ++i) {
    if (random.Uniform(0, 4) == 0) {
      script.calls.push_back({.evict = RandomEviction(random)});
    } else {
      const int32_t count = random.Uniform(0, 1) == 0 ? 1 : random.Uniform(1, kTrafficBlock);
      script.calls.push_back({.tokens = RandomTokens(random.Next64(), count, kVocab)});
    }
  }
  return script;
}

// A session at work on its script, and all it answered.
struct Actor {
  const Script* script = nullptr;
  std::unique_ptr<Session> session = {};
  size_t called = 0;
  std::vector<float> logits = {};
  std::vector<std::vector<int32_t>> live = {};  // after each eviction by hand, lane by lane
  std::vector<std::string> refusals = {};

  bool done() const { return called == script->calls.size(); }
};

void ExpectSound(const Engine& engine, const Session& session) {
  const SessionCache& cache = static_cast<const SessionOnEngine&>(session).cache();
  for (const SlotMap& map : cache.maps()) {
    map.CheckInvariants();
    // Between two steps the room for a block is free.
    const bool every_step = session.policy().evicts && session.policy().schedule == Schedule::kEveryStep;
    ASSERT_LE(map.live(), every_step ? Capacity(session.policy().trigger, 0) : session.capacity());
    ASSERT_TRUE(std::ranges::all_of(map.token(),
                                    [&](int32_t token) { return token < static_cast<int32_t>(session.log().size()); }));
  }
  ASSERT_LE(session.pages(), engine.memory().pages_reserved);
}

void EvictByHand(Engine& engine, Actor& actor) {
  const int32_t before = actor.session->cache_length();
  const EvictRequest& request = actor.script->calls[actor.called++].evict;
  const auto report = engine.Evict(*actor.session, request);
  if (!report.ok()) actor.refusals.push_back(std::string(report.status().message()));
  if (!report.ok() || request.dry_run) {
    ASSERT_EQ(actor.session->cache_length(), before);
  } else {
    ASSERT_EQ(actor.session->cache_length(), report->length_after);
  }
  const auto lanes = engine.Describe(*actor.session, std::nullopt, std::nullopt);
  ASSERT_TRUE(lanes.ok());
  for (const LaneReport& lane : *lanes) actor.live.push_back(lane.tokens);
  ExpectSound(engine, *actor.session);
}

// Lets each of `actors` make its next call; what they append goes in one batch.
void Turn(Engine& engine, std::span<Actor* const> actors) {
  std::vector<BatchRow> rows;
  std::vector<Actor*> in_batch;
  for (Actor* const actor : actors) {
    const Call& call = actor->script->calls[actor->called];
    if (call.tokens.empty()) {
      EvictByHand(engine, *actor);
      continue;
    }
    ++actor->called;
    const absl::Status status = actor->session->CanAppend(static_cast<int32_t>(call.tokens.size()));
    if (!status.ok()) {
      actor->refusals.push_back(std::string(status.message()));
      continue;
    }
    rows.push_back({.session = actor->session.get(), .tokens = call.tokens, .want = Want::kAll});
    in_batch.push_back(actor);
  }
  if (rows.empty()) return;
  engine.Run(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::ranges::copy(rows[i].logits, std::back_inserter(in_batch[i]->logits));
    ExpectSound(engine, *in_batch[i]->session);
  }
}

Actor Alone(const std::string& path, const Script& script) {
  const auto engine = OpenTestEngine(path, {.threads = 1});
  Actor actor = {.script = &script, .session = OpenTestSession(*engine, script.policy, kTrafficBlock)};
  Actor* const only = &actor;
  while (!actor.done()) Turn(*engine, {&only, 1});
  actor.session.reset();
  return actor;
}

// All scripts on one engine, at most `seats` at a time; each turn a random part of those seated is in the batch.
std::vector<Actor> Together(const std::string& path, const std::vector<Script>& scripts, size_t seats, uint64_t seed) {
  const auto engine = OpenTestEngine(path, {.threads = 2});
  HashRandom random(seed, 1);
  std::vector<Actor> actors;
  for (const Script& script : scripts) actors.push_back({.script = &script});
  std::vector<Actor*> seated;
  for (size_t next = 0; next < actors.size() || !seated.empty();) {
    while (next < actors.size() && seated.size() < seats) {
      actors[next].session = OpenTestSession(*engine, scripts[next].policy, kTrafficBlock);
      seated.push_back(&actors[next++]);
    }
    std::vector<Actor*> turn;
    std::ranges::copy_if(seated, std::back_inserter(turn), [&](Actor*) { return random.Uniform(0, 2) > 0; });
    Turn(*engine, turn);
    for (Actor* const actor : seated) {
      if (actor->done()) actor->session.reset();
    }
    std::erase_if(seated, [](const Actor* actor) { return actor->done(); });
    int64_t pages = 0;
    for (const Actor* const actor : seated) pages += actor->session->pages();
    EXPECT_EQ(engine->memory().pages_reserved, pages);
  }
  return actors;
}

TEST(SessionTraffic, RandomCallsKeepEveryInvariantAndEachSessionIsWhatItIsAlone) {
  const TinyModelFile file({.vocab = kVocab});
  int64_t refusals = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::vector<Script> scripts;
    for (uint64_t i = 0; i < 12; ++i) scripts.push_back(RandomScript(100 * seed + i));
    const std::vector<Actor> together = Together(file.path(), scripts, 5, seed);
    for (size_t i = 0; i < scripts.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "script " << i << ", " << scripts[i].policy.scorer);
      const Actor alone = Alone(file.path(), scripts[i]);
      ASSERT_EQ(together[i].refusals, alone.refusals);
      ASSERT_TRUE(together[i].live == alone.live);
      ASSERT_EQ(LargestDifference(together[i].logits, alone.logits), 0);
      refusals += static_cast<int64_t>(alone.refusals.size());
    }
  }
  EXPECT_GT(refusals, 0);  // the scripts reach the limits too
}

}  // namespace
}  // namespace ebb
