// What this machine's memory gives right now: the ceiling that kernels which stream weights are measured against.

#ifndef EBB_TESTS_BENCH_BANDWIDTH_H_
#define EBB_TESTS_BENCH_BANDWIDTH_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/ops/cpu/packed_matrix.h"
#include "engine/parallel.h"
#include "tests/bench/rounds.h"

namespace ebb {

inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Memory much larger than the caches, in large pages as weights are, read end to end by all threads of a pool. Shared
// machines vary by the minute: measure beside what is compared with it, every time anew.
class Bandwidth {
 public:
  explicit Bandwidth(int64_t bytes = int64_t{IsShort() ? 16 : 768} << 20) : memory_(bytes) {
    std::memset(memory_.data(), 1, static_cast<size_t>(bytes));
  }

  // Bytes per second of one pass.
  double Measure(Parallel& parallel) {
    constexpr int64_t kPiece = int64_t{1} << 17;  // words: 1 MiB
    const auto pieces = memory_.size() / (8 * kPiece);
    const double begin = Seconds();
    parallel.For(pieces, [&](int64_t piece, int32_t thread) {
      const uint64_t* from = reinterpret_cast<const uint64_t*>(memory_.data()) + piece * kPiece;
      uint64_t sum[8] = {};  // a line at a time: the loop itself must not be what is measured
      for (int64_t i = 0; i < kPiece; i += 8) {
        for (int64_t j = 0; j < 8; ++j) sum[j] += from[i + j];
      }
      for (const uint64_t part : sum) sums_[static_cast<size_t>(thread) * 8] += part;  // keeps the reads
    });
    return static_cast<double>(pieces * kPiece * 8) / (Seconds() - begin);
  }

 private:
  cpu::AlignedBytes memory_;
  std::vector<uint64_t> sums_ = std::vector<uint64_t>(256 * 8);
};

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace ebb

#endif  // EBB_TESTS_BENCH_BANDWIDTH_H_
