// Random numbers as a hash of (seed, purpose, index), so that a draw depends on nothing that happened before it.
//
// Forking, replaying or reordering a session cannot move its numbers: token 17 of seed 5 is drawn with the same bits on
// every machine, alone or in a batch. `purpose` separates the users of one seed (sampling, a scorer, a test). The bits
// are part of what a session's seed promises: changing HashBits changes the tokens of every seeded session.
//
// Three rounds of the 64-bit finaliser of SplitMix64 (Steele, Lea, Flood 2014). Not for secrets.

#ifndef EBB_POLICIES_HASH_RANDOM_H_
#define EBB_POLICIES_HASH_RANDOM_H_

#include <cstdint>

#include "policies/check.h"

namespace ebb {

// 64 uniform bits. For a fixed (seed, purpose) different indices give different bits.
constexpr uint64_t HashBits(uint64_t seed, uint64_t purpose, uint64_t index) {
  constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio, odd: multiplying by it is a bijection
  const auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  };
  uint64_t bits = mix(seed + kGamma);
  bits = mix(bits + (purpose + 1) * kGamma);
  return mix(bits + (index + 1) * kGamma);
}

// Uniform in [0, 1), a multiple of 2^-53.
constexpr double HashUniform(uint64_t seed, uint64_t purpose, uint64_t index) {
  return static_cast<double>(HashBits(seed, purpose, index) >> 11) * 0x1p-53;
}

// The same numbers for who wants them in a row: the k-th draw is index k.
class HashRandom {
 public:
  explicit constexpr HashRandom(uint64_t seed, uint64_t purpose = 0) : seed_(seed), purpose_(purpose) {}

  constexpr uint64_t Next64() { return HashBits(seed_, purpose_, index_++); }

  // Uniform in [lo, hi], both included; no value is likelier than another by more than 2^-31 of its share.
  // REQUIRES: lo <= hi.
  constexpr int32_t Uniform(int32_t lo, int32_t hi) {
    EBB_CHECK(lo <= hi);
    const uint64_t values = static_cast<uint64_t>(static_cast<int64_t>(hi) - lo) + 1;
    return static_cast<int32_t>(lo + static_cast<int64_t>(Next64() % values));
  }

  // Uniform in [0, 1), a multiple of 2^-24.
  constexpr float UniformFloat() { return static_cast<float>(Next64() >> 40) * 0x1p-24F; }

 private:
  uint64_t seed_ = 0;
  uint64_t purpose_ = 0;
  uint64_t index_ = 0;
};

}  // namespace ebb

#endif  // EBB_POLICIES_HASH_RANDOM_H_
