// What drawing one token costs, in microseconds, by options and by how peaked the distribution is.
//
//   build/release/tests/bench/sampler_bench [vocab]
//
// Logits are normal with a standard deviation of 1 (flat: hundreds of thousands of tokens share the mass) or 4 (peaked:
// a few hundred have 95 % of it, as after a language model); each draw has its own row of logits, too many for L2.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <vector>

#include "engine/sampler.h"
#include "policies/hash_random.h"
#include "tests/bench/bandwidth.h"

namespace ebb {
namespace {

constexpr int kRows = 16;
constexpr int kDraws = 10;

std::vector<float> NormalLogits(int32_t vocab, double deviation, uint64_t seed) {
  std::vector<float> logits;
  for (int32_t i = 0; i < vocab; ++i) {
    const double radius = std::sqrt(-2 * std::log1p(-HashUniform(seed, 1, i)));
    logits.push_back(static_cast<float>(deviation * radius * std::cos(2 * std::numbers::pi * HashUniform(seed, 2, i))));
  }
  return logits;
}

void Bench(int32_t vocab) {
  struct Case {
    const char* name;
    SamplingOptions options;
  };
  const std::vector<Case> cases = {
      {"greedy", {.temperature = 0}},
      {"temperature alone", {.temperature = 0.8F}},
      {"top_k 40", {.top_k = 40}},
      {"top_p 0.95", {.top_p = 0.95F}},
      {"min_p 0.05", {.min_p = 0.05F}},
      {"top_k 40, top_p 0.95, min_p 0.05", {.top_k = 40, .top_p = 0.95F, .min_p = 0.05F}},
      {"typical_p 0.95", {.typical_p = 0.95F}},
      {"repetition_penalty 1.1, top_p 0.95", {.top_p = 0.95F, .repetition_penalty = 1.1F}},
      {"top_p 0.95, 5 alternatives", {.top_p = 0.95F, .logprobs = 5}},
  };
  Sampler sampler(vocab);
  const std::vector<int32_t> log(64, 17);
  std::printf("vocabulary %d; median us a draw\n%-36s %-10s %s\n", vocab, "", "peaked", "flat");
  for (const Case& c : cases) {
    std::printf("%-36s", c.name);
    for (const double deviation : {4.0, 1.0}) {
      std::vector<std::vector<float>> rows;
      for (int row = 0; row < kRows; ++row) rows.push_back(NormalLogits(vocab, deviation, static_cast<uint64_t>(row)));
      std::vector<double> times;
      SamplingOptions options = c.options;
      for (int draw = 0; draw < kDraws * kRows; ++draw) {
        options.seed = static_cast<uint64_t>(draw);
        const double begin = Seconds();
        const std::vector<float>& row = rows[static_cast<size_t>(draw % kRows)];
        if (options.logprobs > 0) {
          sampler.Draw(options, row, log);
        } else {
          sampler.DrawToken(options, row, log);
        }
        times.push_back(Seconds() - begin);
      }
      std::printf(" %-10.0f", 1e6 * Median(times));
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  ebb::Bench(argc > 1 ? std::atoi(argv[1]) : 151936);
  return 0;
}
