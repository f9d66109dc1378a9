#include <cmath>
#include <cstdint>
#include <numbers>

#include "engine/ops.h"

namespace ebb {

Rope MakeRope(const ModelConfig& config) {
  Rope rope = {.pairs = config.rope_pairs, .rotary_dims = config.rotary_dims};
  rope.turns.reserve(config.rope_frequencies.size());
  rope.half_turns.reserve(2 * config.rope_frequencies.size());
  for (const double frequency : config.rope_frequencies) {
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
