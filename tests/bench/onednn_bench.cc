// Our linear layers beside oneDNN's matrix product, for the same weights, rows and threads. docs/benchmarks/linear.md
// has the table, and docs/explanation/decisions/0011 what followed from it.
//
//   OMP_NUM_THREADS=1 build/release/tests/bench/onednn_bench [--benchmark_filter=BF16]
//
// oneDNN is given its best: a primitive and an order of the weights for each number of rows, chosen by itself before
// the clock runs. What it multiplies in is what we multiply in, except for bytes, where it has one scale for a row of x
// and for a row of weights: less than Q8_0, whose scales belong to 32 columns, so its time is a floor. Both sides begin
// with x in floats and end with y in floats. They take turns within a round.
//
//   ours, onednn  1e9 multiply-adds a second of processor time, medians
//   ratio         of oneDNN's rate to ours, the median of pairs
//   same_bits     1 where rows of the batch have the bits that oneDNN gives each of them alone, 0 where one differs

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "engine/model/quantization.h"
#include "engine/ops/cpu/ops_cpu.h"
#include "policies/hash_random.h"
#include "tests/bench/bandwidth.h"

namespace ebb {
namespace {

int32_t Threads() {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  return threads == nullptr ? 1 : std::atoi(threads);
}

double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

using Memory = dnnl::memory;

std::vector<float> Random(int64_t count, uint64_t seed) {
  HashRandom random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = random.UniformFloat() - 0.5F;
  return values;
}

// y [tokens, rows] = x [tokens, cols] W^T by oneDNN, with weights and rows of `type`.
class OneDnnProduct {
 public:
  OneDnnProduct(DType type, int64_t tokens, int64_t rows, int64_t cols, std::vector<float>& w)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_), bytes_(type == DType::kQ8_0) {
    const auto of = bytes_                 ? Memory::data_type::s8
                    : type == DType::kBf16 ? Memory::data_type::bf16
                                           : Memory::data_type::f32;
    const Memory::desc x({tokens, cols}, of, Memory::format_tag::ab);
    const Memory::desc any({cols, rows}, of, Memory::format_tag::any);
    const Memory::desc y({tokens, rows}, Memory::data_type::f32, Memory::format_tag::ab);
    dnnl::primitive_attr attributes;
    if (bytes_) attributes.set_output_scales(1 << 1, std::vector<float>(static_cast<size_t>(rows), kByte * kByte));
    const dnnl::matmul::primitive_desc chosen({x, any, y}, attributes, engine_);
    product_ = dnnl::matmul(chosen);
    floats_ = Memory::desc({tokens, cols}, Memory::data_type::f32, Memory::format_tag::ab);
    if (of != Memory::data_type::f32) {
      dnnl::primitive_attr round;
      if (bytes_) round.set_output_scales(0, {1 / kByte});
      round_ = dnnl::reorder({engine_, floats_, engine_, x, round});
      x_ = Memory(x, engine_);
    }
    weights_ = Memory(chosen.weights_desc(), engine_);
    const Memory::desc plain({cols, rows}, Memory::data_type::f32, Memory::format_tag::ba);
    dnnl::primitive_attr pack;
    if (bytes_) pack.set_output_scales(0, {1 / kByte});
    Memory from(plain, engine_, w.data());
    dnnl::reorder({engine_, plain, engine_, chosen.weights_desc(), pack}).execute(stream_, from, weights_);
    y_desc_ = y;
    stream_.wait();
  }

  void Run(std::vector<float>& x, std::vector<float>& y) {
    Memory in(floats_, engine_, x.data());
    Memory out(y_desc_, engine_, y.data());
    if (round_) round_.execute(stream_, in, x_);
    product_.execute(stream_, {{DNNL_ARG_SRC, round_ ? x_ : in}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, out}});
    stream_.wait();
  }

 private:
  static constexpr float kByte = 1.0F / 254;  // of values in -0.5 .. 0.5

  dnnl::engine engine_;
  dnnl::stream stream_;
  bool bytes_;
  dnnl::matmul product_;
  dnnl::reorder round_;
  Memory x_, weights_;
  Memory::desc floats_, y_desc_;
};

// Whether some rows of y have the bits that they have alone.
bool SameAlone(DType type, int64_t rows, int64_t cols, std::vector<float>& w, const std::vector<float>& x,
               const std::vector<float>& y) {
  OneDnnProduct alone(type, 1, rows, cols, w);
  const int64_t tokens = static_cast<int64_t>(x.size()) / cols;
  std::vector<float> one(static_cast<size_t>(rows));
  for (const int64_t row : {int64_t{0}, tokens / 2, tokens - 1}) {
    std::vector<float> its(x.begin() + row * cols, x.begin() + (row + 1) * cols);
    alone.Run(its, one);
    if (std::memcmp(one.data(), y.data() + row * rows, one.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

std::vector<std::byte> Stored(DType type, const std::vector<float>& w, int64_t rows, int64_t cols) {
  std::vector<std::byte> data(static_cast<size_t>(rows * RowBytes(type, cols)));
  if (type == DType::kF32) {
    std::memcpy(data.data(), w.data(), data.size());
  } else if (type == DType::kBf16) {
    for (size_t i = 0; i < w.size(); ++i) {
      const uint16_t half = Bf16FromFloat(w[i]);
      std::memcpy(data.data() + 2 * i, &half, sizeof(half));
    }
  } else {  // Q8_0, one scale for all
    const uint16_t scale = F16FromFloat(1.0F / 254);
    for (size_t i = 0; i < w.size(); ++i) {
      std::byte* const block = data.data() + i / 32 * 34;
      std::memcpy(block, &scale, sizeof(scale));
      block[2 + i % 32] = static_cast<std::byte>(static_cast<int8_t>(std::lround(w[i] * 254)));
    }
  }
  return data;
}

void Compare(benchmark::State& state, DType type) {
  const int64_t tokens = state.range(0), rows = state.range(1), cols = state.range(2);
  std::vector<float> w = Random(rows * cols, 1);
  std::vector<float> x = Random(tokens * cols, 2);
  std::vector<float> y(static_cast<size_t>(tokens * rows));
  const auto ops = *MakeCpuOps({.threads = Threads()});
  const auto packed =
      ops->Pack({.name = "w", .type = type, .rows = rows, .cols = cols, .data = Stored(type, w, rows, cols)});
  OneDnnProduct theirs(type, tokens, rows, cols, w);
  theirs.Run(x, y);
  const bool same = SameAlone(type, rows, cols, w, x, y);
  const auto ours = [&] { ops->Linear(*packed, x, static_cast<int32_t>(tokens), Ops::Into::kSet, y); };
  ours();
  std::vector<double> our_seconds, their_seconds, ratios;
  const auto timed = [](const auto& work) {
    const double begin = ProcessorSeconds();
    work();
    return ProcessorSeconds() - begin;
  };
  for (auto _ : state) {
    our_seconds.push_back(timed(ours));
    their_seconds.push_back(timed([&] { theirs.Run(x, y); }));
    ratios.push_back(our_seconds.back() / their_seconds.back());
    state.SetIterationTime(our_seconds.back() + their_seconds.back());
  }
  const double work = 1e-9 * static_cast<double>(tokens * rows * cols);
  state.counters["ours"] = work / Median(our_seconds);
  state.counters["onednn"] = work / Median(their_seconds);
  state.counters["ratio"] = Median(ratios);
  state.counters["same_bits"] = same ? 1 : 0;
}

void Shapes(benchmark::internal::Benchmark* bench) {
  for (const int64_t tokens : {1, 8, 64, 512}) {
    bench->Args({tokens, 2816, 1024});
    bench->Args({tokens, 4096, 4096});
  }
  bench->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(Compare, BF16, DType::kBf16)->Apply(Shapes);
BENCHMARK_CAPTURE(Compare, F32, DType::kF32)->Apply(Shapes);
BENCHMARK_CAPTURE(Compare, Q8_0, DType::kQ8_0)->Apply(Shapes);

}  // namespace
}  // namespace ebb

BENCHMARK_MAIN();
