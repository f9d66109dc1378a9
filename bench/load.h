// When requests come, and what their answers' times say: the part of `ebb bench serve` that knows no network.

#ifndef EBB_BENCH_LOAD_H_
#define EBB_BENCH_LOAD_H_

#include <cstdint>
#include <vector>

namespace ebb::bench {

// Seconds at which `count` requests come, ascending from 0: a Poisson process of `rate` per second, so that gaps are
// -ln(1 - u) / rate. Same seed, same times. REQUIRES: rate > 0.
std::vector<double> PoissonArrivals(double rate, int32_t count, uint64_t seed);

// One request as its client saw it. Times are seconds on one clock.
struct Answer {
  double due = 0;                     // when it was to be sent; what was late in being sent waits already
  std::vector<double> messages = {};  // when each with tokens came
  int32_t tokens = 0;                 // that were generated
  bool failed = false;
};

// What a request must keep to count for goodput; 0 is no limit.
struct Limits {
  double first_token = 0;  // seconds
  double per_token = 0;    // seconds, as Summary's
};

struct Percentiles {
  double p50 = 0, p95 = 0, p99 = 0;
};

// First token: its time less `due`. Per token: (last - first message) / (tokens - 1), of answers with two and more.
// Gap: between two messages that follow each other, all answers together. Seconds; zeros where there is none.
struct Summary {
  int32_t answered = 0, failed = 0, good = 0;
  double seconds = 0;  // from the first request due to the last message
  double tokens_per_second = 0;
  double goodput = 0;  // requests per second that kept all limits
  Percentiles first_token = {}, per_token = {}, gap = {};
};

Summary Summarize(const std::vector<Answer>& answers, const Limits& limits);

}  // namespace ebb::bench

#endif  // EBB_BENCH_LOAD_H_
