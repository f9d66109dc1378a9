// `ebb bench attention`: one new token of some sessions against all that they hold, one layer, again and again.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/bench.h"
#include "bench/lanes.h"
#include "bench/model_run.h"
#include "engine/ops/cpu/ops_cpu.h"
#include "policies/status.h"

namespace ebb::bench {
namespace {

struct AttentionOptions {
  std::vector<int32_t> slots = {1024, 4096, 8192};
  std::vector<int32_t> groups = {4};
  std::vector<KvType> kv_types = {KvType::kBf16, KvType::kF16, KvType::kInt8, KvType::kFp8, KvType::kF32};
  int32_t sessions = 8, kv_heads = 8, head_dim = 128;
  std::string isa = {};
};

// The tasks of a layer's step, over lanes that follow those of the step before.
class Step {
 public:
  Step(const Lanes& lanes, int64_t lanes_per_step, int32_t group, int32_t slots, int32_t head_dim, uint64_t seed)
      : lanes_(lanes), position_(slots - 1), group_(group), stride_(int64_t{group} * head_dim) {
    q_ = RandomFloats(seed, 3, lanes_per_step * stride_);
    out_.resize(q_.size());
    sums_.resize(static_cast<size_t>(lanes_per_step * slots));
    for (int64_t i = 0; i < lanes_per_step; ++i) {
      tasks_.push_back({.q = q_.data() + i * stride_,
                        .out = out_.data() + i * stride_,
                        .stride = stride_,
                        .tokens = 1,
                        .q_position = &position_});
    }
  }

  // Seconds. kObserved: every lane reports its column sums. kScattered: slots have their positions in no order.
  enum class Kind { kPlain, kObserved, kScattered };
  double Run(Ops& ops, const Rope& rope, Kind kind) {
    for (size_t i = 0; i < tasks_.size(); ++i) {
      tasks_[i].lane = kind == Kind::kScattered ? lanes_.scattered_lane(next_) : lanes_.lane(next_);
      tasks_[i].column_sums = kind == Kind::kObserved ? sums_.data() + i * (sums_.size() / tasks_.size()) : nullptr;
      next_ = (next_ + 1) % lanes_.count();
    }
    const double begin = Now();
    ops.Attend(rope, group_, tasks_);
    return Now() - begin;
  }

  double bytes() const { return static_cast<double>(tasks_.size()) * lanes_.lane_bytes(); }

 private:
  const Lanes& lanes_;
  int32_t position_;
  int32_t group_;
  int64_t stride_;
  int64_t next_ = 0;
  std::vector<float> q_, out_ = {}, sums_ = {};
  std::vector<AttendTask> tasks_ = {};
};

constexpr int kWarm = 2;
constexpr int kSteps = 9;

double TimeStep(Step& step, Ops& ops, const Rope& rope, Step::Kind kind) {
  for (int i = 0; i < kWarm; ++i) step.Run(ops, rope, kind);
  std::vector<double> times;
  for (int i = 0; i < kSteps; ++i) times.push_back(step.Run(ops, rope, kind));
  return Median(times);
}

struct AttentionSamples {
  std::vector<double> rate = {}, share = {}, rope = {}, observed = {}, scattered = {};
};

// `again`: bytes of each thread's part of a cache that the lanes lie in; 0: they lie in memory.
AttentionSamples MeasureAttention(Ops& ops, Meter& meter, Step& step, const AttentionOptions& options, int32_t rounds,
                                  int64_t again) {
  const Rope rotated = RopeOf(options.head_dim), plain = RopeOf(0);
  AttentionSamples samples;
  for (int32_t round = -1; round < rounds; ++round) {
    const double ceiling = again > 0 ? meter.ReadAgain(again) : meter.Read();
    const double seconds = TimeStep(step, ops, rotated, Step::Kind::kPlain);
    const double unrotated = TimeStep(step, ops, plain, Step::Kind::kPlain);
    const double observed = TimeStep(step, ops, rotated, Step::Kind::kObserved);
    const double scattered = TimeStep(step, ops, rotated, Step::Kind::kScattered);
    if (round < 0) continue;
    samples.rate.push_back(step.bytes() / seconds);
    samples.share.push_back(step.bytes() / seconds / ceiling);
    samples.rope.push_back(seconds / unrotated);
    samples.observed.push_back(observed / seconds);
    samples.scattered.push_back(scattered / seconds);
  }
  return samples;
}

absl::Status RunAttention(const cli::Shell& shell, const Common& common, const AttentionOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Ops> ops, MakeCpuOps({.isa = options.isa, .threads = common.Threads()}));
  int64_t lane_bytes = 0;  // the largest that is read from a cache
  for (const KvType type : options.kv_types) {
    lane_bytes = std::max(lane_bytes, Lanes::BytesOf({.type = type, .head_dim = options.head_dim}, options.slots[0]));
  }
  EBB_ASSIGN(const std::unique_ptr<Meter> meter, MakeMeter(common, lane_bytes + (int64_t{2} << 20)));
  const int64_t memory = common.read_mib > 0 ? common.read_mib << 20 : DefaultReadBytes(ReadCaches());
  auto facts = MachineFacts(common);
  facts.emplace_back("engine", std::string(ops->fingerprint()));
  facts.emplace_back("sessions", int64_t{options.sessions});
  facts.emplace_back("kv_heads", int64_t{options.kv_heads});
  facts.emplace_back("head_dim", int64_t{options.head_dim});
  Report report("attention",
                {{.key = "kv_dtype", .header = "K, V"},
                 {.key = "group", .header = "group"},
                 {.key = "slots", .header = "slots"},
                 {.key = "place", .header = "in"},
                 {.key = "kv_bytes_per_second", .header = "K and V, GB/s", .scale = 1e-9, .digits = 1},
                 {.key = "share", .header = "share of reading there, %", .scale = 100, .digits = 1},
                 {.key = "rope_cost", .header = "with / without RoPE", .digits = 2},
                 {.key = "observed_cost", .header = "observed / not", .digits = 2},
                 {.key = "scattered_cost", .header = "positions in no order / in order", .digits = 2}},
                std::move(facts));
  for (const KvType type : options.kv_types) {
    const KvFormat format = {.type = type, .head_dim = options.head_dim};
    for (size_t s = 0; s < options.slots.size(); ++s) {
      const int32_t slots = options.slots[s];
      const int64_t per_step = int64_t{options.sessions} * options.kv_heads;
      // So many that a step's lanes are out of every cache when they are read again.
      const int64_t count = std::max(per_step, memory / Lanes::BytesOf(format, slots));
      const Lanes lanes(*ops, format, slots, count, common.seed);
      for (const int32_t group : options.groups) {
        const auto add = [&](const std::string& place, int64_t lanes_per_step, int64_t again, const Lanes& of) {
          Step step(of, lanes_per_step, group, slots, options.head_dim, common.seed);
          const AttentionSamples samples = MeasureAttention(*ops, *meter, step, options, common.rounds, again);
          report.Add({std::string(NameOf(type)), int64_t{group}, int64_t{slots}, place, SpreadOf(samples.rate),
                      SpreadOf(samples.share), SpreadOf(samples.rope), SpreadOf(samples.observed),
                      SpreadOf(samples.scattered)});
        };
        add("memory", per_step, 0, lanes);
        if (s > 0) continue;
        const Lanes cached(*ops, format, slots, common.Threads(), common.seed);  // a lane a thread, over and over
        add("cache", common.Threads(), Lanes::BytesOf(format, slots) / 512 * 512, cached);
      }
    }
  }
  report.Print(shell.json, common.form);
  return absl::OkStatus();
}

}  // namespace

void AddAttention(Command bench, cli::Shell& shell) {
  const Command command = bench.add_subcommand("attention", "Decode attention over one layer's K and V");
  const auto common = std::make_shared<Common>();
  const auto options = std::make_shared<AttentionOptions>();
  command.add_option("--slots", options->slots, "Tokens in a lane, with commas")
      .delimiter(',')
      .range(16, 1 << 20)
      .default_str("1024,4096,8192");
  command.add_option("--groups", options->groups, "Query heads of a KV head, with commas")
      .delimiter(',')
      .range(1, 64)
      .default_str("4");
  AddKvTypes(command, options->kv_types);
  command.add_option("--sessions", options->sessions, "In a step").range(1, 512).default_str("8");
  command.add_option("--kv-heads", options->kv_heads, "Of a layer").range(1, 256).default_str("8");
  command.add_option("--head-dim", options->head_dim, "Components of a head")
      .one_of({16, 32, 64, 96, 128, 256})
      .default_str("128");
  command.add_option("--isa", options->isa,
                     "Instruction set: scalar, avx2 or avx512; default: EBB_ISA, else the best here");
  AddCommonOptions(command, *common);
  command.footer(
      "Each step is over other lanes, as many as fill --read-mib, so that K and V come from memory; the rows\n"
      "'cache' are one lane a thread, over and over. share: bytes of K and V by the rate of plain reading from the\n"
      "same place in the same round. observed: every slot's attention is reported (what h2o goes by). positions in\n"
      "no order: slots have theirs as a cache has them in which tokens took the places of others.\n"
      "Example:\n  ebb bench attention --slots 4096 --kv-dtype bf16,int8");
  command.callback([&shell, common, options] { Check(shell, RunAttention(shell, *common, *options)); });
}

}  // namespace ebb::bench
