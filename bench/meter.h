// What this machine gives right now: bytes read per second, and operations per second of each kind. Shared machines
// vary by the minute, so every verb measures this anew beside what it compares with it.

#ifndef EBB_BENCH_METER_H_
#define EBB_BENCH_METER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "bench/loops.h"
#include "bench/roofline.h"

namespace ebb::bench {

// Seconds since some moment.
inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Bytes of the CPU's caches as the system tells them; 0 where it does not.
struct Caches {
  int64_t l2 = 0;  // of one core
  int64_t l3 = 0;  // of all that share it
};
Caches ReadCaches();

// Memory for reading, at least 1.5 GB and four times the L3, but not more than a quarter of what this process may take.
int64_t DefaultReadBytes(const Caches& caches);

// Threads of its own, which sleep between two measurements. Used by one thread.
class Meter {
 public:
  // `read_bytes`: what Read goes through, in large pages, every thread's part written and read once by itself.
  // RESOURCE_EXHAUSTED where the system does not give them, or UsableMemory says that there are fewer. REQUIRES:
  // threads in 1 .. kThreadsMax, read_bytes > 0.
  static absl::StatusOr<std::unique_ptr<Meter>> Make(int32_t threads, int64_t read_bytes);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  int32_t threads() const;

  // Bytes per second of all threads, each going on in its part where it was left the last time, so that what is read
  // was not read a moment ago.
  double Read();
  // Likewise of `bytes` per thread, over and over: a cache's rate. REQUIRES: what the constructor was given is enough.
  double ReadAgain(int64_t bytes);
  // Operations per second of all threads.
  double Operations(const ArithmeticLoop& loop);

  // All that a roofline needs. BF16 may be multiplied as float32, and is where that is faster: the better of the two.
  Rates Measure();

 private:
  struct State;
  explicit Meter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ebb::bench

#endif  // EBB_BENCH_METER_H_
