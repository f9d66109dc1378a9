// Attend: bytes of K and V per second against memory bandwidth (decode), multiply-adds per second (prefill), and what
// rotation, a second rotated query, the rotate-half cache and observations cost. 128 sessions are half a gigabyte: past
// any cache.
//
//   build/release/tests/bench/attend_bench [--benchmark_filter=Decode] ; threads from EBB_THREADS, default 2
//
// A step of one layer: `sessions` x 8 lanes of d = 128, 4 query heads each. Every variant runs in turn with the plain
// one (fused rotation, BF16, nothing observed) in one process, each as often first as second; `cost` is the median
// ratio of such pairs, over both orders, by what a single thread had of a processor (EBB_THREADS=1: whoever else runs
// counts for less), else by the clock. `share` is the rate over the bandwidth measured just before.

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "engine/ops/cpu/ops_cpu.h"
#include "tests/bench/bandwidth.h"
#include "tests/support/test_lane.h"

namespace ebb {
namespace {

constexpr int32_t kHeads = 8;
constexpr int32_t kGroup = 4;
constexpr int32_t kDim = 128;

struct Variant {
  KvType type = KvType::kBf16;
  RopeCache rope_cache = RopeCache::kFused;
  bool rotated = true;
  bool shared_angles = false;
  bool observed = false;
  // Lazy's query segments: the first page of a lane, where its sinks are, and the rest see the query rotated to two
  // positions. Each part of the lane is a task with a result of its own, which are not joined here.
  bool two_queries = false;
};

int32_t Threads() {
  const char* threads = std::getenv("EBB_THREADS");
  return threads == nullptr ? 2 : std::atoi(threads);
}

struct Times {
  double wall = 0;
  double own = 0;  // what this thread had of a processor
};
Times Now() {
  timespec own = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &own);
  return {.wall = Seconds(), .own = static_cast<double>(own.tv_sec) + 1e-9 * static_cast<double>(own.tv_nsec)};
}

// All lanes of a layer, full, and the tasks of one step over them.
class Layer {
 public:
  Layer(Ops& ops, const Variant& variant, int32_t sessions, int32_t tokens, int32_t slots)
      : rope_(MakeRope(TestRope(RopePairs::kHalves, variant.rotated ? kDim : 0))),
        stride_(int64_t{kHeads} * kGroup * kDim) {
    const KvFormat format = {.type = variant.type, .rope_cache = variant.rope_cache, .head_dim = kDim, .page_tiles = 4};
    std::vector<int32_t> all(static_cast<size_t>(slots));
    for (int32_t s = 0; s < slots; ++s) all[static_cast<size_t>(s)] = s;
    const std::vector<float> k = RandomFloats(1, 1, int64_t{slots} * kDim);
    for (int32_t lane = 0; lane < sessions * kHeads; ++lane) {
      lanes_.emplace_back(format, slots);
      lanes_.back().Write(ops, rope_, all, all, k, k);
    }
    for (int32_t t = 0; t < tokens; ++t) q_position_.push_back(slots - tokens + t);
    for (const int32_t position : q_position_) second_position_.push_back(position + 32);
    angles_.resize(lanes_[0].position().size() * kDim);
    q_ = RandomFloats(1, 2, sessions * tokens * stride_);
    out_.resize(q_.size());
    second_out_.resize(q_.size());
    sums_.resize(lanes_.size() * static_cast<size_t>(slots));
    for (int32_t lane = 0; lane < sessions * kHeads; ++lane) {
      const int64_t at = lane / kHeads * tokens * stride_ + lane % kHeads * kGroup * kDim;
      tasks_.push_back({.lane = lanes_[static_cast<size_t>(lane)].storage(),
                        .q = q_.data() + at,
                        .out = out_.data() + at,
                        .stride = stride_,
                        .tokens = tokens,
                        .q_position = q_position_.data()});
      if (variant.shared_angles) tasks_.back().lane.angles = angles_.data();
      if (variant.observed) tasks_.back().column_sums = sums_.data() + int64_t{lane} * slots;
      if (!variant.two_queries) continue;
      const int32_t first = format.page_tiles * kTileSlots;
      AttendTask rest = tasks_.back();
      tasks_.back().lane.slots = first;
      rest.lane.pages += 1;
      rest.lane.position += first;
      rest.lane.slots -= first;
      rest.out = second_out_.data() + at;
      rest.q_position = second_position_.data();
      tasks_.push_back(rest);
    }
    bytes_ = static_cast<double>(lanes_.size()) * slots / kTileSlots * static_cast<double>(format.tile_bytes());
    macs_ = static_cast<double>(sessions) * kHeads * kGroup * tokens * slots * kDim * 2;
  }

  Times Run(Ops& ops) {
    const Times begin = Now();
    if (tasks_[0].lane.angles != nullptr) ops.Angles(rope_, lanes_[0].position(), angles_);
    ops.Attend(rope_, kGroup, tasks_);
    const Times end = Now();
    return {.wall = end.wall - begin.wall, .own = end.own - begin.own};
  }

  double bytes() const { return bytes_; }
  double macs() const { return macs_; }

 private:
  Rope rope_;
  int64_t stride_;
  std::vector<TestLane> lanes_;
  std::vector<int32_t> q_position_, second_position_;
  std::vector<float> angles_, q_, out_, second_out_, sums_;
  std::vector<AttendTask> tasks_;
  double bytes_ = 0;
  double macs_ = 0;
};

void Step(benchmark::State& state, const Variant& variant, int32_t tokens) {
  const auto ops = *MakeCpuOps({.threads = Threads()});
  const auto sessions = static_cast<int32_t>(state.range(0));
  const auto slots = static_cast<int32_t>(state.range(1));
  Layer plain(*ops, {}, sessions, tokens, slots);
  Layer varied(*ops, variant, sessions, tokens, slots);
  Parallel parallel(Threads());
  Bandwidth memory(int64_t{64} << 20);
  std::vector<double> seconds, shares;
  std::vector<double> costs[2];  // by who runs first, which takes longer after other work, whoever it is
  for (auto _ : state) {
    const double bandwidth = memory.Measure(parallel);
    const size_t turn = seconds.size() % 2;
    Times base;
    if (turn == 0) base = plain.Run(*ops);
    const Times times = varied.Run(*ops);
    if (turn == 1) base = plain.Run(*ops);
    costs[turn].push_back(Threads() == 1 ? times.own / base.own : times.wall / base.wall);
    seconds.push_back(times.wall);
    shares.push_back(varied.bytes() / seconds.back() / bandwidth);
    state.SetIterationTime(seconds.back());
  }
  state.counters["GB/s"] = 1e-9 * varied.bytes() / Median(seconds);
  state.counters["GMAC/s"] = 1e-9 * varied.macs() / Median(seconds);
  state.counters["share"] = Median(shares);
  state.counters["cost"] = std::sqrt(Median(costs[0]) * Median(costs[1]));
}

void Decode(benchmark::State& state, const Variant& variant) { Step(state, variant, 1); }
void Prefill(benchmark::State& state, const Variant& variant) { Step(state, variant, 128); }

void Shapes(benchmark::internal::Benchmark* bench) {
  bench->Args({1, 1024})->Args({8, 1024})->Args({1, 16384})->Args({128, 1024})->UseManualTime()->Iterations(60);
  bench->Unit(benchmark::kMicrosecond);
}
// Of a difference of a few per cent.
void ManyPairs(benchmark::internal::Benchmark* bench) {
  bench->Args({1, 1024})->Args({8, 1024})->UseManualTime()->Iterations(600)->Unit(benchmark::kMicrosecond);
}
void PrefillShapes(benchmark::internal::Benchmark* bench) {
  bench->Args({1, 128})->Args({1, 2048})->UseManualTime()->Iterations(20)->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(Decode, plain, Variant{})->Apply(Shapes);
BENCHMARK_CAPTURE(Decode, unrotated, Variant{.rotated = false})->Apply(Shapes);
BENCHMARK_CAPTURE(Decode, shared_angles, Variant{.shared_angles = true})->Apply(Shapes);
BENCHMARK_CAPTURE(Decode, rk, Variant{.rope_cache = RopeCache::kRk})->Apply(Shapes);
BENCHMARK_CAPTURE(Decode, observed, Variant{.observed = true})->Apply(Shapes);
BENCHMARK_CAPTURE(Decode, two_queries, Variant{.two_queries = true})->Apply(ManyPairs);
BENCHMARK_CAPTURE(Decode, one_query, Variant{})->Apply(ManyPairs);  // what the ratio of two alike comes to
BENCHMARK_CAPTURE(Decode, f32, Variant{.type = KvType::kF32})->Apply(Shapes);
BENCHMARK_CAPTURE(Decode, f16, Variant{.type = KvType::kF16})->Apply(Shapes);
BENCHMARK_CAPTURE(Decode, int8, Variant{.type = KvType::kInt8})->Apply(Shapes);
BENCHMARK_CAPTURE(Decode, fp8, Variant{.type = KvType::kFp8})->Apply(Shapes);
BENCHMARK_CAPTURE(Prefill, plain, Variant{})->Apply(PrefillShapes);
BENCHMARK_CAPTURE(Prefill, shared_angles, Variant{.shared_angles = true})->Apply(PrefillShapes);
BENCHMARK_CAPTURE(Prefill, observed, Variant{.observed = true})->Apply(PrefillShapes);

}  // namespace
}  // namespace ebb

BENCHMARK_MAIN();
