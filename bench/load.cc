#include "bench/load.h"

#include <algorithm>
#include <cmath>

#include "bench/statistics.h"
#include "policies/hash_random.h"

namespace ebb::bench {
namespace {

constexpr uint64_t kArrivals = 1;  // purpose of the seed

Percentiles PercentilesOf(const std::vector<double>& values) {
  if (values.empty()) return {};
  return {.p50 = Percentile(values, 0.5), .p95 = Percentile(values, 0.95), .p99 = Percentile(values, 0.99)};
}

}  // namespace

std::vector<double> PoissonArrivals(double rate, int32_t count, uint64_t seed) {
  std::vector<double> times;
  double now = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (i > 0) now -= std::log1p(-HashUniform(seed, kArrivals, static_cast<uint64_t>(i))) / rate;
    times.push_back(now);
  }
  return times;
}

Summary Summarize(const std::vector<Answer>& answers, const Limits& limits) {
  Summary summary;
  std::vector<double> first, per_token, gaps;
  double begin = 0, end = 0, tokens = 0;
  for (const Answer& answer : answers) {
    begin = &answer == &answers.front() ? answer.due : std::min(begin, answer.due);
    if (answer.failed || answer.messages.empty()) {
      ++summary.failed;
      continue;
    }
    ++summary.answered;
    end = std::max(end, answer.messages.back());
    tokens += answer.tokens;
    first.push_back(answer.messages.front() - answer.due);
    bool good = limits.first_token == 0 || first.back() <= limits.first_token;
    if (answer.tokens > 1) {
      per_token.push_back((answer.messages.back() - answer.messages.front()) / (answer.tokens - 1));
      good = good && (limits.per_token == 0 || per_token.back() <= limits.per_token);
    }
    if (good) ++summary.good;
    for (size_t i = 1; i < answer.messages.size(); ++i) gaps.push_back(answer.messages[i] - answer.messages[i - 1]);
  }
  summary.first_token = PercentilesOf(first);
  summary.per_token = PercentilesOf(per_token);
  summary.gap = PercentilesOf(gaps);
  if (summary.answered == 0 || end <= begin) return summary;
  summary.seconds = end - begin;
  summary.tokens_per_second = tokens / summary.seconds;
  summary.goodput = summary.good / summary.seconds;
  return summary;
}

}  // namespace ebb::bench
