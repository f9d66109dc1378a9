// Decode at batch 1: which share of the machine's read bandwidth the weights are streamed at.
//
//   /usr/bin/python3 tests/support/make_models.py --preset perf-0.5b --type q8_0 -o /tmp/perf.gguf
//   build/release/tests/bench/decode_bench /tmp/perf.gguf [threads [policy]]
//
// Rounds of plain reading and of decoding alternate; the share is taken within a round, since shared machines vary by
// the minute.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "policies/status.h"
#include "tests/bench/bandwidth.h"

namespace ebb {
namespace {

constexpr int kRounds = 9;
constexpr int kSteps = 16;
constexpr int32_t kBudget = 512;

absl::Status Bench(const std::string& path, int32_t threads, const std::string& policy_name) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine,
             Engine::Open({.model_path = path, .threads = threads, .arena_bytes = int64_t{1} << 30}));
  EBB_ASSIGN(const ValidSpec policy,
             Resolve({.scorer = policy_name, .budget = kBudget}, {.trained_context = engine->config().context}));
  EBB_ASSIGN(const std::unique_ptr<Session> session, engine->OpenSession({.policy = policy}));
  int32_t next = 0;
  const auto step = [&](int32_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = (next += 7919) % engine->config().vocab;
    BatchRow row{.session = session.get(), .tokens = tokens, .want = Want::kLast};
    const double begin = Seconds();
    engine->Run({&row, 1});
    return Seconds() - begin;
  };
  while (session->cache_length() < kBudget) step(64);

  Parallel pool(engine->threads());
  Bandwidth bandwidth;
  const auto weights = static_cast<double>(engine->memory().weight_bytes);
  std::vector<double> shares;
  std::printf("%s, %d threads, %s, cache %d, weights %.0f MB\n", engine->fingerprint().c_str(), engine->threads(),
              policy_name.c_str(), kBudget, weights / 1e6);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> read, decode;
    for (int i = 0; i < 3; ++i) read.push_back(bandwidth.Measure(pool));
    for (int i = 0; i < kSteps; ++i) decode.push_back(step(1));
    const double rate = weights / Median(decode);
    shares.push_back(rate / Median(read));
    std::printf("round %d: reads %.1f GB/s, decode %.1f tokens/s = %.1f GB/s of weights, share %.2f\n", round,
                Median(read) / 1e9, 1 / Median(decode), rate / 1e9, shares.back());
  }
  std::sort(shares.begin(), shares.end());
  std::printf("share of the bandwidth: median %.2f, least %.2f, most %.2f of %d rounds\n", shares[kRounds / 2],
              shares.front(), shares.back(), kRounds);
  return absl::OkStatus();
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: decode_bench MODEL.gguf [threads [policy]]\n");
    return 2;
  }
  const absl::Status status = ebb::Bench(argv[1], argc > 2 ? std::atoi(argv[2]) : 0, argc > 3 ? argv[3] : "streaming");
  if (!status.ok()) std::fprintf(stderr, "decode_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
