#include "tests/support/test_engine.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "policies/check.h"
#include "policies/hash_random.h"
#include "tests/support/random_calibration.h"

namespace ebb {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  EBB_CHECK(value.ok());
  return *std::move(value);
}

}  // namespace

std::unique_ptr<Engine> OpenTestEngine(const std::string& path, const TestEngineOptions& options) {
  return OrDie(Engine::Open({.model_path = path,
                             .threads = options.threads,
                             .arena_bytes = options.arena_bytes,
                             .prefix_share = options.prefix_share,
                             .step_tokens_max = options.step_tokens_max,
                             .accuracy = options.accuracy,
                             .isa = options.isa}));
}

ValidSpec TestPolicy(const PolicySpec& spec, int32_t trained_context) {
  return OrDie(Resolve(spec, {.trained_context = trained_context, .calibration = &TestCalibration()}));
}

std::unique_ptr<Session> OpenTestSession(Engine& engine, const PolicySpec& spec, int32_t block_size_max) {
  return OrDie(engine.OpenSession(
      {.policy = OrDie(Resolve(spec, LimitsOf(engine.config()))), .block_size_max = block_size_max}));
}

std::vector<int32_t> RandomTokens(uint64_t seed, int32_t count, int32_t vocab) {
  HashRandom random(seed);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(random.Uniform(0, vocab - 1));
  return tokens;
}

std::vector<float> Step(Engine& engine, Session& session, std::span<const int32_t> tokens, Want want) {
  EBB_CHECK(session.CanAppend(static_cast<int32_t>(tokens.size())).ok());
  BatchRow row = {.session = &session, .tokens = tokens, .want = want};
  EBB_CHECK(engine.OwnPages(row).ok());
  engine.Run({&row, 1});
  return {row.logits.begin(), row.logits.end()};
}

std::vector<float> Feed(Engine& engine, Session& session, std::span<const int32_t> tokens, int32_t block) {
  std::vector<float> logits;
  for (size_t first = 0; first < tokens.size(); first += block) {
    const size_t count = std::min<size_t>(block, tokens.size() - first);
    const std::vector<float> rows = Step(engine, session, tokens.subspan(first, count), Want::kAll);
    logits.insert(logits.end(), rows.begin(), rows.end());
  }
  return logits;
}

std::vector<int32_t> Greedy(Engine& engine, Session& session, std::vector<float> logits, int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(BestToken(logits));
    logits = Step(engine, session, {&tokens.back(), 1});
  }
  return tokens;
}

int32_t BestToken(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

double LargestDifference(std::span<const float> a, std::span<const float> b) {
  EBB_CHECK(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

std::vector<int32_t> LiveTokens(const Engine& engine, const Session& session, int32_t layer, int32_t head) {
  std::vector<int32_t> tokens = OrDie(engine.Describe(session, layer, head)).front().tokens;
  std::ranges::sort(tokens);
  return tokens;
}

}  // namespace ebb
