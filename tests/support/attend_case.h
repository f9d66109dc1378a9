// A random lane with the last tokens of a step in it, and what attention makes of it: shared by the unit tests (against
// float64) and the laws of tests/property.

#ifndef EBB_TESTS_SUPPORT_ATTEND_CASE_H_
#define EBB_TESTS_SUPPORT_ATTEND_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/ops.h"
#include "policies/hash_random.h"
#include "tests/support/attention_reference.h"
#include "tests/support/test_lane.h"

namespace ebb {

struct AttendShape {
  KvFormat format = {.type = KvType::kF32, .rope_cache = RopeCache::kFused, .head_dim = 32, .page_tiles = 4};
  RopePairs pairs = RopePairs::kNeighbours;
  int32_t rotary_dims = 32;
  int32_t window = 0;  // positions that a query sees, the newest; 0: all
  double cap = 0;      // of scores; 0: none
  bool alibi = false;  // slopes 1/2, 1/4, ... for the heads of the group
  int32_t group = 2;
  int32_t tokens = 1;  // of the step
  int32_t slots = 50;
  int32_t live = 40;  // tokens in the lane, those of the step included; the other slots hold NaN
  uint64_t seed = 0;

  std::string ToString() const;
};

// Any head size, rotary size, element type and layout that the ops allow, at most `slots` slots.
AttendShape RandomShape(HashRandom& random, int32_t slots);

struct AttendResult {
  std::vector<float> out = {};          // [T][G][d]
  std::vector<float> column_sums = {};  // [n]
  std::vector<float> last_row = {};     // [n]
  std::vector<float> window = {};       // [window_rows][n]
};

// Tokens lie in random slots; their positions ascend with random gaps.
class AttendCase {
 public:
  AttendCase(Ops& ops, const AttendShape& shape);

  const AttendShape& shape() const { return shape_; }
  const Rope& rope() const { return rope_; }
  const std::vector<float>& q() const { return q_; }  // [T][G][d]
  const std::vector<float>& k() const { return k_; }  // [live][d] in token order, as v
  const std::vector<float>& v() const { return v_; }
  const std::vector<int32_t>& slots() const { return slots_; }          // [live] where token i lies
  const std::vector<int32_t>& positions() const { return positions_; }  // [live] ascending
  const int32_t* q_position() const { return positions_.data() + shape_.live - shape_.tokens; }
  TestLane& lane() { return lane_; }
  const TestLane& lane() const { return lane_; }

  // Attends; all observations where window_rows >= 0, of as many rows.
  AttendResult Run(Ops& ops, int32_t window_rows = -1, const float* angles = nullptr) const;
  ReferenceAttention Reference() const;

 private:
  AttendShape shape_;
  ReferenceRope reference_rope_;
  Rope rope_;
  TestLane lane_;
  std::vector<float> q_, k_, v_;
  std::vector<int32_t> slots_, positions_;
};

// Numbers 0 .. n-1 in random order.
std::vector<int32_t> RandomOrder(HashRandom& random, int32_t n);

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_ATTEND_CASE_H_
