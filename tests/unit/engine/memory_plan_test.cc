// What a plan says is what an engine takes: weights and pages to the byte, and of the whole what the system sees.

#include "engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/gguf.h"
#include "engine/model/hub_model.h"
#include "tests/support/hub_folder.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

absl::StatusOr<MemoryPlan> PlanOf(const std::string& path, const MemoryQuestion& question) {
  EBB_ASSIGN(const GgufFile file, OpenModel(path));
  EBB_ASSIGN(const ModelConfig config, ReadConfig(file));
  EBB_ASSIGN(const Weights weights, FindWeights(file, config));
  return PlanMemory(file, config, weights, question);
}

int64_t AnonymousBytes() {  // pages of files not counted
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0, shared = 0;
  file >> size >> resident >> shared;
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

TEST(MemoryPlan, WeightsAndPagesAreTheEngines) {
  const TinyModel models[] = {{},
                              {.vocab = 300, .type = DType::kQ8_0},
                              {.heads = 8, .kv_heads = 8, .type = DType::kBf16, .tied_head = true},
                              {.architecture = "opt", .kv_heads = 4}};
  for (const TinyModel& model : models) {
    const TinyModelFile file(model);
    const auto engine = OpenTestEngine(file.path());
    for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kInt8, KvType::kFp8}) {
      const SessionOptions session = {.policy = TestPolicy({.scorer = "h2o", .budget = 100, .kv_type = type}),
                                      .block_size_max = 32};
      const MemoryPlan plan =
          PlanOf(file.path(), {.sessions = 3, .session = session, .step_tokens_max = engine->step_tokens_max()})
              .value();
      EXPECT_EQ(plan.weights, engine->memory().weight_bytes);
      EXPECT_EQ(plan.page_bytes, engine->memory().page_bytes);
      const auto sessions = {engine->OpenSession(session).value(), engine->OpenSession(session).value(),
                             engine->OpenSession(session).value()};
      EXPECT_EQ(plan.caches, engine->memory().pages_reserved * plan.page_bytes);
      EXPECT_EQ(plan.session_pages, (*sessions.begin())->pages());
    }
  }
}

// Of a model large enough that little else counts. What the process takes is between nine tenths of the plan, since
// what was never written to takes nothing (scratch for logits of 64 rows, of which these steps want one; the ends of
// lanes), and a fifth more, for what the plan leaves out (what attention reports, the tokenizer, the threads).
TEST(MemoryPlan, TheWholeIsWhatTheProcessTakes) {
#ifdef EBB_SANITIZED
  GTEST_SKIP() << "a sanitizer's own memory would count as the model's";
#endif
  constexpr int32_t kSessions = 4;
  const TinyModelFile file(
      {.layers = 6, .dim = 512, .heads = 8, .kv_heads = 8, .head_dim = 64, .ffn_dim = 2048, .context = 4096});
  const SessionOptions session = {.policy = TestPolicy({.scorer = "streaming", .budget = 1024}), .block_size_max = 512};
  const MemoryPlan plan = PlanOf(file.path(), {.sessions = kSessions, .session = session}).value();
  const int64_t before = AnonymousBytes();
  const auto engine =
      Engine::Open({.model_path = file.path(), .threads = 1, .arena_bytes = plan.caches, .step_tokens_max = 512});
  ASSERT_THAT(engine, IsOk());
  std::vector<std::unique_ptr<Session>> sessions;
  for (int32_t i = 0; i < kSessions; ++i) {
    absl::StatusOr<std::unique_ptr<Session>> opened = (*engine)->OpenSession(session);
    ASSERT_THAT(opened, IsOk());
    sessions.push_back(*std::move(opened));
    for (int32_t block = 0; block < 3; ++block) {
      const std::vector<int32_t> tokens = RandomTokens(static_cast<uint64_t>(i), 512, 261);
      BatchRow row = {.session = sessions.back().get(), .tokens = tokens, .want = Want::kLast};
      ASSERT_THAT((*engine)->OwnPages(row), IsOk());
      (*engine)->Run({&row, 1});
    }
  }
  const int64_t taken = AnonymousBytes() - before;
  EXPECT_GE(taken, plan.total() * 9 / 10);
  EXPECT_LE(taken, plan.total() * 12 / 10);
}

// A folder's q and k lie otherwise than ours, and here are half of its weights: once packed they are given back.
TEST(MemoryPlan, WhatIsCopiedOfAFolderIsGivenBack) {
  constexpr int64_t kWidth = 512, kHidden = 32, kLayers = 6, kVocab = 5;
  HubFolder model;
  model.config.update({{"hidden_size", kWidth},
                       {"intermediate_size", kHidden},
                       {"num_hidden_layers", kLayers},
                       {"num_attention_heads", 8},
                       {"num_key_value_heads", 8},
                       {"vocab_size", kVocab}});
  model.tensors.clear();
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    model.tensors[name] = RandomHubTensor(shape, model.tensors.size());
  };
  add("model.embed_tokens.weight", {kVocab, kWidth});
  add("lm_head.weight", {kVocab, kWidth});
  add("model.norm.weight", {kWidth});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) add(at + name + ".weight", {kWidth});
    for (const char* name : {"q", "k", "v", "o"}) add(at + "self_attn." + name + "_proj.weight", {kWidth, kWidth});
    for (const char* name : {"gate", "up"}) add(at + "mlp." + name + "_proj.weight", {kHidden, kWidth});
    add(at + "mlp.down_proj.weight", {kWidth, kHidden});
  }
  const std::string tokenizer =
      R"({"model": {"type": "BPE", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b": 2}, "merges": []}})";
  const auto bytes = std::as_bytes(std::span(tokenizer));
  model.files["tokenizer.json"] = {bytes.begin(), bytes.end()};
  model.Finish();
  const TemporaryFolder folder;
  model.Write(folder.path());

  const SessionOptions session = {.policy = TestPolicy({.scorer = "streaming", .budget = 32}, 64),
                                  .block_size_max = 16};
  const MemoryPlan plan = PlanOf(folder.path(), {.session = session, .step_tokens_max = 16}).value();
  EXPECT_EQ(plan.copied, 2 * kLayers * kWidth * kWidth * 4);
  EXPECT_EQ(plan.total(), plan.weights + plan.copied);
  malloc_trim(0);  // else copies would lie in what the allocator keeps of the folder's making
  [[maybe_unused]] const int64_t before = AnonymousBytes();
  const auto engine =
      Engine::Open({.model_path = folder.path(), .threads = 1, .arena_bytes = plan.caches, .step_tokens_max = 16});
  ASSERT_THAT(engine, IsOk());
  EXPECT_EQ((*engine)->memory().weight_bytes, plan.weights);
#ifndef EBB_SANITIZED
  EXPECT_LE(AnonymousBytes() - before, (plan.weights + plan.caches + plan.scratch) * 12 / 10);
#endif
}

}  // namespace
}  // namespace ebb
