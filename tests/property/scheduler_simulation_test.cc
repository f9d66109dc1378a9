// The scheduler through days of virtual time: random scenarios from a seed, every promise checked after every event.
//
// EBB_SIM_SEEDS sets how many scenarios run (2000), EBB_SIM_FIRST the first seed (0): a failure prints its seed, and
// `EBB_SIM_FIRST=<seed> EBB_SIM_SEEDS=1` repeats it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "policies/hash_random.h"
#include "server/scheduler.h"
#include "tests/property/scheduler_world.h"

namespace ebb {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// A broken EBB_CHECK ends the process before gtest can print its trace.
volatile std::sig_atomic_t seed_running = 0;
void PrintSeed(int /*signal*/) { std::fprintf(stderr, "seed %ld\n", static_cast<long>(seed_running)); }

SchedulerLimits DrawLimits(HashRandom& random) {
  const int32_t tokens = random.Uniform(1, random.Uniform(1, 64));
  return {.pages_total = random.Uniform(1, 60),
          .step_tokens_max = tokens,
          .step_rows_max = random.Uniform(1, 8),
          .block_turn_steps = random.Uniform(2, 5),
          .queue_max = random.Uniform(0, 20),
          .priority_places = random.Uniform(0, 4),
          .reader_patience = absl::Milliseconds(random.Uniform(1, 2000)),
          .retry_min = absl::Milliseconds(random.Uniform(1, 100)),
          .retry_max = absl::Milliseconds(random.Uniform(100, 5000))};
}

// One scenario: a world whose callers and engine act at random.
class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : random_(seed),
        limits_(DrawLimits(random_)),
        world_(limits_),
        tenants_(random_.Uniform(1, 4)),
        pause_max_ms_(random_.Uniform(1, 60)),
        step_max_ms_(random_.Uniform(1, 60)),
        prompt_max_(random_.Uniform(0, 5 * limits_.step_tokens_max)),
        decode_max_(random_.Uniform(0, 40)),
        drain_at_(random_.Uniform(0, 3) == 0 ? random_.Uniform(0, kActs) : -1),
        is_paced_(random_.Uniform(0, 1) == 0) {}

  void Run() {
    for (int act = 0; act < kActs; ++act) {
      RunUntil(now_ + absl::Milliseconds(random_.Uniform(0, pause_max_ms_)));
      if (testing::Test::HasFatalFailure()) return;
      if (random_.Uniform(0, 3) == 0) now_ += absl::Milliseconds(random_.Uniform(0, 100));  // the tick will come late
      act == drain_at_ ? Drain() : Act();
      if (testing::Test::HasFatalFailure()) return;
    }
    WindDown();
  }

  // The same events, given to another scheduler.
  void ExpectTheSameAgain() const {
    World again(limits_);
    for (const auto& [event, time] : history_) {
      again.On(event, time);
      if (testing::Test::HasFatalFailure()) return;
    }
    ASSERT_EQ(again.record(), world_.record());
  }

  const World::Tally& tally() const { return world_.tally(); }

 private:
  static constexpr int kActs = 150;

  void Give(const Event& event) {
    history_.emplace_back(event, now_);
    const bool was_idle = world_.in_flight().empty() || std::holds_alternative<StepDone>(event);
    world_.On(event, now_);
    if (was_idle && !world_.in_flight().empty()) {
      step_done_ = now_ + absl::Milliseconds(random_.Uniform(0, step_max_ms_));
    }
    // As the dispatcher does when sessions that share pages come, go or change.
    if (world_.Held() != world_.scheduler().load().pages_reserved) Give(PagesCounted{.pages = world_.Held()});
  }

  // Lets steps end and the clock wake the scheduler, up to `until`.
  void RunUntil(absl::Time until) {
    while (!testing::Test::HasFatalFailure()) {
      const absl::Time wake = world_.scheduler().next_wake();
      const absl::Time step = world_.in_flight().empty() ? absl::InfiniteFuture() : step_done_;
      const absl::Time next = std::min(wake, step);
      if (next > until || next == absl::InfiniteFuture()) break;
      now_ = std::max(now_, next);
      step <= wake ? FinishStep() : Give(Tick{});
    }
    if (until != absl::InfiniteFuture()) now_ = std::max(now_, until);
  }

  // Nothing where the row is the only one.
  void FinishRow() {
    const int32_t last = static_cast<int32_t>(world_.in_flight().size()) - 1;
    if (last > 0) Give(RowDone{.id = world_.in_flight()[static_cast<size_t>(random_.Uniform(0, last))].id});
  }

  void FinishStep() {
    StepDone done;
    for (const RunStep::Row& row : world_.in_flight()) {
      if (random_.Uniform(0, 49) == 0) done.finished.push_back(row.id);
      const int32_t left = world_.requests().at(row.id).prompt_left;
      if (left > 0 && random_.Uniform(0, 19) == 0) {
        done.shortened.push_back({.id = row.id, .prompt_left = random_.Uniform(0, left)});
      }
    }
    if (is_paced_) done.pace = random_.Uniform(0, limits_.step_tokens_max);
    Give(done);
  }

  void Act() {
    if (random_.Uniform(0, 9) == 0) FinishRow();
    const int32_t dice = random_.Uniform(0, 99);
    if (dice < 15) return ArriveSession();
    if (dice < 70) return ArriveRequest();
    if (dice < 75) return Give(Cancelled{.id = AnyRequest()});
    if (dice < 83) return Give(ReaderBlocked{.id = AnyRequest()});
    if (dice < 91) return Give(ReaderReady{.id = AnyRequest()});
    if (dice < 93) return HoldSession();
    if (dice < 95) return CloseSession();
    if (dice < 97) return ResizeSession();
    if (dice < 98) return Give(TenantChanged{.tenant = AnyTenant(), .weight = random_.Uniform(1, 5)});
    Give(Tick{});  // what ought to be over by now is
    if (dice < 99) {
      Give(LimitsChanged{.queue_max = random_.Uniform(0, 20),
                         .reader_patience = absl::Milliseconds(random_.Uniform(1, 2000))});
    }
  }

  void ArriveSession() {
    const int64_t pages = random_.Uniform(0, random_.Uniform(0, 9) == 0 ? 70 : 5);
    const int64_t most = std::min(pages, world_.Held());
    const bool is_branch = random_.Uniform(0, 3) == 0;
    Give(SessionArrived{.id = ++ids_,
                        .session = ++ids_,
                        .tenant = AnyTenant(),
                        .pages = pages,
                        .shared = is_branch ? random_.Uniform(0, static_cast<int32_t>(most)) : 0});
  }

  void ArriveRequest() {
    std::vector<SessionId> idle;
    for (const auto& [id, session] : world_.sessions()) {
      if (!session.closed && !session.request) idle.push_back(id);
    }
    if (idle.empty()) return ArriveSession();
    const bool hurried = random_.Uniform(0, 3) == 0;
    Give(RequestArrived{
        .id = ++ids_,
        .session = idle[static_cast<size_t>(Below(idle.size()))],
        .priority = random_.Uniform(0, 3) == 0 ? random_.Uniform(0, kPriorityMax) : 0,
        .prompt_tokens = random_.Uniform(0, prompt_max_),
        .block_size = random_.Uniform(1, limits_.step_tokens_max),
        .decode_tokens = random_.Uniform(0, decode_max_),
        .closes = random_.Uniform(0, 1) == 0,
        .deadline = hurried ? now_ + absl::Milliseconds(random_.Uniform(-5, 3000)) : absl::InfiniteFuture()});
  }

  void CloseSession() {
    if (const auto session = AnyOpenSession()) Give(SessionClosed{.session = *session});
  }

  void HoldSession() {
    if (const auto session = AnyOpenSession()) {
      Give(SessionHeld{.session = *session, .held = !world_.sessions().at(*session).paused});
    }
  }

  void ResizeSession() {
    const auto session = AnyOpenSession();
    if (!session) return;
    const int64_t free = limits_.pages_total - world_.scheduler().load().pages_reserved;
    Give(SessionResized{.session = *session, .pages = random_.Uniform(0, world_.sessions().at(*session).pages + free)});
  }

  std::optional<SessionId> AnyOpenSession() {
    std::vector<SessionId> open;
    for (const auto& [id, session] : world_.sessions()) {
      if (!session.closed) open.push_back(id);
    }
    if (open.empty()) return std::nullopt;
    return open[static_cast<size_t>(Below(open.size()))];
  }

  void Drain() {
    const bool patient = random_.Uniform(0, 1) == 0;
    Give(Draining{.until = patient ? absl::InfiniteFuture() : now_ + absl::Milliseconds(random_.Uniform(0, 1000))});
  }

  // Nobody comes any more. Blocked readers run out of patience, all else runs to its end, and every page comes back.
  void WindDown() {
    std::vector<SessionId> paused;
    for (const auto& [id, session] : world_.sessions()) {
      if (session.paused && !session.closed) paused.push_back(id);
    }
    for (const SessionId id : paused) Give(SessionHeld{.session = id, .held = false});
    RunUntil(absl::InfiniteFuture());
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_TRUE(world_.requests().empty());
    while (!world_.sessions().empty()) {
      Give(SessionClosed{.session = world_.sessions().begin()->first});
      if (testing::Test::HasFatalFailure()) return;
    }
    ASSERT_EQ(world_.scheduler().load().pages_reserved, 0);
  }

  // Mostly a live one; else any id so far, over or never a request.
  RequestId AnyRequest() {
    const auto& live = world_.requests();
    if (live.empty() || random_.Uniform(0, 9) == 0) return static_cast<RequestId>(Below(ids_ + 1));
    return std::next(live.begin(), Below(live.size()))->first;
  }
  TenantId AnyTenant() { return static_cast<TenantId>(random_.Uniform(1, tenants_)); }
  int32_t Below(uint64_t end) { return random_.Uniform(0, static_cast<int32_t>(end) - 1); }

  HashRandom random_;
  const SchedulerLimits limits_;
  World world_;
  const int32_t tenants_;
  const int32_t pause_max_ms_;
  const int32_t step_max_ms_;
  const int32_t prompt_max_;
  const int32_t decode_max_;
  const int drain_at_;
  const bool is_paced_;
  absl::Time now_ = absl::UnixEpoch();
  absl::Time step_done_ = absl::InfiniteFuture();
  uint64_t ids_ = 0;
  std::vector<std::pair<Event, absl::Time>> history_;
};

TEST(SchedulerSimulation, KeepsItsPromisesInRandomWorlds) {
  const uint64_t first = FromEnvironment("EBB_SIM_FIRST", 0);
  const uint64_t seeds = FromEnvironment("EBB_SIM_SEEDS", 2000);
  World::Tally met;
  const auto restore = std::signal(SIGABRT, PrintSeed);
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    seed_running = static_cast<std::sig_atomic_t>(seed);
    Simulation simulation(seed);
    simulation.Run();
    if (!HasFatalFailure() && seed % 16 == 0) simulation.ExpectTheSameAgain();
    ASSERT_FALSE(HasFatalFailure());
    const World::Tally& tally = simulation.tally();
    for (size_t i = 0; i < met.ends.size(); ++i) met.ends[i] += tally.ends[i];
    for (size_t i = 0; i < met.refusals.size(); ++i) met.refusals[i] += tally.refusals[i];
    met.steps += tally.steps;
    met.crowded_steps += tally.crowded_steps;
    met.block_first_steps += tally.block_first_steps;
    met.elbowed_steps += tally.elbowed_steps;
    met.paced_steps += tally.paced_steps;
    met.decode_waited_max = std::max(met.decode_waited_max, tally.decode_waited_max);
  }
  std::signal(SIGABRT, restore);
  std::printf("%ld steps, %ld crowded, %ld led by a block; a decode waited %ld steps at most\n",
              static_cast<long>(met.steps), static_cast<long>(met.crowded_steps),
              static_cast<long>(met.block_first_steps), static_cast<long>(met.decode_waited_max));
  if (seeds < 100) return;  // a repeated failure need not meet everything
  for (const int64_t ends : met.ends) EXPECT_GT(ends, 0);
  for (const int64_t refusals : met.refusals) EXPECT_GT(refusals, 0);
  EXPECT_GT(met.crowded_steps, met.steps / 100);
  EXPECT_GT(met.block_first_steps, met.steps / 100);
  EXPECT_GT(met.elbowed_steps, met.steps / 1000);
  EXPECT_GT(met.paced_steps, met.steps / 1000);
}

// A world in which no tenant's queue ever runs empty: each has more requests of one phase than a step has rows, all of
// one size, replaced as they end.
class SaturatedWorld {
 public:
  // Of blocks that have `block_min` tokens or more.
  SaturatedWorld(const SchedulerLimits& limits, StepPhase phase, const std::vector<int32_t>& weights, int32_t block_min)
      : limits_(limits), phase_(phase), block_min_(block_min), world_(limits) {
    world_.On(Tick{}, now_);
    // Nothing may run before all are there: a first request, of a tenant that does not count, keeps the step in flight.
    Begin(kNobody, 1);
    for (TenantId tenant = 0; tenant < weights.size(); ++tenant) {
      world_.On(TenantChanged{.tenant = tenant, .weight = weights[tenant]}, now_);
      for (int32_t i = 0; i < 3 * limits.step_rows_max; ++i) Begin(tenant, 1000);
    }
  }

  void Step() {
    now_ += absl::Milliseconds(1);
    world_.On(StepDone{}, now_);
    std::vector<std::pair<SessionId, TenantId>> idle;
    for (const auto& [id, session] : world_.sessions()) {
      if (!session.request && session.tenant != kNobody) idle.emplace_back(id, session.tenant);
    }
    for (const auto& [session, tenant] : idle) Ask(session, 1000);
  }

  int64_t tokens_run(TenantId tenant) const { return world_.tokens_run(tenant, phase_); }
  int64_t charged(TenantId tenant) const { return world_.charged(tenant, phase_); }

 private:
  static constexpr TenantId kNobody = 1000;

  void Begin(TenantId tenant, int32_t rows) {
    world_.On(SessionArrived{.id = ++ids_, .session = ++ids_, .tenant = tenant}, now_);
    Ask(ids_, rows);
  }
  void Ask(SessionId session, int32_t rows) {
    const bool is_block = phase_ == StepPhase::kPrefill;
    const int32_t sizes = limits_.step_tokens_max - block_min_ + 1;
    const int32_t block = block_min_ + static_cast<int32_t>(++ids_ % static_cast<uint64_t>(sizes));
    world_.On(RequestArrived{.id = ids_,
                             .session = session,
                             .prompt_tokens = is_block ? rows * block : 0,
                             .block_size = block,
                             .decode_tokens = is_block ? 0 : rows},
              now_);
  }

  const SchedulerLimits limits_;
  const StepPhase phase_;
  const int32_t block_min_;
  World world_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t ids_ = 0;
};

// fair_queue.h's bound at every step, hence shares that converge: with S_i charged to tenant i in a long run,
// |S_i / w_i - S_j / w_j| <= cost / w_i + cost / w_j does not grow, so S_i / sum S -> w_i / sum w.
TEST(SchedulerSimulation, SharesOfSaturatedTenantsFollowTheirWeights) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const StepPhase phase = seed % 2 == 0 ? StepPhase::kPrefill : StepPhase::kDecode;
    const SchedulerLimits limits{.pages_total = 0,
                                 .step_tokens_max = random.Uniform(4, 40),
                                 .step_rows_max = random.Uniform(1, 6),
                                 .queue_max = 1000};
    const bool is_block = phase == StepPhase::kPrefill;
    const int32_t cost = is_block ? limits.step_tokens_max : 1;
    std::vector<int32_t> weights(static_cast<size_t>(random.Uniform(2, 4)));
    for (int32_t& weight : weights) weight = random.Uniform(1, 9);
    SaturatedWorld world(limits, phase, weights, 1);
    int64_t total = 0;
    for (int step = 0; step < 400; ++step) {
      world.Step();
      if (HasFatalFailure()) return;
      total = 0;
      for (TenantId i = 0; i < weights.size(); ++i) {
        total += world.tokens_run(i);
        for (TenantId j = 0; j < i; ++j) {
          const double lag_max = static_cast<double>(cost) / weights[i] + static_cast<double>(cost) / weights[j];
          const double share_i = static_cast<double>(world.charged(i)) / weights[i];
          const double share_j = static_cast<double>(world.charged(j)) / weights[j];
          ASSERT_LE(std::abs(share_i - share_j), lag_max + 1e-9) << i << " against " << j << ", step " << step;
        }
      }
    }
    EXPECT_GE(total, 400) << "every step ran something of theirs";
  }
}

struct Range {
  int32_t min = 0;
  int32_t max = 0;
};
struct Neighbour {
  int32_t sessions = 0;  // open at once, each replaced as it ends
  int32_t weight = 1;
  Range prompt = {.min = 200, .max = 1000};
  Range decodes = {.min = 500, .max = 4000};
};
struct Setting {
  int32_t pace = INT32_MAX;
  int32_t rows = 64;
  Range pause = {.min = 10, .max = 30};  // in steps, between an answer and the next question
};

// A polite tenant asks one question of `tokens` tokens at a time. How many steps each first token takes, at p99.
int64_t StepsToFirstToken(int32_t tokens, const Neighbour& neighbour, const Setting& setting = {}) {
  constexpr TenantId kPolite = 1, kGreedy = 2;
  Scheduler scheduler({.pages_total = 0, .step_rows_max = setting.rows, .queue_max = 100000});
  absl::Time now = absl::UnixEpoch();
  HashRandom random(7);
  uint64_t ids = 0;
  bool runs = false;
  std::map<RequestId, SessionId> open;
  std::vector<Effect> effects;
  const auto give = [&](const Event& event) {
    effects.clear();
    scheduler.On(event, now, effects);
    for (const Effect& effect : effects) {
      runs = runs || std::holds_alternative<RunStep>(effect);
      if (const End* const end = std::get_if<End>(&effect)) open.erase(end->id);
    }
  };
  const auto begin = [&](TenantId tenant) {
    give(SessionArrived{.id = ++ids, .session = ++ids, .tenant = tenant});
    return ids;
  };
  const auto ask = [&](SessionId session, int32_t prompt, int32_t decodes) {
    open[++ids] = session;
    give(RequestArrived{.id = ids, .session = session, .prompt_tokens = prompt, .decode_tokens = decodes});
    return ids;
  };
  const auto draw = [&](const Range& range) { return random.Uniform(range.min, range.max); };
  give(TenantChanged{.tenant = kGreedy, .weight = neighbour.weight});
  const SessionId mine = begin(kPolite);
  std::map<SessionId, RequestId> theirs;
  for (int32_t i = 0; i < neighbour.sessions; ++i) theirs[begin(kGreedy)] = 0;
  const auto step = [&] {
    for (auto& [session, request] : theirs) {
      if (!open.contains(request)) request = ask(session, draw(neighbour.prompt), draw(neighbour.decodes));
    }
    now += absl::Milliseconds(10);
    if (!std::exchange(runs, false)) return;
    give(StepDone{.pace = setting.pace});
  };
  for (int i = 0; i < 500; ++i) step();  // until the neighbour's decodes fill the steps, if they ever do
  std::vector<int64_t> steps;
  for (int i = 0; i < 100; ++i) {
    for (int32_t pause = draw(setting.pause); pause > 0; --pause) step();
    const RequestId question = ask(mine, tokens, 1);
    int64_t taken = 0;
    for (; open.contains(question); ++taken) step();
    steps.push_back(taken);
  }
  std::ranges::sort(steps);
  return steps[steps.size() * 99 / 100];
}

// However many sessions a neighbour has, a tenant that asks for one thing at a time waits one step longer for its first
// token at most, the one that was under way when it asked, than it would alone: with prompts of one block and of
// sixteen, and whether or not those who decode have time for more than one block a step. Steps of fewer rows than
// sixteen have no room for that.
TEST(SchedulerSimulation, AGreedyNeighbourCostsATenantAtMostAStep) {
  for (const int32_t prompt : {100, 256, 1000, 2000}) {
    const int64_t alone = StepsToFirstToken(prompt, {});
    for (const int32_t sessions : {1, 64, 640}) {
      const int64_t greedy = StepsToFirstToken(prompt, {.sessions = sessions});
      const int64_t paced = StepsToFirstToken(prompt, {.sessions = sessions}, {.pace = 0});
      std::printf("%d tokens: first tokens take %ld steps (p99) alone, %ld beside %d sessions, %ld if paced\n", prompt,
                  static_cast<long>(alone), static_cast<long>(greedy), sessions, static_cast<long>(paced));
      EXPECT_LE(greedy, alone + 1) << prompt << " tokens beside " << sessions;
      EXPECT_LE(paced, alone + 1) << prompt << " tokens beside " << sessions << ", paced";
      EXPECT_LE(StepsToFirstToken(prompt, {.sessions = sessions}, {.rows = 16}), alone + 1)
          << prompt << " tokens, 16 rows";
    }
  }
}

// Nor if it asks again at once, and however many prompts, and however short ones, its neighbour has waiting.
TEST(SchedulerSimulation, AGreedyNeighboursShortPromptsCostATenantAtMostAStep) {
  for (const int32_t prompt : {5, 100}) {
    for (const Range pause : {Range{}, Range{.min = 10, .max = 30}}) {
      const int64_t alone = StepsToFirstToken(prompt, {}, {.pause = pause});
      for (const int32_t sessions : {64, 640}) {
        for (const int32_t decodes : {1, 400}) {
          for (const int32_t pace : {0, INT32_MAX}) {
            const Neighbour neighbour = {
                .sessions = sessions, .prompt = {.min = 1, .max = 8}, .decodes = {.min = 1, .max = decodes}};
            EXPECT_LE(StepsToFirstToken(prompt, neighbour, {.pace = pace, .rows = 16, .pause = pause}), alone + 1)
                << prompt << " tokens beside " << sessions << " with " << decodes << " decodes at most, pace " << pace;
          }
        }
      }
    }
  }
}

// A neighbour of four times the weight has four tokens for each of the tenant's while both have prompts waiting: a
// prompt of a block takes no longer than beside an equal, one of many what that leaves of the blocks in each step,
// which are of at least a step's tokens less those of all its rows and of one block more that did not fit.
TEST(SchedulerSimulation, AHeavyNeighbourCostsATenantWhatItsWeightSays) {
  constexpr int32_t kWeight = 4;
  constexpr int32_t kBlocks = 16;
  constexpr SchedulerLimits kLimits;
  constexpr int32_t kBlock = 128;
  constexpr int32_t kOfBlocks = kLimits.step_tokens_max - kLimits.step_rows_max - kBlock;
  constexpr int32_t kSteps = ((kWeight + 1) * kBlock * kBlocks + kOfBlocks - 1) / kOfBlocks;
  EXPECT_LE(StepsToFirstToken(kBlock, {.sessions = 640, .weight = kWeight}), StepsToFirstToken(kBlock, {}) + 1);
  const int64_t alone = StepsToFirstToken(kBlock * kBlocks, {});
  EXPECT_LE(StepsToFirstToken(kBlock * kBlocks, {.sessions = 640, .weight = kWeight}), alone + 1 - kBlocks + kSteps);
}

// Rows of each tenant in 2000 steps of a scheduler whose rows are all wanted, by tenants of these tiers with 100
// decodes each.
std::map<TenantId, int64_t> RowsByTenant(const std::vector<Tier>& tiers) {
  Scheduler scheduler({.pages_total = 0, .step_rows_max = 64, .queue_max = 10000});
  absl::Time now = absl::UnixEpoch();
  std::map<RequestId, TenantId> tenants;
  std::map<TenantId, int64_t> rows;
  std::vector<Effect> effects;
  const auto give = [&](const Event& event) {
    effects.clear();
    scheduler.On(event, now, effects);
    scheduler.CheckInvariants();
    for (const Effect& effect : effects) {
      const RunStep* const step = std::get_if<RunStep>(&effect);
      for (size_t i = 0; step != nullptr && i < step->rows.size(); ++i) ++rows[tenants.at(step->rows[i].id)];
    }
  };
  uint64_t ids = 0;
  for (TenantId tenant = 0; tenant < tiers.size(); ++tenant) {
    give(TenantChanged{.tenant = tenant, .tier = tiers[tenant]});
    for (int i = 0; i < 100; ++i) {
      const SessionId session = ++ids;
      tenants[session] = tenant;
      give(SessionArrived{.id = session, .session = session, .tenant = tenant});
      give(RequestArrived{.id = session, .session = session, .decode_tokens = 1 << 30});
    }
  }
  rows.clear();
  for (int i = 0; i < 2000; ++i) {
    now += absl::Milliseconds(1);
    give(StepDone{});
  }
  return rows;
}

// A tier has all that those above it leave: nothing but one token in 17 while they want all, everything without them.
TEST(SchedulerSimulation, WhoCanWaitHasWhatIsLeftAndItsFloor) {
  constexpr double kAll = 2000 * 64;
  const auto share = [&](std::map<TenantId, int64_t>& rows, TenantId tenant) {
    return static_cast<double>(rows[tenant]) / kAll;
  };
  std::map<TenantId, int64_t> all = RowsByTenant({Tier::kHigh, Tier::kNormal, Tier::kLow});
  EXPECT_NEAR(share(all, 2), 1.0 / 17, 0.001);
  EXPECT_NEAR(share(all, 1), 16.0 / 17 / 17, 0.001);
  EXPECT_NEAR(share(all, 0) + share(all, 1) + share(all, 2), 1, 1e-9) << "no row stays empty";
  std::map<TenantId, int64_t> two = RowsByTenant({Tier::kNormal, Tier::kLow, Tier::kLow, Tier::kNormal});
  EXPECT_NEAR(share(two, 1) + share(two, 2), 1.0 / 17, 0.001);
  EXPECT_NEAR(share(two, 1), share(two, 2), 0.001) << "fair within the tier";
  EXPECT_NEAR(share(two, 0), share(two, 3), 0.001);
  std::map<TenantId, int64_t> alone = RowsByTenant({Tier::kLow});
  EXPECT_NEAR(share(alone, 0), 1, 1e-9);
}

// Three tenants, weights 1:2:4: served within 5 % of them, and without the third by 1:2, in as many tokens, whatever
// the sizes of their blocks, if no block has less than a row's part of the step's tokens.
TEST(SchedulerSimulation, WhatAnIdleTenantLeavesTheOthersUseByWeight) {
  for (const StepPhase phase : {StepPhase::kPrefill, StepPhase::kDecode}) {
    const SchedulerLimits limits{.pages_total = 0, .step_tokens_max = 128, .step_rows_max = 8, .queue_max = 1000};
    const auto shares = [&](const std::vector<int32_t>& weights, int64_t& total) {
      SaturatedWorld world(limits, phase, weights, limits.step_tokens_max / limits.step_rows_max);
      for (int i = 0; i < 4000; ++i) world.Step();
      std::vector<double> found;
      total = 0;
      for (TenantId i = 0; i < weights.size(); ++i) total += world.tokens_run(i);
      for (TenantId i = 0; i < weights.size(); ++i) {
        found.push_back(static_cast<double>(world.tokens_run(i)) / static_cast<double>(total));
      }
      return found;
    };
    int64_t with = 0, without = 0;
    const std::vector<double> three = shares({1, 2, 4}, with);
    if (HasFatalFailure()) return;
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(three[i] * 7 / (1 << i), 1, 0.05) << i;
    const std::vector<double> two = shares({1, 2}, without);
    if (HasFatalFailure()) return;
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(two[i] * 3 / (1 << i), 1, 0.05) << i;
    // Nearly as many: blocks of another mix do not fill steps alike.
    EXPECT_GE(static_cast<double>(without), 0.8 * static_cast<double>(with)) << "the machine stays busy";
  }
}

}  // namespace
}  // namespace ebb
