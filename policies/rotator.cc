#include "policies/rotator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "policies/check.h"
#include "policies/wide.h"

namespace ebb {
namespace {

constexpr int64_t kRests = 256;

// cos, then sin of position * frequency.
void WriteAngles(std::span<const double> frequencies, int64_t position, double* to) {
  const size_t pairs = frequencies.size();
  for (size_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];
    to[i] = std::cos(angle);
    to[pairs + i] = std::sin(angle);
  }
}

// Pair i is x[i * step], y[i * step].
EBB_WIDE void TurnPairs(const double* base, const double* rest, int64_t pairs, int64_t step, float* x, float* y) {
  for (int64_t i = 0; i < pairs; ++i) {
    const double cos = base[i] * rest[i] - base[pairs + i] * rest[pairs + i];
    const double sin = base[pairs + i] * rest[i] + base[i] * rest[pairs + i];
    const double a = x[i * step];
    const double b = y[i * step];
    x[i * step] = static_cast<float>(a * cos - b * sin);
    y[i * step] = static_cast<float>(a * sin + b * cos);
  }
}

}  // namespace

void Rotator::Point(const RopeView& rope) {
  halves_ = rope.halves;
  if (std::ranges::equal(frequencies_, rope.frequencies)) return;
  frequencies_.assign(rope.frequencies.begin(), rope.frequencies.end());
  const size_t floats = 2 * frequencies_.size();
  rests_.resize(kRests * floats);
  base_.resize(floats);
  multiple_ = -1;
  for (int64_t rest = 0; rest < kRests; ++rest) WriteAngles(frequencies_, rest, rests_.data() + rest * floats);
}

void Rotator::Turn(int64_t position, std::span<float> row) {
  EBB_CHECK(position >= 0);
  const auto pairs = static_cast<int64_t>(frequencies_.size());
  if (position / kRests != multiple_) {
    multiple_ = position / kRests;
    WriteAngles(frequencies_, multiple_ * kRests, base_.data());
  }
  const double* const rest = rests_.data() + position % kRests * 2 * pairs;
  if (halves_) {
    TurnPairs(base_.data(), rest, pairs, 1, row.data(), row.data() + pairs);
  } else {
    TurnPairs(base_.data(), rest, pairs, 2, row.data(), row.data() + 1);
  }
}

}  // namespace ebb
