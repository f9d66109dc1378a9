// Inner loops that do nothing but read, or nothing but arithmetic in registers: what a core can do at most, by the best
// instruction that this processor has.

#ifndef EBB_BENCH_LOOPS_H_
#define EBB_BENCH_LOOPS_H_

#include <cstddef>
#include <cstdint>

namespace ebb::bench {

// Arithmetic on accumulators that do not wait for each other; nothing is loaded.
struct ArithmeticLoop {
  const char* instruction = "";  // "vpdpbusd zmm"; says what stands in where the processor has no such instruction
  int accumulators = 0;          // enough for the latency of any unit: 12 and more
  double operations = 0;         // of one round over all accumulators, a multiply-add counting two
  // A sum over the accumulators, of which the i-th began with i: what is made of one cannot be used for another.
  double (*run)(int64_t rounds) = {};
};

ArithmeticLoop Int8Loop();
ArithmeticLoop Bf16Loop();
ArithmeticLoop FmaLoop();
// One addition per round that waits for the one before: rounds per second is the clock. Rounds: a multiple of 32.
ArithmeticLoop ClockLoop();

struct ReadLoop {
  const char* instruction = "";
  // The sum of the words of 8 bytes. `bytes` a multiple of 512, `data` aligned to 64.
  uint64_t (*run)(const std::byte* data, int64_t bytes) = {};
};
ReadLoop BestReadLoop();

}  // namespace ebb::bench

#endif  // EBB_BENCH_LOOPS_H_
