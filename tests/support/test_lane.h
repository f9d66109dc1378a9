// A lane outside any cache: pages, positions, and a reader that knows the layout of engine/ops.h by itself.

#ifndef EBB_TESTS_SUPPORT_TEST_LANE_H_
#define EBB_TESTS_SUPPORT_TEST_LANE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/ops.h"
#include "tests/support/attention_reference.h"

namespace ebb {

class TestLane {
 public:
  // Every slot is free, and every byte of K and V says "not a number" in any element type.
  TestLane(const KvFormat& format, int32_t slots);

  // Pointers stay valid until this object dies; positions may change in between.
  LaneStorage storage() const;
  // [slots up to 16], < 0: free
  std::vector<int32_t>& position() { return position_; }
  const std::vector<int32_t>& position() const { return position_; }

  // Writes tokens' K and V (rows of d floats) through ops.Store and gives their slots these positions.
  void Write(Ops& ops, const Rope& rope, std::span<const int32_t> slots, std::span<const int32_t> positions,
             std::span<const float> k, std::span<const float> v);

  enum class Part { kK, kRk, kV };
  // The number that rests in a slot, widened exactly.
  double Read(Part part, int32_t slot, int32_t component) const;

  // The lane as numbers, for the oracle. Free slots hold zeros.
  ReferenceLane Reference() const;

 private:
  KvFormat format_;
  int32_t slots_;
  std::vector<std::vector<std::byte>> memory_;  // by page
  std::vector<std::byte*> pages_;
  std::vector<int32_t> position_;
};

// A RoPE for tests: frequencies of `base` over rotary_dims, and what MakeRope makes of them.
ReferenceRope TestRope(RopePairs pairs, int32_t rotary_dims, double base = 10000);
Rope MakeRope(const ReferenceRope& reference);

// `count` floats drawn from (-1, 1) by a hash of (seed, purpose, index), times `scale`.
std::vector<float> RandomFloats(uint64_t seed, uint64_t purpose, int64_t count, float scale = 1);

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_TEST_LANE_H_
