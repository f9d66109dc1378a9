// Linear: bytes of weights per second against memory bandwidth (few rows), multiply-adds per second (many rows).
//
//   build/release/tests/bench/linear_bench [--benchmark_filter=Q8_0] ; threads from EBB_THREADS, default 2;
//   fast arithmetic, or exact where EBB_EXACT is set
//
// The large matrix does not fit a core's caches: its weights come from memory. The small one shows what the arithmetic
// itself costs. `share` is the weights' rate over the bandwidth measured just before it by the same process: the median
// of pairs.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/model/quantization.h"
#include "engine/ops/cpu/ops_cpu.h"
#include "policies/hash_random.h"
#include "tests/bench/bandwidth.h"

namespace ebb {
namespace {

int32_t Threads() {
  const char* threads = std::getenv("EBB_THREADS");
  return threads == nullptr ? 2 : std::atoi(threads);
}

// Values as weights have them: no subnormals, which would slow multiply-adds a hundredfold.
std::unique_ptr<PackedMatrix> RandomMatrix(Ops& ops, DType type, int64_t rows, int64_t cols) {
  std::vector<std::byte> data(static_cast<size_t>(rows * RowBytes(type, cols)));
  HashRandom random(1);
  for (size_t at = 0; at < data.size(); at += static_cast<size_t>(BlockBytes(type))) {
    const float value = 0.01F + random.UniformFloat();
    const uint16_t half = type == DType::kBf16 ? Bf16FromFloat(value) : F16FromFloat(value);
    if (type == DType::kF32) {
      std::memcpy(data.data() + at, &value, sizeof(value));
      continue;
    }
    for (int64_t i = 0; i < BlockBytes(type); ++i)
      data[at + static_cast<size_t>(i)] = static_cast<std::byte>(random.Next64());
    std::memcpy(data.data() + at + (type == DType::kQ6_K ? 208 : 0), &half, sizeof(half));
    if (type == DType::kQ4_K || type == DType::kQ5_K) std::memcpy(data.data() + at + 2, &half, sizeof(half));  // dmin
  }
  return ops.Pack({.name = "w", .type = type, .rows = rows, .cols = cols, .data = data});
}

void Linear(benchmark::State& state, DType type) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  const int64_t rows = state.range(1);
  const int64_t cols = state.range(2);
  const auto ops =
      *MakeCpuOps({.accuracy = std::getenv("EBB_EXACT") ? Accuracy::kExact : Accuracy::kFast, .threads = Threads()});
  const auto w = RandomMatrix(*ops, type, rows, cols);
  const std::vector<float> x(static_cast<size_t>(tokens * cols), 0.5F);
  std::vector<float> y(static_cast<size_t>(tokens * rows));
  Parallel parallel(Threads());
  Bandwidth memory;
  const bool from_memory = w->bytes() > int64_t{16} << 20;
  std::vector<double> seconds;
  std::vector<double> shares;
  for (auto _ : state) {
    const double bandwidth = from_memory ? memory.Measure(parallel) : 0;
    const double begin = Seconds();
    ops->Linear(*w, x, tokens, Ops::Into::kSet, y);
    seconds.push_back(Seconds() - begin);
    if (from_memory) shares.push_back(static_cast<double>(w->bytes()) / seconds.back() / bandwidth);
    state.SetIterationTime(seconds.back());
  }
  state.counters["GB/s"] = 1e-9 * static_cast<double>(w->bytes()) / Median(seconds);
  state.counters["GMAC/s"] = 1e-9 * static_cast<double>(tokens * rows * cols) / Median(seconds);
  if (from_memory) state.counters["share"] = Median(shares);
}

void Shapes(benchmark::internal::Benchmark* bench) {
  for (const int64_t tokens : {1, 2, 4, 8, 16, 32, 128, 512}) bench->Args({tokens, 16384, 4096});
  for (const int64_t tokens : {1, 128}) bench->Args({tokens, 1024, 1024});
  bench->Args({128, 4096, 1024});
  bench->Args({128, 1024, 4096});
  bench->Args({32, 4096, 4096});
  bench->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(Linear, Q8_0, DType::kQ8_0)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, Q4_0, DType::kQ4_0)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, Q4_K, DType::kQ4_K)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, Q5_K, DType::kQ5_K)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, Q6_K, DType::kQ6_K)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, BF16, DType::kBf16)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, F16, DType::kF16)->Apply(Shapes);
BENCHMARK_CAPTURE(Linear, F32, DType::kF32)->Apply(Shapes);

}  // namespace
}  // namespace ebb

BENCHMARK_MAIN();
