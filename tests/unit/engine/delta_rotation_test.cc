#include "engine/lab/delta_rotation.h"

#include <gmock/gmock.h>

namespace ebb::lab {
namespace {

// A key that is never rotated again has the error of one rounding, whichever way it got there.
TEST(DeltaRotation, OfOnePruningIsTwoRoundings) {
  const RotationError error = MeasureDeltaRotation({.recent = 64, .drop = 64, .stored = KvType::kBf16});
  EXPECT_EQ(error.rotations, 1);
  // BF16 has 8 significant bits: a relative error is at most 2^-9 in each of two roundings.
  EXPECT_GT(error.key, error.once);
  EXPECT_LT(error.key, 2 * 0x1p-9);
}

// Each rotation is by the same angle, so what rounding does to its cosine, or to a step smaller than the type can hold,
// repeats: errors add up instead of cancelling, and grow nearly as the number of rotations.
TEST(DeltaRotation, GrowsWithTheRotations) {
  for (const KvType type : {KvType::kF32, KvType::kBf16}) {
    const double few = MeasureDeltaRotation({.recent = 1024, .drop = 16, .stored = type}).key;
    const double many = MeasureDeltaRotation({.recent = 1024, .drop = 4, .stored = type}).key;
    EXPECT_GT(many / few, 2);
    EXPECT_LT(many / few, 8);
  }
}

TEST(DeltaRotation, RotatedOnceDoesNotGrowWithTheDistance) {
  for (const KvType type : {KvType::kF32, KvType::kBf16}) {
    const double near = MeasureDeltaRotation({.recent = 64, .drop = 1, .stored = type}).once;
    const double far = MeasureDeltaRotation({.recent = 2044, .drop = 1, .stored = type}).once;
    EXPECT_GT(near, 0);
    EXPECT_NEAR(far, near, 0.2 * near);
  }
}

// Llama 3 8B, a layer: 2044 keys of 8 heads of 128 against 32 queries.
TEST(DeltaRotation, CountsProducts) {
  EXPECT_EQ(KeyRotationProducts(2044, 8, 128), 4186112);
  EXPECT_EQ(QuerySegmentProducts(32, 128), 8192);
}

}  // namespace
}  // namespace ebb::lab
