// What a policy costs: a step under it against the same step under `streaming`, which neither observes nor selects.
//
//   /usr/bin/python3 tests/support/make_models.py --preset perf-0.5b --type q8_0 -o /tmp/perf.gguf
//   build/release/tests/bench/policy_cost_bench decode /tmp/perf.gguf [batch [policy ...]]
//   build/release/tests/bench/policy_cost_bench prefill|once /tmp/perf.gguf [policy ...]
//
// A policy is a word of ebb-lab's command line. Decode: `batch` sessions of 1024 slots, one token each, one token
// evicted from each lane at every step. A round runs streaming, then the policy with room to spare (it observes, nobody
// leaves), then the policy at its budget; ratios are taken within a round, since shared machines vary by the minute.
// Prefill: 4096 tokens in blocks of 512, choosing after each block, or once after all. What chooses once is compared
// with `full`, what does not with streaming of the same budget: what attends to the same tokens, and is not observed.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/lab/policy_text.h"
#include "policies/status.h"
#include "tests/bench/bandwidth.h"

namespace ebb {
namespace {

constexpr int32_t kBudget = 1024;
constexpr int kWarm = 2;
constexpr int kSteps = 16;
constexpr int kRounds = 9;
constexpr int32_t kPrompt = 4096;
constexpr int32_t kBlock = 512;
constexpr int kPrefillRounds = 3;

absl::StatusOr<ValidSpec> Parse(const Engine& engine, const std::string& text, int32_t budget, Schedule schedule) {
  EBB_ASSIGN(lab::NamedPolicy policy, lab::ParsePolicy(text));
  policy.spec.budget = budget;
  if (policy.spec.scorer != "full") policy.spec.schedule = schedule;
  return Resolve(policy.spec, LimitsOf(engine.config()));
}

struct Spread {
  double median = 0, least = 0, most = 0;
};
Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

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

  // `tokens` more in every session, in one step; the time it took.
  double Step(int32_t tokens, bool prompt_ends = false) {
    std::vector<std::vector<int32_t>> texts(sessions_.size(), std::vector<int32_t>(static_cast<size_t>(tokens)));
    std::vector<BatchRow> rows;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      for (int32_t& token : texts[i]) token = (next_ += 7919) % engine_.config().vocab;
      rows.push_back(
          {.session = sessions_[i].get(), .tokens = texts[i], .want = Want::kLast, .prompt_ends = prompt_ends});
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

  double DecodeStep() {
    for (int i = 0; i < kWarm; ++i) Step(1);
    std::vector<double> times;
    for (int i = 0; i < kSteps; ++i) times.push_back(Step(1));
    return Median(times);
  }

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
  std::printf("%-26s %-24s %-24s %s\n", "policy", "step / streaming's", "selection / step", "step, ms");
  for (const std::string& name : policies) {
    const absl::StatusOr<ValidSpec> policy = Parse(engine, name, kBudget, Schedule::kEveryStep);
    if (!policy.ok()) {
      std::printf("%-26s %s\n", name.c_str(), std::string(policy.status().message()).c_str());
      continue;
    }
    EBB_ASSIGN(const ValidSpec roomy, Parse(engine, name, kBudget + kWarm + kSteps, Schedule::kEveryStep));
    Sessions sessions(engine, batch);
    EBB_TRY(sessions.Open(*policy));
    sessions.Fill();
    std::vector<double> overhead, selection, milliseconds;
    for (int round = 0; round < kRounds; ++round) {
      const double plain = plain_sessions.DecodeStep();
      EBB_TRY(sessions.SetPolicy(roomy));
      const double observed = sessions.DecodeStep();
      EBB_TRY(sessions.SetPolicy(*policy));
      const double whole = sessions.DecodeStep();
      overhead.push_back(whole / plain - 1);
      selection.push_back(1 - observed / whole);
      milliseconds.push_back(1e3 * whole);
    }
    const Spread all = SpreadOf(overhead), chosen = SpreadOf(selection);
    std::printf("%-26s %+5.1f %% (%+5.1f .. %+5.1f)  %+5.1f %% (%+5.1f .. %+5.1f)  %.2f\n", name.c_str(),
                100 * all.median, 100 * all.least, 100 * all.most, 100 * chosen.median, 100 * chosen.least,
                100 * chosen.most, SpreadOf(milliseconds).median);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> PrefillOnce(Engine& engine, const ValidSpec& policy) {
  Sessions sessions(engine, 1);
  EBB_TRY(sessions.Open(policy));
  double seconds = 0;
  for (int32_t at = 0; at < kPrompt; at += kBlock) seconds += sessions.Step(kBlock, at + kBlock == kPrompt);
  return seconds;
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
      EBB_ASSIGN(const double plain, PrefillOnce(engine, base));
      EBB_ASSIGN(const double observed, PrefillOnce(engine, policy));
      overhead.push_back(observed / plain - 1);
    }
    const Spread spread = SpreadOf(overhead);
    std::printf("%-26s %-10s %+5.1f %% (%+5.1f .. %+5.1f)\n", name.c_str(), once ? "full" : "streaming",
                100 * spread.median, 100 * spread.least, 100 * spread.most);
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
  if (argc < 3 || (what != "decode" && what != "prefill" && what != "once")) {
    std::fprintf(stderr,
                 "usage: policy_cost_bench decode MODEL.gguf [batch [policy ...]]\n"
                 "       policy_cost_bench prefill|once MODEL.gguf [policy ...]\n");
    return 2;
  }
  const absl::Status status = ebb::Bench(what, argv[2], {argv + 3, argv + argc});
  if (!status.ok()) std::fprintf(stderr, "policy_cost_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
