// An engine on a small random model, and the few calls that tests of sessions make over and over.

#ifndef EBB_TESTS_SUPPORT_TEST_ENGINE_H_
#define EBB_TESTS_SUPPORT_TEST_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/support/tiny_model.h"

namespace ebb {

struct TestEngineOptions {
  int32_t threads = 1;
  int64_t arena_bytes = 64 << 20;
  double prefix_share = 0;
  int32_t step_tokens_max = 512;
  std::string isa = {};
  Accuracy accuracy = Accuracy::kExact;
};

// A failure ends the test program, here and below.
std::unique_ptr<Engine> OpenTestEngine(const std::string& path, const TestEngineOptions& options = {});
ValidSpec TestPolicy(const PolicySpec& spec, int32_t trained_context = 4096);
std::unique_ptr<Session> OpenTestSession(Engine& engine, const PolicySpec& spec, int32_t block_size_max = 128);

// `count` ids in 0..vocab-1, by the seed.
std::vector<int32_t> RandomTokens(uint64_t seed, int32_t count, int32_t vocab);

// One step of one session; the logits are copied. Checks that the tokens may be appended, and have pages of their own.
std::vector<float> Step(Engine& engine, Session& session, std::span<const int32_t> tokens, Want want = Want::kLast);

// Feeds the tokens in blocks, the last one shorter; logits of every token, row after row.
std::vector<float> Feed(Engine& engine, Session& session, std::span<const int32_t> tokens, int32_t block);

// `count` greedy tokens after `logits`, each fed as it is chosen.
std::vector<int32_t> Greedy(Engine& engine, Session& session, std::vector<float> logits, int32_t count);

int32_t BestToken(std::span<const float> logits);
double LargestDifference(std::span<const float> a, std::span<const float> b);

// Tokens that live in a lane, ascending.
std::vector<int32_t> LiveTokens(const Engine& engine, const Session& session, int32_t layer, int32_t head);

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_TEST_ENGINE_H_
