// The arithmetic of shares: what there is to do, by what the machine does.

#include "bench/roofline.h"

#include <gtest/gtest.h>

#include "bench/model_run.h"
#include "bench/step_run.h"
#include "tests/support/tiny_model.h"

namespace ebb::bench {
namespace {

constexpr Rates kRates = {.read = 100, .int8 = 1000, .bf16 = 500, .fma = 250};

TEST(Roofline, IsReadingWhereThatTakesLonger) {
  EXPECT_DOUBLE_EQ(RooflineSeconds({.bytes = 200, .int8 = 1000}, kRates), 2);
}

TEST(Roofline, IsArithmeticWhereThatTakesLongerAndItsKindsAddUp) {
  EXPECT_DOUBLE_EQ(RooflineSeconds({.bytes = 200, .int8 = 1000, .bf16 = 500, .fma = 250}, kRates), 3);
}

ModelWork WorkOfTiny(const TinyModel& model) {
  const TinyModelFile file(model);
  const absl::StatusOr<GgufFile> gguf = GgufFile::Open(file.path());
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  const absl::StatusOr<ModelWork> work = WorkOf(*gguf);
  EXPECT_TRUE(work.ok()) << work.status();
  return *work;
}

// Weights of one layer: q and o of dim x dim, k and v of dim x kv_heads * head_dim, three of dim x ffn_dim.
double LayerWeights(const TinyModel& m) {
  return 2.0 * m.dim * m.heads * m.head_dim + 2.0 * m.dim * m.kv_heads * m.head_dim + 3.0 * m.dim * m.ffn_dim;
}

TEST(ModelWork, CountsTwoOperationsOfEachWeightOfTheBodyAndOfTheHead) {
  const TinyModel model;
  const ModelWork work = WorkOfTiny(model);
  EXPECT_EQ(work.body.fma, 2 * model.layers * LayerWeights(model));
  EXPECT_EQ(work.head.fma, 2.0 * model.vocab * model.dim);
  EXPECT_EQ(work.body.int8 + work.body.bf16 + work.head.int8 + work.head.bf16, 0);
  EXPECT_EQ(work.attention_per_pair, 4.0 * model.layers * model.heads * model.head_dim);
}

TEST(ModelWork, ReadsMatricesAsTheFileHasThemAndNormsButNoEmbeddingsThatAreNotTheHead) {
  const TinyModel model = {.type = DType::kQ8_0};
  const ModelWork work = WorkOfTiny(model);
  const double norms = (2.0 * model.layers + 1) * model.dim * 4;
  EXPECT_EQ(work.body.bytes, model.layers * LayerWeights(model) / 32 * 34 + norms);
  EXPECT_EQ(work.head.bytes, model.vocab * model.dim / 32 * 34);
}

TEST(ModelWork, CountsQuantisedMatricesAsInt8AndBf16AsBf16) {
  EXPECT_GT(WorkOfTiny({.type = DType::kQ4_0}).body.int8, 0);
  EXPECT_GT(WorkOfTiny({.type = DType::kBf16}).body.bf16, 0);
  EXPECT_EQ(WorkOfTiny({.type = DType::kBf16}).body.int8, 0);
}

TEST(ModelWork, TakesTheEmbeddingsForTheHeadWhereThatIsTied) {
  const ModelWork apart = WorkOfTiny({}), tied = WorkOfTiny({.tied_head = true});
  EXPECT_EQ(apart.head, tied.head);
  EXPECT_EQ(apart.body, tied.body);
}

TEST(ModelWork, ReadsWeightsOnceHoweverManyTokensAndTheHeadOnlyForLogits) {
  const ModelWork work = {.body = {.bytes = 10, .int8 = 3}, .head = {.bytes = 5, .int8 = 7}};
  EXPECT_EQ(work.Step(4, 4), (Work{.bytes = 15, .int8 = 40}));
  EXPECT_EQ(work.Step(4, 0), (Work{.bytes = 10, .int8 = 12}));
}

TEST(MeanOverDepths, WeighsByTheWayBetween) {
  EXPECT_DOUBLE_EQ(MeanOverDepths({0, 10, 40}, {1, 3, 5}), (10 * 2 + 30 * 4) / 40.0);
  EXPECT_DOUBLE_EQ(MeanOverDepths({7}, {3}), 3);
}

}  // namespace
}  // namespace ebb::bench
