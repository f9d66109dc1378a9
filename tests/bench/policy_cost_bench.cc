// What a policy costs: a step under it against the same step under `streaming`, which neither observes nor selects.
//
//   /usr/bin/python3 tests/support/make_models.py --preset perf-0.5b --type q8_0 -o /tmp/perf.gguf
//   build/release/tests/bench/policy_cost_bench decode /tmp/perf.gguf [batch [policy ...]]
//   build/release/tests/bench/policy_cost_bench prefill|once|swap|measure /tmp/perf.gguf [policy ...]
//
// A policy is a word of ebb-lab's command line. Decode: `batch` sessions of 1024 slots, one token each, one token
// evicted from each lane at every step. Three sets of sessions take turns, a step each: streaming, the policy with room
// to spare (it observes, nobody leaves), the policy at its budget. Ratios are taken within a turn, since shared
// machines vary by the second; the table has their medians and quartiles. Prefill: 4096 tokens in blocks of 512,
// choosing after each block, or once after all. What chooses once is compared with `full`, what does not with streaming
// of the same budget: what attends to the same tokens, and is not observed. Swap: how long a stream of another session
// waits for a SetPolicy, in steps of its own. A session of 1024 slots under `h2o` is given the policy, which takes 64
// tokens from every lane, and then its own again with 64 tokens more. Measure: a decode step whose loss is measured
// against one whose loss is not, one token evicted from each lane.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/lab/policy_text.h"
#include "policies/check.h"
#include "policies/registry.h"
#include "policies/status.h"
#include "tests/bench/bandwidth.h"
#include "tests/bench/rounds.h"

namespace ebb {
namespace {

constexpr int32_t kBudget = 1024;
constexpr int kWarm = 2;
constexpr int kSteps = 16;
const int kRounds = Rounds(9);
constexpr int32_t kPrompt = 4096;
constexpr int32_t kBlock = 512;
const int kPrefillRounds = Rounds(5);
constexpr int32_t kPruned = 64;
const int kSwapRounds = Rounds(5);

absl::StatusOr<ValidSpec> Parse(const Engine& engine, const std::string& text, int32_t budget, Schedule schedule) {
  EBB_ASSIGN(lab::NamedPolicy policy, lab::ParsePolicy(text));
  policy.spec.budget = budget;
  if (policy.spec.scorer != "full") policy.spec.schedule = schedule;
  return Resolve(policy.spec, LimitsOf(engine.config()));
}

struct Spread {
  double median = 0, low = 0, high = 0;
};
Spread SpreadOf(std::vector<double> values, double tail) {
  std::sort(values.begin(), values.end());
  const auto low = static_cast<size_t>(tail * static_cast<double>(values.size()));
  return {values[values.size() / 2], values[low], values[values.size() - 1 - low]};
}
// Of many turns, and of a few long runs.
Spread Quartiles(std::vector<double> values) { return SpreadOf(std::move(values), 0.25); }
Spread Extremes(std::vector<double> values) { return SpreadOf(std::move(values), 0); }

class Sessions {
 public:
  Sessions(Engine& engine, int32_t count) : engine_(engine), sessions_(static_cast<size_t>(count)) {}

  absl::Status Open(const ValidSpec& policy) {
    for (auto& session : sessions_) {
      EBB_ASSIGN(session, engine_.OpenSession({.policy = policy, .block_size_max = kBlock}));
    }
    return absl::OkStatus();
  }

  absl::Status SetPolicy(const ValidSpec& policy) {
    for (auto& session : sessions_) EBB_TRY(engine_.SetPolicy(*session, policy).status());
    return absl::OkStatus();
  }

  // `tokens` more in every session, in one step of rows like this one; the time it took.
  double Step(int32_t tokens, const BatchRow& like = {}) {
    std::vector<std::vector<int32_t>> texts(sessions_.size(), std::vector<int32_t>(static_cast<size_t>(tokens)));
    std::vector<BatchRow> rows;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      for (int32_t& token : texts[i]) token = (next_ += 7919) % engine_.config().vocab;
      BatchRow& row = rows.emplace_back(like);
      row.session = sessions_[i].get();
      row.tokens = texts[i];
      row.want = Want::kLast;
    }
    const double begin = Seconds();
    engine_.Run(rows);
    return Seconds() - begin;
  }

  // Up to the budget.
  void Fill() {
    const int32_t block = kBlock / static_cast<int32_t>(sessions_.size());
    while (sessions_[0]->cache_length() < kBudget) Step(std::min(block, kBudget - sessions_[0]->cache_length()));
  }

  // The median of some steps of one token.
  double DecodeStep(const BatchRow& like = {}) {
    for (int i = 0; i < kWarm; ++i) Step(1, like);
    std::vector<double> times;
    for (int i = 0; i < kSteps; ++i) times.push_back(Step(1, like));
    return Median(times);
  }

  Session& first() { return *sessions_.front(); }

 private:
  Engine& engine_;
  std::vector<std::unique_ptr<Session>> sessions_;
  int32_t next_ = 0;
};

absl::Status Decode(Engine& engine, int32_t batch, const std::vector<std::string>& policies) {
  EBB_ASSIGN(const ValidSpec base, Parse(engine, "streaming", kBudget, Schedule::kEveryStep));
  Sessions plain_sessions(engine, batch);
  EBB_TRY(plain_sessions.Open(base));
  plain_sessions.Fill();
  std::printf("%s, %d threads, batch %d, %d slots\n", engine.fingerprint().c_str(), engine.threads(), batch, kBudget);
  std::printf("%-26s %-24s %-24s %s\n", "policy", "step / streaming's", "selection / streaming's", "step, ms");
  for (const std::string& name : policies) {
    const absl::StatusOr<ValidSpec> policy = Parse(engine, name, kBudget, Schedule::kEveryStep);
    if (!policy.ok()) {
      std::printf("%-26s %s\n", name.c_str(), std::string(policy.status().message()).c_str());
      continue;
    }
    EBB_ASSIGN(const ValidSpec roomy, Parse(engine, name, kBudget + kWarm + kSteps, Schedule::kEveryStep));
    Sessions tight(engine, batch), loose(engine, batch);
    for (Sessions* sessions : {&tight, &loose}) {
      EBB_TRY(sessions->Open(*policy));
      sessions->Fill();
    }
    std::vector<double> overhead, selection, milliseconds;
    for (int round = 0; round < kRounds; ++round) {
      EBB_TRY(loose.SetPolicy(roomy));
      for (int step = -kWarm; step < kSteps; ++step) {
        const double plain = plain_sessions.Step(1);
        const double observed = loose.Step(1);
        const double whole = tight.Step(1);
        if (step < 0) continue;
        overhead.push_back(whole / plain - 1);
        selection.push_back((whole - observed) / plain);
        milliseconds.push_back(1e3 * whole);
      }
      EBB_TRY(loose.SetPolicy(*policy));
    }
    const Spread all = Quartiles(overhead), chosen = Quartiles(selection);
    std::printf("%-26s %+5.1f %% (%+5.1f .. %+5.1f)  %+5.1f %% (%+5.1f .. %+5.1f)  %.2f\n", name.c_str(),
                100 * all.median, 100 * all.low, 100 * all.high, 100 * chosen.median, 100 * chosen.low,
                100 * chosen.high, Quartiles(milliseconds).median);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

// How much longer `policy` takes for a prompt than `base`: block by block in turns, added up.
absl::StatusOr<double> PrefillOverhead(Engine& engine, const ValidSpec& base, const ValidSpec& policy) {
  Sessions plain_session(engine, 1), session(engine, 1);
  EBB_TRY(plain_session.Open(base));
  EBB_TRY(session.Open(policy));
  double plain = 0, observed = 0;
  for (int32_t at = 0; at < kPrompt; at += kBlock) {
    const BatchRow like = {.prompt_ends = at + kBlock == kPrompt};
    plain += plain_session.Step(kBlock, like);
    observed += session.Step(kBlock, like);
  }
  return observed / plain - 1;
}

absl::Status Prefill(Engine& engine, Schedule schedule, const std::vector<std::string>& policies) {
  const bool once = schedule == Schedule::kOncePrompt;
  EBB_ASSIGN(const ValidSpec base, Parse(engine, once ? "full" : "streaming", once ? kPrompt : kBudget, schedule));
  std::printf("%s, %d threads, %d tokens in blocks of %d, budget %d\n", engine.fingerprint().c_str(), engine.threads(),
              kPrompt, kBlock, kBudget);
  std::printf("%-26s %-10s %s\n", "policy", "against", "prefill / the other's");
  for (const std::string& name : policies) {
    EBB_ASSIGN(const ValidSpec policy, Parse(engine, name, kBudget, schedule));
    std::vector<double> overhead;
    for (int round = 0; round < kPrefillRounds; ++round) {
      EBB_ASSIGN(const double longer, PrefillOverhead(engine, base, policy));
      overhead.push_back(longer);
    }
    const Spread spread = Extremes(overhead);
    std::printf("%-26s %-10s %+5.1f %% (%+5.1f .. %+5.1f)\n", name.c_str(), once ? "full" : "streaming",
                100 * spread.median, 100 * spread.low, 100 * spread.high);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

const char* NameOf(StateOrigin origin) {
  switch (origin) {
    case StateOrigin::kNone:
      return "none";
    case StateOrigin::kCarried:
      return "carried";
    case StateOrigin::kRebuilt:
      return "rebuilt";
    case StateOrigin::kFromScores:
      return "scores";
    case StateOrigin::kFromAttention:
      return "attention";
    case StateOrigin::kEmpty:
      return "empty";
  }
  return "?";
}

absl::Status Swap(Engine& engine, const std::vector<std::string>& policies) {
  EBB_ASSIGN(const ValidSpec base, Parse(engine, "streaming", kBudget, Schedule::kEveryStep));
  EBB_ASSIGN(const ValidSpec own, Parse(engine, "h2o", kBudget, Schedule::kEveryStep));
  Sessions streams(engine, 1), swapped(engine, 1);
  EBB_TRY(streams.Open(base));
  EBB_TRY(swapped.Open(own));
  streams.Fill();
  swapped.Fill();
  std::printf("%s, %d threads, %d slots, %d evicted from each lane\n", engine.fingerprint().c_str(), engine.threads(),
              kBudget, kPruned);
  std::printf("%-26s %-10s %-24s %s\n", "policy", "state", "swap / a stream's step", "swap, ms");
  for (const std::string& name : policies) {
    const absl::StatusOr<ValidSpec> policy = Parse(engine, name, kBudget - kPruned, Schedule::kEveryStep);
    if (!policy.ok()) {
      std::printf("%-26s %s\n", name.c_str(), std::string(policy.status().message()).c_str());
      continue;
    }
    std::vector<double> steps, milliseconds;
    StateOrigin state = StateOrigin::kNone;
    for (int round = 0; round < kSwapRounds; ++round) {
      const double step = streams.DecodeStep();
      const double begin = Seconds();
      EBB_ASSIGN(const PolicySwap swap, engine.SetPolicy(swapped.first(), *policy));
      const double took = Seconds() - begin;
      EBB_CHECK(swap.length_before - swap.length_after == kPruned);
      state = swap.state;
      steps.push_back(took / step);
      milliseconds.push_back(1e3 * took);
      EBB_TRY(swapped.SetPolicy(own));
      swapped.Step(kPruned);
    }
    const Spread spread = Extremes(steps);
    std::printf("%-26s %-10s %6.2f (%6.2f .. %6.2f)   %.1f\n", name.c_str(), NameOf(state), spread.median, spread.low,
                spread.high, Extremes(milliseconds).median);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

absl::Status Measure(Engine& engine, const std::vector<std::string>& policies) {
  std::printf("%s, %d threads, batch 1, %d slots\n", engine.fingerprint().c_str(), engine.threads(), kBudget);
  std::printf("%-26s %s\n", "policy", "measured step / one that is not");
  for (const std::string& name : policies) {
    EBB_ASSIGN(const ValidSpec policy, Parse(engine, name, kBudget, Schedule::kEveryStep));
    Sessions sessions(engine, 1);
    EBB_TRY(sessions.Open(policy));
    sessions.Fill();
    std::vector<double> overhead;
    for (int round = 0; round < kRounds; ++round) {
      const double plain = sessions.DecodeStep();
      overhead.push_back(sessions.DecodeStep({.measure = true}) / plain - 1);
    }
    const Spread spread = Extremes(overhead);
    std::printf("%-26s %+5.1f %% (%+5.1f .. %+5.1f)\n", name.c_str(), 100 * spread.median, 100 * spread.low,
                100 * spread.high);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

absl::Status Bench(const std::string& what, const std::string& path, std::vector<std::string> arguments) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, Engine::Open({.model_path = path, .arena_bytes = int64_t{4} << 30}));
  if (what == "prefill") {
    if (arguments.empty()) arguments = {"h2o", "tova", "snapkv"};
    return Prefill(*engine, Schedule::kEveryStep, arguments);
  }
  if (what == "once") {
    if (arguments.empty()) arguments = {"snapkv", "sage", "semantic", "nacl", "expected_attention"};
    return Prefill(*engine, Schedule::kOncePrompt, arguments);
  }
  if (what == "swap") {
    if (arguments.empty()) {
      for (const ScorerRow& row : ScorerRegistry()) {
        if (row.evicts) arguments.emplace_back(row.name);
      }
    }
    return Swap(*engine, arguments);
  }
  if (what == "measure") {
    if (arguments.empty()) arguments = {"streaming", "h2o"};
    return Measure(*engine, arguments);
  }
  const int32_t batch = arguments.empty() ? 1 : std::atoi(arguments[0].c_str());
  if (!arguments.empty()) arguments.erase(arguments.begin());
  if (arguments.empty()) {
    arguments = {"streaming", "random",     "knorm",          "keydiff",        "lagkv",
                 "h2o",       "tova",       "snapkv",         "scissorhands",   "expected_attention",
                 "h2o+caote", "tova+caote", "h2o+fast_caote", "tova+fast_caote"};
  }
  return Decode(*engine, batch, arguments);
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const std::string modes[] = {"decode", "prefill", "once", "swap", "measure"};
  if (argc < 3 || std::find(std::begin(modes), std::end(modes), what) == std::end(modes)) {
    std::fprintf(stderr,
                 "usage: policy_cost_bench decode MODEL.gguf [batch [policy ...]]\n"
                 "       policy_cost_bench prefill|once|swap|measure MODEL.gguf [policy ...]\n");
    return 2;
  }
  const absl::Status status = ebb::Bench(what, argv[2], {argv + 3, argv + argc});
  if (!status.ok()) std::fprintf(stderr, "policy_cost_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
