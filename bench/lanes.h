// Full lanes outside any cache, for timing the ops that read and write them. Lanes of one kind share their positions.

#ifndef EBB_BENCH_LANES_H_
#define EBB_BENCH_LANES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/ops.h"
#include "engine/ops/cpu/packed_matrix.h"

namespace ebb::bench {

// `count` floats drawn from (-1, 1) by a hash of (seed, purpose, index).
std::vector<float> RandomFloats(uint64_t seed, uint64_t purpose, int64_t count);

// Rotates neighbours by 10000^(-2i / rotary_dims); nothing where rotary_dims is 0.
Rope RopeOf(int32_t rotary_dims);

class Lanes {
 public:
  // Every slot is written, through ops.Store: slot s has position s, unless lanes are asked for scattered ones. Large
  // pages.
  Lanes(Ops& ops, const KvFormat& format, int32_t slots, int64_t count, uint64_t seed);

  // Valid while this lives.
  LaneStorage lane(int64_t index) const;
  // The same K and V at the same positions in an order drawn at random.
  LaneStorage scattered_lane(int64_t index) const;
  int64_t count() const { return count_; }
  // Of K and V of all slots.
  double lane_bytes() const;

  // Bytes that a lane takes.
  static int64_t BytesOf(const KvFormat& format, int32_t slots);

 private:
  KvFormat format_;
  int32_t slots_;
  int64_t count_;
  cpu::AlignedBytes memory_;
  std::vector<std::byte*> pages_ = {};  // [count, pages of a lane]
  std::vector<int32_t> position_ = {}, scattered_ = {};
};

}  // namespace ebb::bench

#endif  // EBB_BENCH_LANES_H_
