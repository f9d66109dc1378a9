// `ebb bench kv-update`: replacing some of the cached tokens of every head (EQUIP table 6), in place against keeping
// tokens in order.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "bench/lanes.h"
#include "bench/model_run.h"
#include "bench/row_cache.h"
#include "engine/ops/cpu/ops_cpu.h"
#include "policies/hash_random.h"
#include "policies/status.h"

namespace ebb::bench {
namespace {

constexpr int32_t kSinks = 4;

struct KvUpdateOptions {
  std::vector<int32_t> batches = {1, 8};
  std::vector<int32_t> replaced = {1, 64};
  std::vector<KvType> kv_types = {KvType::kBf16, KvType::kF32};
  int32_t tokens = 1024, heads = 64, head_dim = 64;
  std::string isa = {};
};

struct Shape {
  int64_t lanes = 0;
  int32_t replaced = 0;
  KvType type = KvType::kBf16;
  bool random = false;  // who leaves: any of each lane, else the oldest after the sinks, of all lanes
};

Victims ChooseVictims(const KvUpdateOptions& options, const Shape& shape, uint64_t seed) {
  Victims victims(static_cast<size_t>(shape.lanes));
  for (size_t lane = 0; lane < victims.size(); ++lane) {
    HashRandom random(seed, lane);
    std::vector<int32_t> slots;
    for (int32_t s = kSinks; s < options.tokens; ++s) slots.push_back(s);
    for (int32_t i = 0; shape.random && i < shape.replaced; ++i) {
      const int32_t other = random.Uniform(i, static_cast<int32_t>(slots.size()) - 1);
      std::swap(slots[static_cast<size_t>(i)], slots[static_cast<size_t>(other)]);
    }
    victims[lane].assign(slots.begin(), slots.begin() + shape.replaced);
    std::ranges::sort(victims[lane]);
  }
  return victims;
}

double Time(const std::function<void()>& run) {
  const double begin = Now();
  run();
  return Now() - begin;
}

struct KvUpdateSamples {
  std::vector<double> in_place = {}, shift = {}, concatenate = {}, share = {};
};

// All three in turn within a round, each on memory of its own.
KvUpdateSamples MeasureKvUpdate(Ops& ops, Meter& meter, const Common& common, const KvUpdateOptions& options,
                                const Shape& shape) {
  const KvFormat format = {.type = shape.type, .head_dim = options.head_dim};
  const int64_t row_bytes = format.slot_bytes() / 2;
  const std::vector<float> rows = RandomFloats(common.seed, 4, int64_t{shape.replaced} * options.head_dim);
  const std::vector<std::byte> packed(static_cast<size_t>(shape.replaced * row_bytes), std::byte{1});
  const Lanes tiles(ops, format, options.tokens, shape.lanes, common.seed);
  RowCache shifted(shape.lanes, options.tokens, row_bytes), concatenated(shape.lanes, options.tokens, row_bytes);
  std::vector<StoreTask> tasks(static_cast<size_t>(shape.lanes));
  KvUpdateSamples samples;
  for (int32_t round = -1; round < common.rounds; ++round) {
    const Victims victims = ChooseVictims(options, shape, common.seed + static_cast<uint64_t>(round + 1));
    for (size_t lane = 0; lane < tasks.size(); ++lane) {
      tasks[lane] = {.lane = tiles.lane(static_cast<int64_t>(lane)),
                     .k = rows.data(),
                     .v = rows.data(),
                     .stride = options.head_dim,
                     .tokens = shape.replaced,
                     .slots = victims[lane].data()};
    }
    const double reads = meter.Read();  // and so none of the three finds its memory in the caches
    const double in_place = Time([&] { ops.Store({}, tasks); });
    const double shift = Time([&] { shifted.ShiftAndAppend(ops.host_threads(), victims, packed); });
    const double concatenate = Time([&] { concatenated.Concatenate(ops.host_threads(), victims, packed); });
    if (round < 0) continue;
    samples.in_place.push_back(in_place);
    samples.shift.push_back(shift / in_place);
    samples.concatenate.push_back(concatenate / in_place);
    samples.share.push_back(shifted.ShiftBytes(victims) / shift / reads);
  }
  return samples;
}

absl::Status RunKvUpdate(const cli::Shell& shell, const Common& common, const KvUpdateOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Ops> ops, MakeCpuOps({.isa = options.isa, .threads = common.Threads()}));
  EBB_ASSIGN(const std::unique_ptr<Meter> meter, MakeMeter(common));
  auto facts = MachineFacts(common);
  facts.emplace_back("engine", std::string(ops->fingerprint()));
  facts.emplace_back("tokens", int64_t{options.tokens});
  facts.emplace_back("heads", int64_t{options.heads});
  facts.emplace_back("head_dim", int64_t{options.head_dim});
  Report report("kv-update",
                {{.key = "batch", .header = "batch"},
                 {.key = "kv_dtype", .header = "K, V"},
                 {.key = "replaced", .header = "replaced"},
                 {.key = "victims", .header = "victims"},
                 {.key = "in_place_seconds", .header = "in place, ms", .scale = 1e3, .digits = 3},
                 {.key = "shift_ratio", .header = "shift and append / in place", .digits = 1},
                 {.key = "concatenate_ratio", .header = "concatenate / in place", .digits = 1},
                 {.key = "shift_share", .header = "shift's bytes, % of reading", .scale = 100, .digits = 0}},
                std::move(facts));
  for (const int32_t replaced : options.replaced) {
    if (replaced > options.tokens - kSinks) {
      return absl::InvalidArgumentError("--replaced: at most --tokens less 4 sinks may be replaced");
    }
    for (const bool random : {false, true}) {
      for (const KvType type : options.kv_types) {
        for (const int32_t batch : options.batches) {
          const Shape shape = {
              .lanes = int64_t{batch} * options.heads, .replaced = replaced, .type = type, .random = random};
          const KvUpdateSamples samples = MeasureKvUpdate(*ops, *meter, common, options, shape);
          report.Add({int64_t{batch}, std::string(NameOf(type)), int64_t{replaced},
                      std::string(random ? "random" : "oldest"), SpreadOf(samples.in_place), SpreadOf(samples.shift),
                      SpreadOf(samples.concatenate), SpreadOf(samples.share)});
        }
      }
    }
  }
  report.Print(shell.json, common.form);
  return absl::OkStatus();
}

}  // namespace

void AddKvUpdate(Command bench, cli::Shell& shell) {
  const Command command = bench.add_subcommand("kv-update", "Replacing cached tokens: in place, shifted, concatenated");
  const auto common = std::make_shared<Common>();
  const auto options = std::make_shared<KvUpdateOptions>();
  command.add_option("--batches", options->batches, "Sessions, with commas")
      .delimiter(',')
      .range(1, 512)
      .default_str("1,8");
  command.add_option("--replaced", options->replaced, "Tokens that leave every head, with commas")
      .delimiter(',')
      .range(1, 1 << 16)
      .default_str("1,64");
  command.add_option("--tokens", options->tokens, "In every head").range(16, 1 << 20).default_str("1024");
  command.add_option("--heads", options->heads, "Of a session: lanes").range(1, 65536).default_str("64");
  command.add_option("--head-dim", options->head_dim, "Components of a head")
      .one_of({16, 32, 64, 96, 128, 256})
      .default_str("64");
  AddKvTypes(command, options->kv_types);
  command.add_option("--isa", options->isa,
                     "Instruction set: scalar, avx2 or avx512; default: EBB_ISA, else the best here");
  AddCommonOptions(command, *common);
  command.footer(
      "in place: the engine's own write over the slots of who leaves, from float32. shift and append: rows of\n"
      "tokens in order; runs that stay are moved down (memmove), new rows appended. concatenate: what stays and the\n"
      "new rows are gathered into fresh memory. All by the same threads, lane by lane, out of caches. oldest: the\n"
      "same 4 sinks stay and the oldest after them leave every head; random: any of each head.\n"
      "Example:\n  ebb bench kv-update --batches 8 --replaced 64");
  command.callback([&shell, common, options] { Check(shell, RunKvUpdate(shell, *common, *options)); });
}

}  // namespace ebb::bench
