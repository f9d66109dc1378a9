#include "bench/step_run.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb::bench {
namespace {

constexpr int32_t kWarmSteps = 2;

using Facts = std::vector<std::pair<std::string, Value>>;

Facts FactsOf(const Common& common, const OpenModel& open, const StepOptions& options) {
  Facts facts = MachineFacts(common);
  facts.emplace_back("model", std::filesystem::path(options.model.model).filename().string());
  facts.emplace_back("engine", open.engine->fingerprint());
  facts.emplace_back("policy", options.model.policy);
  facts.emplace_back("slots", int64_t{options.model.slots});
  facts.emplace_back("weight_bytes", open.work.body.bytes + open.work.head.bytes);
  return facts;
}

// The median of some steps, after a few that are not counted.
double TimeStep(Sessions& sessions, int32_t count, int32_t steps) {
  for (int32_t i = 0; i < kWarmSteps; ++i) sessions.Step(count);
  std::vector<double> times;
  for (int32_t i = 0; i < steps; ++i) times.push_back(sessions.Step(count));
  return Median(times);
}

Work WorkOfStep(const OpenModel& open, const Sessions& sessions, int32_t count, KvType kv_type) {
  Work work = open.work.Step(count, count);
  work.bytes += sessions.LiveTokens(count) * open.TokenBytes(kv_type);
  return work;
}

struct Samples {
  std::vector<double> seconds = {}, tokens = {}, roofline = {}, share = {}, bandwidth = {};
};

absl::Status RunShares(const cli::Shell& shell, const std::string& verb, const Common& common,
                       const StepOptions& options) {
  ModelOptions model = options.model;
  model.sessions = *std::ranges::max_element(options.sessions);
  EBB_ASSIGN(const OpenModel open, OpenForBench(common, model));
  EBB_ASSIGN(const ValidSpec policy, open.Policy(model.policy, model.slots, model.kv_type));
  EBB_ASSIGN(const auto sessions, Sessions::Open(*open.engine, policy, model.sessions, kBlock, common.seed));
  EBB_ASSIGN(const std::unique_ptr<Meter> meter, MakeMeter(common));
  EBB_TRY(sessions->FillAlike(model.slots));
  std::vector<Samples> samples(options.sessions.size());
  for (int32_t round = -1; round < common.rounds; ++round) {
    for (size_t i = 0; i < options.sessions.size(); ++i) {
      const int32_t count = options.sessions[i];
      const Rates rates = meter->Measure();
      const double seconds = TimeStep(*sessions, count, options.steps);
      const Work work = WorkOfStep(open, *sessions, count, model.kv_type);
      if (round < 0) continue;
      samples[i].seconds.push_back(seconds);
      samples[i].tokens.push_back(count / seconds);
      samples[i].roofline.push_back(RooflineSeconds(work, rates));
      samples[i].share.push_back(samples[i].roofline.back() / seconds);
      samples[i].bandwidth.push_back(rates.read);
    }
  }
  Report report(verb,
                {{.key = "sessions", .header = "sessions"},
                 {.key = "tokens_per_second", .header = "tokens/s", .digits = 1},
                 {.key = "step_seconds", .header = "ms per step", .scale = 1e3, .digits = 2},
                 {.key = "roofline_seconds", .header = "roofline, ms", .scale = 1e3, .digits = 2},
                 {.key = "share", .header = "share, %", .scale = 100, .digits = 1},
                 {.key = "read_bytes_per_second", .header = "reads, GB/s", .scale = 1e-9, .digits = 1}},
                FactsOf(common, open, options));
  for (size_t i = 0; i < samples.size(); ++i) {
    report.Add({int64_t{options.sessions[i]}, SpreadOf(samples[i].tokens), SpreadOf(samples[i].seconds),
                SpreadOf(samples[i].roofline), SpreadOf(samples[i].share), SpreadOf(samples[i].bandwidth)});
  }
  report.Print(shell.json, common.form);
  return absl::OkStatus();
}

// Step times of both sides at a depth, by number of sessions.
struct Pair {
  std::vector<double> bounded = {}, other = {}, ratio = {};
  std::vector<double> drift = {};  // to sessions that stay at the first depth
};

absl::Status RunCompare(const cli::Shell& shell, const std::string& verb, const Common& common,
                        const StepOptions& options) {
  ModelOptions model = options.model;
  std::vector<int32_t> depths = options.depths;
  const bool shifts = options.compare == "shift";
  if (depths.empty() && shifts) depths = {model.slots};
  if (depths.empty()) depths = {model.slots, 4 * model.slots, 16 * model.slots};
  std::ranges::sort(depths);
  const auto sizes = static_cast<int32_t>(options.sessions.size());
  const int32_t written = (common.rounds + 1) * (options.steps + kWarmSteps) * sizes;  // while measuring, at a depth
  const int32_t deepest = depths.back() + written * static_cast<int32_t>(depths.size());
  const int32_t count = *std::ranges::max_element(options.sessions);
  const bool unbounded = options.compare == "full";
  const bool has_first = depths.size() > 1;
  // What keeps everything takes so much that the bounded ones fit beside it.
  model.sessions = shifts || unbounded ? count : 2 * count;
  if (has_first || unbounded) model.sessions += count;
  if (unbounded) model.tokens_max = deepest;
  EBB_ASSIGN(const OpenModel open, OpenForBench(common, model));
  EBB_ASSIGN(const ValidSpec policy, open.Policy(model.policy, model.slots, model.kv_type));
  OpenModel shifting;  // an engine of its own, since what it does to lanes is done to all
  if (shifts) {
    if (IsScaled(model.kv_type)) {
      return absl::InvalidArgumentError(
          "--kv-dtype: with --compare shift f32, bf16 or f16; bytes have scales beside their rows");
    }
    model.shifts = Leaving{.full = model.slots};
    if (policy.scorer_name == "streaming") model.shifts->rank = policy.sinks;
    EBB_ASSIGN(shifting, OpenForBench(common, model));
  }
  EBB_ASSIGN(const ValidSpec against,
             open.Policy(shifts ? model.policy : options.compare, unbounded ? deepest : model.slots, model.kv_type));
  EBB_ASSIGN(const auto bounded, Sessions::Open(*open.engine, policy, count, kBlock, common.seed));
  EBB_ASSIGN(const auto other,
             Sessions::Open(shifts ? *shifting.engine : *open.engine, against, count, kBlock, common.seed));
  std::unique_ptr<Sessions> first;  // a machine's speed changes between depths, so that only steps in turns tell drift
  if (has_first) {
    EBB_ASSIGN(first, Sessions::Open(*open.engine, policy, count, kBlock, common.seed));
    EBB_TRY(first->FillAlike(depths.front()));
  }
  std::vector<std::vector<Pair>> pairs(options.sessions.size(), std::vector<Pair>(depths.size()));
  for (size_t d = 0; d < depths.size(); ++d) {
    EBB_TRY(bounded->FillAlike(depths[d]));
    EBB_TRY(other->FillAlike(depths[d]));
    for (int32_t round = -1; round < common.rounds; ++round) {
      for (size_t i = 0; i < options.sessions.size(); ++i) {
        const auto time_first = [&] { return TimeStep(*first, options.sessions[i], options.steps); };
        const bool first_before = d > 0 && round % 2 != 0;
        const double before = first_before ? time_first() : 0;
        const double ours = TimeStep(*bounded, options.sessions[i], options.steps);
        const double first_ours = d == 0 ? ours : first_before ? before : time_first();
        const double theirs = TimeStep(*other, options.sessions[i], options.steps);
        if (round < 0) continue;
        pairs[i][d].drift.push_back(ours / first_ours);
        pairs[i][d].bounded.push_back(ours);
        pairs[i][d].other.push_back(theirs);
        pairs[i][d].ratio.push_back(theirs / ours);
      }
    }
  }
  Report report(verb,
                {{.key = "sessions", .header = "sessions"},
                 {.key = "depth", .header = "tokens so far"},
                 {.key = "tokens_per_second", .header = model.policy + ", tokens/s", .digits = 1},
                 {.key = "other_tokens_per_second", .header = options.compare + ", tokens/s", .digits = 1},
                 {.key = "ratio", .header = "ratio", .digits = 2},
                 {.key = "drift", .header = "step / step at the first depth", .digits = 3}},
                FactsOf(common, open, options));
  for (size_t i = 0; i < pairs.size(); ++i) {
    const double sessions = options.sessions[i];
    std::vector<double> ours, theirs, drift;
    for (size_t d = 0; d < depths.size(); ++d) {
      ours.push_back(Median(pairs[i][d].bounded));
      theirs.push_back(Median(pairs[i][d].other));
      drift.push_back(Median(pairs[i][d].drift));
      report.Add({int64_t{options.sessions[i]}, absl::StrFormat("%d", depths[d]), sessions / ours.back(),
                  sessions / theirs.back(), SpreadOf(pairs[i][d].ratio), drift.back()});
    }
    const double mean = MeanOverDepths(depths, ours);
    const double mean_other = MeanOverDepths(depths, theirs);
    report.Add({int64_t{options.sessions[i]}, std::string("mean"), sessions / mean, sessions / mean_other,
                mean_other / mean, MeanOverDepths(depths, drift)});
  }
  report.Print(shell.json, common.form);
  return absl::OkStatus();
}

}  // namespace

double MeanOverDepths(const std::vector<int32_t>& depths, const std::vector<double>& values) {
  double area = 0;
  for (size_t i = 1; i < depths.size(); ++i) area += (depths[i] - depths[i - 1]) * (values[i] + values[i - 1]) / 2;
  return depths.front() == depths.back() ? values.front() : area / (depths.back() - depths.front());
}

void AddStepOptions(Command command, StepOptions& options) {
  AddModelOptions(command, options.model);
  command.add_option("--policy", options.model.policy, "Policy of the sessions, as ebb-lab takes it")
      .default_str("streaming");
  command.add_option("--slots", options.model.slots, "Its budget: tokens in every lane while steps are timed")
      .range(8, 1 << 20)
      .default_str("512");
  command.add_option("--steps", options.steps, "Steps of a round, of which the median is taken")
      .range(1, 100000)
      .default_str("8");
  const Flag compare = command.add_option(
      "--compare", options.compare,
      "Time this policy's steps beside, at the same depths; full: unevicted; shift: the same, in order");
  command
      .add_option("--depths", options.depths,
                  "With --compare: tokens so far, with commas; default: 1, 4 and 16 times --slots; with shift: --slots")
      .delimiter(',')
      .range(1, 1 << 24)
      .needs(compare);
}

absl::Status RunSteps(const cli::Shell& shell, const std::string& verb, const Common& common,
                      const StepOptions& options) {
  return options.compare.empty() ? RunShares(shell, verb, common, options) : RunCompare(shell, verb, common, options);
}

}  // namespace ebb::bench
