#include "engine/lab/delta_rotation.h"

#include <cmath>
#include <vector>

#include "engine/model/quantization.h"
#include "policies/check.h"
#include "policies/hash_random.h"

namespace ebb::lab {
namespace {

// Of bytes a key's largest component decides what the others are rounded to: nothing that one value could tell.
float Stored(float value, KvType type) {
  EBB_CHECK(!IsScaled(type));
  switch (type) {
    case KvType::kF32:
      return value;
    case KvType::kBf16:
      return FloatFromBf16(Bf16FromFloat(value));
    case KvType::kF16:
      return FloatFromF16(F16FromFloat(value));
    case KvType::kInt8:
    case KvType::kFp8:
      break;
  }
  return value;
}

// Rotates pair i of `key` by `positions`, in float, and stores it.
void Rotate(std::vector<float>& key, double positions, const DeltaRotation& options) {
  const int32_t half = options.head_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double angle = positions * std::pow(options.theta, -2.0 * i / options.head_dim);
    const auto cosine = static_cast<float>(std::cos(angle));
    const auto sine = static_cast<float>(std::sin(angle));
    const float x = key[i];
    const float y = key[i + half];
    key[i] = Stored(x * cosine - y * sine, options.stored);
    key[i + half] = Stored(x * sine + y * cosine, options.stored);
  }
}

// Sum of squares of `key` less the key itself rotated by `positions`, all in double.
double SquaredError(const std::vector<float>& key, const std::vector<float>& raw, double positions,
                    const DeltaRotation& options) {
  const int32_t half = options.head_dim / 2;
  double squares = 0;
  for (int32_t i = 0; i < half; ++i) {
    const double angle = positions * std::pow(options.theta, -2.0 * i / options.head_dim);
    const double x = raw[i] * std::cos(angle) - raw[i + half] * std::sin(angle);
    const double y = raw[i] * std::sin(angle) + raw[i + half] * std::cos(angle);
    squares += (key[i] - x) * (key[i] - x) + (key[i + half] - y) * (key[i + half] - y);
  }
  return squares;
}

}  // namespace

RotationError MeasureDeltaRotation(const DeltaRotation& options) {
  EBB_CHECK(options.head_dim >= 2 && options.head_dim % 2 == 0);
  EBB_CHECK(options.drop >= 1 && options.drop <= options.recent);
  RotationError error = {.rotations = options.recent / options.drop};
  double norm = 0;
  double squares = 0;
  double once = 0;
  for (int32_t k = 0; k < options.keys; ++k) {
    HashRandom random(static_cast<uint64_t>(options.seed), static_cast<uint64_t>(k));
    std::vector<float> raw(static_cast<size_t>(options.head_dim));
    for (float& x : raw) {
      x = 2 * random.UniformFloat() - 1;
      norm += double{x} * x;
    }
    std::vector<float> key = raw;
    Rotate(key, options.recent, options);
    for (int64_t i = 0; i < error.rotations; ++i) Rotate(key, -options.drop, options);
    const auto position = static_cast<double>(options.recent - error.rotations * options.drop);
    squares += SquaredError(key, raw, position, options);
    std::vector<float> direct = raw;
    Rotate(direct, options.recent, options);
    once += SquaredError(direct, raw, options.recent, options);
  }
  error.key = std::sqrt(squares / norm);
  error.once = std::sqrt(once / norm);
  return error;
}

int64_t KeyRotationProducts(int64_t n, int32_t kv_heads, int32_t head_dim) { return n * kv_heads * 2 * head_dim; }

int64_t QuerySegmentProducts(int32_t query_heads, int32_t head_dim) { return int64_t{query_heads} * 2 * head_dim; }

}  // namespace ebb::lab
