// Which arm a unit is in: a function of the experiment's salt and the unit's name alone. So a unit is in the same arm
// in every session, on every server, and after a restart, with nothing kept.
//
//   SHA-256(salt, 0, unit) = e a k ...   64 bits each, e and a read as numbers in [0, 1)
//
//   enrolled  iff e < ramp
//   arm       the first whose cumulated share is above a
//
// Two numbers, so that raising the ramp brings units in and moves none between arms, and that two experiments with
// different salts know nothing of each other.

#ifndef EBB_SERVER_EXPERIMENTS_ASSIGNMENT_H_
#define EBB_SERVER_EXPERIMENTS_ASSIGNMENT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ebb {

struct UnitHash {
  double enrol = 0;  // uniform in [0, 1)
  double arm = 0;    // likewise
  uint64_t key = 0;  // tells units apart
};

UnitHash HashUnit(std::string_view salt, std::string_view unit);

inline bool IsEnrolled(const UnitHash& unit, double ramp) { return unit.enrol < ramp; }

// REQUIRES: at least one weight, all above 0.
size_t ArmOf(const UnitHash& unit, std::span<const double> weights);

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENTS_ASSIGNMENT_H_
