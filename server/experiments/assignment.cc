#include "server/experiments/assignment.h"

#include <openssl/sha.h>

#include <array>
#include <numeric>
#include <string>

#include "policies/check.h"

namespace ebb {
namespace {

uint64_t Bits(const uint8_t* bytes) {
  uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits = bits << 8 | bytes[i];
  return bits;
}

double Uniform(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

}  // namespace

UnitHash HashUnit(std::string_view salt, std::string_view unit) {
  std::string text(salt);
  text += '\0';  // which no salt holds, so that salt and unit cannot trade letters
  text += unit;
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest.data());
  return {.enrol = Uniform(Bits(&digest[0])), .arm = Uniform(Bits(&digest[8])), .key = Bits(&digest[16])};
}

size_t ArmOf(const UnitHash& unit, std::span<const double> weights) {
  EBB_CHECK(!weights.empty());
  const double at = unit.arm * std::accumulate(weights.begin(), weights.end(), 0.0);
  double below = 0;
  for (size_t arm = 0; arm + 1 < weights.size(); ++arm) {
    below += weights[arm];
    if (at < below) return arm;
  }
  return weights.size() - 1;
}

}  // namespace ebb
