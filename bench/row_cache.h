// K and V as frameworks keep them, a row of d components for each token in order, and the two ways in which they are
// kept in order when tokens leave: what updating in place is measured against.

#ifndef EBB_BENCH_ROW_CACHE_H_
#define EBB_BENCH_ROW_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/ops/cpu/packed_matrix.h"
#include "engine/parallel.h"

namespace ebb::bench {

// Of each lane, the slots of those who leave, ascending; every lane as many.
using Victims = std::vector<std::vector<int32_t>>;

// Lanes are shared out to `parallel`'s threads. Not thread-safe.
class RowCache {
 public:
  RowCache(int64_t lanes, int32_t tokens, int64_t row_bytes);

  // Moves the runs of tokens that stay down over the gaps, run by run, then appends `rows` (as many as leave).
  void ShiftAndAppend(Parallel& parallel, const Victims& victims, std::span<const std::byte> rows);
  // Gathers what stays and `rows` into memory fresh from the allocator, and drops the old: `cat` of a framework, but in
  // large pages, which the system has to fault in less often.
  void Concatenate(Parallel& parallel, const Victims& victims, std::span<const std::byte> rows);

  // K's (part 0) or V's (1) row of a token.
  std::span<std::byte> Row(int part, int64_t lane, int64_t token);
  // Bytes that ShiftAndAppend reads and writes.
  double ShiftBytes(const Victims& victims) const;

 private:
  cpu::AlignedBytes Fresh() const { return cpu::AlignedBytes(lanes_ * tokens_ * row_bytes_); }

  int64_t lanes_;
  int64_t tokens_;
  int64_t row_bytes_;
  cpu::AlignedBytes parts_[2];
};

}  // namespace ebb::bench

#endif  // EBB_BENCH_ROW_CACHE_H_
