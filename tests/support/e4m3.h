// E4M3 as OCP's "8-bit Floating Point Specification" defines it, in float64 and by search: what KvType::kFp8 is held
// to.

#ifndef EBB_TESTS_SUPPORT_E4M3_H_
#define EBB_TESTS_SUPPORT_E4M3_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "policies/hash_random.h"

namespace ebb {

// Sign, 4 bits of exponent of bias 7, 3 of mantissa; the one of all ones is no number.
inline double E4M3Number(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code >> 7 != 0 ? -size : size;
}

// The code of the number next to x, of two equally near the even one; of what is too large, of the largest.
inline uint8_t E4M3Code(double x) {
  static const auto kNumbers = [] {
    std::array<double, 0x7F> numbers = {};
    for (uint8_t code = 0; code < 0x7F; ++code) numbers[code] = E4M3Number(code);
    return numbers;
  }();
  const double size = std::abs(x);
  uint8_t nearest = 0;
  for (uint8_t code = 1; code < 0x7F; ++code) {
    const double nearer = std::abs(size - kNumbers[nearest]) - std::abs(size - kNumbers[code]);
    if (nearer > 0 || (nearer == 0 && code % 2 == 0)) nearest = code;
  }
  return std::signbit(x) ? nearest | 0x80 : nearest;
}

// Rows of d numbers of which the first is the largest of E4M3, so that rounding finds them as they are: every number of
// E4M3, every middle between two, what is a little less and a little more, of both signs; then numbers of every size.
inline std::vector<float> E4M3Trials(size_t d) {
  std::vector<float> trials;
  for (uint8_t code = 0; code < 0x7F; ++code) {
    const auto number = static_cast<float>(E4M3Number(code));
    const float middle = code == 0x7E ? number : static_cast<float>((E4M3Number(code) + E4M3Number(code + 1)) / 2);
    for (const float x : {number, std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 448.0F)}) {
      trials.insert(trials.end(), {x, -x});
    }
  }
  trials.insert(trials.end(), {1e-30F, -1e-40F, std::nextafter(0.0F, 1.0F)});
  HashRandom random(4, 3);
  while (trials.size() < 3000 || trials.size() % (d - 1) != 0) {
    trials.push_back((random.UniformFloat() - 0.5F) * std::exp2(static_cast<float>(random.Uniform(-14, 9))));
  }
  std::vector<float> rows;
  for (size_t i = 0; i < trials.size(); ++i) {
    if (i % (d - 1) == 0) rows.push_back(448);
    rows.push_back(trials[i]);
  }
  return rows;
}

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_E4M3_H_
