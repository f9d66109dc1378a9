// A product of tiles in shared memory by a group of 128 threads, four teams that are neighbours: what tensor cores of
// sm_90a do with both operands where they lie, while the group does something else. Elsewhere its teams do it with
// tensor.h, from the same places, with the same numbers in the same threads, but not the same bits.
//
// Tiles [rows][kColumns] are BF16, kColumns 32 or 64: a row is 64 or 128 bytes, one after the other, in chunks of 16
// bytes, 8 columns. So that neither eight rows of a chunk nor eight chunks of a row meet in a bank, chunk c of row r is
// where c ^ r % 8 would be; of 32 columns, c ^ r / 2 % 4. A tile begins at a multiple of kGroupTileAlignment:
//
//   64 columns   row 0 | 0 1 2 3 4 5 6 7 |          32 columns   row 0 | 0 1 2 3 |   row 1 | 0 1 2 3 |
//                row 1 | 1 0 3 2 5 4 7 6 |                       row 2 | 1 0 3 2 |   row 3 | 1 0 3 2 |
//                row 2 | 2 3 0 1 6 7 4 5 |                       row 4 | 2 3 0 1 |   ...
//
// This is PTX's K-major layout with a swizzle of 128 or of 64 bytes.

#ifndef EBB_ENGINE_OPS_GPU_GROUP_TILE_H_
#define EBB_ENGINE_OPS_GPU_GROUP_TILE_H_

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/tensor.h"

// Code for sm_90a alone has it; no later device inherits it.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define EBB_HAS_GROUP_TILES
#endif

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr int32_t kGroup = 128;
inline constexpr int32_t kGroupOutputs = 64;  // rows of the first tile
inline constexpr int32_t kGroupTileAlignment = 1024;

// Bytes from the beginning of a tile of kColumns to a chunk of a row.
template <int32_t kColumns>
EBB_DEVICE int32_t GroupTileAt(int32_t row, int32_t chunk) {
  constexpr int32_t kChunks = kColumns / 8;
  static_assert(kChunks == 8 || kChunks == 4);
  return row * (2 * kColumns) + (chunk ^ row / (8 / kChunks) % kChunks) * 16;
}

// Bytes from `at` to where a tile may begin.
EBB_DEVICE int32_t GroupTilePadding(SharedAt at) {
#if defined(__CUDACC__)
  const uint32_t address = at;
#else
  const auto address = reinterpret_cast<uintptr_t>(at);
#endif
  return static_cast<int32_t>(-address & (kGroupTileAlignment - 1));
}

// What this thread stored in shared memory is there for MultiplyGroupTile behind the next Barrier. Copies that have
// arrived (CopiesArrived) do without: PTX promises it not in so many words, but pipelines of cp.async rely on it.
EBB_DEVICE void FenceGroupTiles() {
#if defined(EBB_HAS_GROUP_TILES)
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#endif
}

#if defined(EBB_HAS_GROUP_TILES)
// A tile as the instruction is told of it: where it is; that eight rows are that far from the next eight; the swizzle.
template <int32_t kColumns>
EBB_DEVICE uint64_t DescribeGroupTile(SharedAt at) {
  constexpr uint64_t kSwizzle = kColumns == 64 ? 1 : 2;  // of 128 bytes, of 64
  constexpr uint64_t kEightRows = 8 * 2 * kColumns / 16;
  return kSwizzle << 62 | kEightRows << 32 | uint64_t{1} << 16 | (at & 0x3FFFFU) / 16;
}

// C += A B of 16 columns.
EBB_DEVICE void BeginGroupTile(uint64_t a, uint64_t b, float (&c)[2][4]) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, 0, 0;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3])
      : "l"(a), "l"(b));
}
EBB_DEVICE void BeginGroupTile(uint64_t a, uint64_t b, float (&c)[4][4]) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3])
      : "l"(a), "l"(b));
}
EBB_DEVICE void BeginGroupTile(uint64_t a, uint64_t b, float (&c)[8][4]) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, "
      "1, 0, 0;"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
      : "l"(a), "l"(b));
}
#endif

// C [64][8 kWide] += A [64][kColumns] B [8 kWide][kColumns]^T, of tiles that lie at `a` and `b`; kWide is 2, 4 or 8.
// Thread 4 g + t of team i of the group has
//
//   c[j]   C[16 i + g][8 j + 2 t]   ... [8 j + 2 t + 1]   C[16 i + g + 8][8 j + 2 t]   ... [8 j + 2 t + 1]
//
// All threads of the group call it. Until GroupTilesDone the tiles stay as they are, and nobody looks at c.
template <int32_t kColumns, int32_t kWide>
EBB_DEVICE void MultiplyGroupTile(SharedAt a, SharedAt b, float (&c)[kWide][4]) {
#if defined(EBB_HAS_GROUP_TILES)
  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
  const uint64_t from_a = DescribeGroupTile<kColumns>(a);
  const uint64_t from_b = DescribeGroupTile<kColumns>(b);
  EBB_UNROLL
  for (int32_t sixteen = 0; sixteen < kColumns / 16; ++sixteen) {
    BeginGroupTile(from_a + 2 * sixteen, from_b + 2 * sixteen, c);
  }
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
#else
  const int32_t first = ThreadIndex() % kGroup / kTeam * 16;
  SyncTeam();
  EBB_UNROLL
  for (int32_t sixteen = 0; sixteen < kColumns / 16; ++sixteen) {
    uint32_t of_a[4];
    LoadTiles<false>(
        [&](int32_t m, int32_t r) { return a + GroupTileAt<kColumns>(first + m % 2 * 8 + r, 2 * sixteen + m / 2); },
        of_a);
    EBB_UNROLL
    for (int32_t j = 0; j < kWide; j += 2) {
      uint32_t of_b[4];
      LoadTiles<false>(
          [&](int32_t m, int32_t r) { return b + GroupTileAt<kColumns>(8 * (j + m / 2) + r, 2 * sixteen + m % 2); },
          of_b);
      MultiplySmallTile(of_a, {of_b[0], of_b[1]}, c[j]);
      MultiplySmallTile(of_a, {of_b[2], of_b[3]}, c[j + 1]);
    }
  }
#endif
}

// All that the group began is in c.
template <int32_t kWide>
EBB_DEVICE void GroupTilesDone(float (&c)[kWide][4]) {
#if defined(EBB_HAS_GROUP_TILES)
  EBB_UNROLL
  for (int32_t j = 0; j < kWide; ++j) {  // nothing that uses them comes before
    asm volatile("" : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3]) : : "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
  EBB_UNROLL
  for (int32_t j = 0; j < kWide; ++j) {
    asm volatile("" : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3]) : : "memory");
  }
#else
  static_cast<void>(c);
#endif
}

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_GROUP_TILE_H_
