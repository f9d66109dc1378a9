#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "engine/ops.h"

namespace ebb {
namespace {

// A falling geometric series, 2^(-8 (h + 1) / n) for the n heads of the largest power of two; those past it take every
// other term of the series of 2 n.
std::vector<float> AlibiSlopes(int32_t heads) {
  const auto n = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(heads)));
  std::vector<float> slopes;
  for (int32_t h = 0; h < n; ++h) slopes.push_back(static_cast<float>(std::exp2(-8.0 * (h + 1) / n)));
  for (int32_t h = 0; h < heads - n; ++h) slopes.push_back(static_cast<float>(std::exp2(-4.0 * (2 * h + 1) / n)));
  return slopes;
}

}  // namespace

Rope MakeRope(const ModelConfig& config) {
  Rope rope = {.pairs = config.rope_pairs, .rotary_dims = config.rotary_dims};
  rope.scale = config.attention_scale;
  rope.cap = config.attention_cap;
  rope.windows = config.windows;
  if (config.positions == PositionKind::kAlibi) rope.slopes = AlibiSlopes(config.heads);
  std::vector<double> frequencies = config.rope_frequencies;
  frequencies.insert(frequencies.end(), config.window_rope_frequencies.begin(), config.window_rope_frequencies.end());
  rope.turns.reserve(frequencies.size());
  rope.half_turns.reserve(2 * frequencies.size());
  for (const double frequency : frequencies) {
    // long double carries the division past float64's 53 bits where the platform has more. Whole turns do nothing.
    const long double turns = static_cast<long double>(frequency) / (2 * std::numbers::pi_v<long double>);
    const long double fraction = std::ldexp(turns - std::floor(turns), 64);
    rope.turns.push_back(fraction >= 0x1p64L ? 0 : static_cast<uint64_t>(std::round(fraction)));
    const double half_turns = std::ldexp(static_cast<double>(static_cast<int64_t>(rope.turns.back())), -63);
    const auto high = static_cast<float>(half_turns);
    rope.half_turns.insert(rope.half_turns.end(), {high, static_cast<float>(half_turns - high)});
  }
  return rope;
}

}  // namespace ebb
