// y = x W^T for the few rows of decode and weights of BF16: bound by reading W, once for up to 32 rows of x.
//
// A block makes 128 outputs of its columns, 64 of them, a stage, at a time. W is copied as it is into a ring of stages
// in shared memory, so that what is under way is bounded by that alone, not by registers, and two blocks on a
// multiprocessor have some 128 KB of it under way at all times:
//
//   ring   | stage i + 4: copied next | stage i: multiplied | stage i + 1 | i + 2 | i + 3: under way |
//   x      | stage i: multiplied | stage i + 1: laid meanwhile |              i + 2, i + 3: in registers
//
// x is float32: a number is the sum of two BF16, the nearest one and the nearest to what that leaves, within 2^-17 of
// it, which is what a float sum of some hundred terms is good for. The terms are rows of a tile, [term][row], so tensor
// cores multiply W by both at once (group_tile.h), and what a thread has of either is of the same outputs and rows:
// their sums are added in the end. x is fetched from cache and split by each block anew: less than W is. Of the two
// groups of threads one copies W and the other lays x, as who lays has to wait for what it stores to be seen by the
// tensor cores, and for all that it reads, too. So half of the latter have the even stages and half the odd ones: what
// either reads has two stages to come.
//
// Sums do not depend on how many rows there are: a block's columns are added in turn, then splits of the columns
// (LaunchRows, by the shape alone), which the block that is done last adds up in ascending order. It finds what a
// thread had where the same thread of it looks, in whole vectors. Block (splits i + s, y): outputs 128 i .., split s,
// rows kRows y ..

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/group_tile.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/linear_share.h"
#include "engine/ops/gpu/numbers.h"
#include "engine/ops/gpu/tensor.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kOutputs = kWideOutputs;
constexpr int32_t kTall = kOutputs / (kThreads / kGroup * kGroupOutputs);  // tiles of a group
constexpr int32_t kStageBytes = 16 << 10;                                  // of W
constexpr int32_t kColumns = kStageBytes / 2 / kOutputs;                   // of a stage
constexpr int32_t kRowBytes = 2 * kColumns;
constexpr int32_t kChunks = kColumns / 8;          // of 16 bytes, of a row
constexpr int32_t kCopyRows = kGroup / kChunks;    // that a group copies, or lays, at once
constexpr int32_t kCopies = kOutputs / kCopyRows;  // of a thread, of a stage
static_assert(kCopyRows % 8 == 0);                 // a thread's chunk is in the same place of all its rows
constexpr int32_t kStagesMin = 256 / kColumns;     // of a split
#if defined(__HIPCC__)
constexpr int32_t kStages = 2;  // its copies are done at once
#else
constexpr int32_t kStages = 5;
#endif

// Shared memory: the ring; x of two stages, [term][row] each.
template <int32_t kRows>
constexpr int32_t kXBytes = 2 * kRows* kRowBytes;
template <int32_t kRows>
constexpr int32_t kSharedBytes = kStages* kStageBytes + 2 * kXBytes<kRows> + kGroupTileAlignment;
static_assert(kSharedBytes<kLinearRows> <= kSharedMax);

// What a thread has: [of its tiles][vector of eight rows].
template <int32_t kRows>
using Sums = float[kTall][kRows / 8][4];

template <int32_t kRows>
EBB_DEVICE void PutAll(const LinearArgs& a, int32_t first_output, int32_t first_row, const Sums<kRows>& sum) {
  const int32_t thread = ThreadIndex();
  const int32_t output = first_output + thread / kGroup * (kGroupOutputs * kTall) + thread % kGroup / kTeam * 16 +
                         thread % kTeam / 4;  // group_tile.h
  const int32_t rows = a.rows - first_row - 2 * (thread % 4);
  const int64_t stride = a.y_stride;
  const bool adds = a.add != 0;
  EBB_UNROLL
  for (int32_t m = 0; m < kTall; ++m) {
    EBB_UNROLL
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t to_output = output + kGroupOutputs * m + 8 * half;
      if (to_output >= a.w.rows) continue;
      float* const y = a.y + (first_row + 2 * (thread % 4)) * stride + to_output;
      const auto each = [&](const auto& what) {
        EBB_UNROLL
        for (int32_t j = 0; j < kRows / 8; ++j) {
          EBB_UNROLL
          for (int32_t i = 0; i < 2; ++i) {
            if (8 * j + i < rows) what(y[(8 * j + i) * stride], j, i);
          }
        }
      };
      // All of y is read before any is written, or each read waits for the last.
      float before[kRows / 8][2];
      if (adds) each([&](const float& from, int32_t j, int32_t i) { before[j][i] = from; });
      const bool is_biased = a.bias != nullptr;
      const float bias = is_biased ? a.bias[to_output] : 0;
      each([&](float& to, int32_t j, int32_t i) {
        const float one = sum[m][j][2 * half + i];
        const float biased = is_biased ? one + bias : one;
        to = adds ? before[j][i] + biased : biased;
      });
    }
  }
}

// Puts this block's sums beside those of the others that share outputs and rows. The one that is done last has the sums
// of all in the end, and true.
template <int32_t kRows>
EBB_DEVICE bool AddSplits(const ShareArgs& wide, const LinearArgs& a, int32_t tile, int32_t part, int32_t rows,
                          Sums<kRows>& sum) {
  constexpr int32_t kVectors = kTall * kRows / 8;
  constexpr int32_t kTogether = 16 / kVectors < 2 ? 2 : 16 / kVectors;  // splits whose sums are read at once
  const int32_t meeting = BlockY() * wide.tiles + tile;
  const int64_t first = (int64_t{meeting} * wide.splits * kVectors) * kThreads + ThreadIndex();
  Vector16* const partial = reinterpret_cast<Vector16*>(a.partial) + first;  // [splits][kVectors][kThreads]
  EBB_UNROLL
  for (int32_t v = 0; v < kVectors; ++v) {
    if (v % (kRows / 8) * 8 >= rows) continue;
    Vector16 four;
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) four.word[i] = BitsOf(sum[v / (kRows / 8)][v % (kRows / 8)][i]);
    partial[int64_t{part * kVectors + v} * kThreads] = four;
  }
  int32_t& is_last = *LaunchShared<int32_t>();
  if (!ComesLast(a.arrived + meeting, wide.splits, is_last)) return false;
  EBB_UNROLL
  for (int32_t v = 0; v < kVectors; ++v) {
    EBB_UNROLL
    for (int32_t i = 0; i < 4; ++i) sum[v / (kRows / 8)][v % (kRows / 8)][i] = 0;
  }
  for (int32_t begin = 0; begin < wide.splits; begin += kTogether) {
    Vector16 of[kTogether][kVectors];
    EBB_UNROLL
    for (int32_t s = 0; s < kTogether; ++s) {
      EBB_UNROLL
      for (int32_t v = 0; v < kVectors; ++v) {
        if (begin + s >= wide.splits || v % (kRows / 8) * 8 >= rows) continue;
        of[s][v] = partial[int64_t{(begin + s) * kVectors + v} * kThreads];
      }
    }
    EBB_UNROLL
    for (int32_t s = 0; s < kTogether; ++s) {
      EBB_UNROLL
      for (int32_t v = 0; v < kVectors; ++v) {
        if (begin + s >= wide.splits || v % (kRows / 8) * 8 >= rows) continue;
        EBB_UNROLL
        for (int32_t i = 0; i < 4; ++i) sum[v / (kRows / 8)][v % (kRows / 8)][i] += FloatOf(of[s][v].word[i]);
      }
    }
  }
  return true;
}

template <int32_t kRows>
EBB_KERNEL_BESIDE(kThreads, 2)
MultiplyWide(ShareArgs wide) {
  constexpr int32_t kWide = 2 * kRows / 8;
  uint8_t* room = LaunchShared<uint8_t>();
  room += GroupTilePadding(AtShared(room));
  uint8_t* const x_room = room + kStages * kStageBytes;
  const int32_t thread = ThreadIndex();
  const OwnShare share(wide, kOutputs);
  const LinearArgs& a = share.a;
  const int32_t tile = share.tile;
  const int32_t part = share.part;
  const int32_t first_output = share.first_output;
  const int32_t begin = share.begin;
  const int32_t end = share.end;
  const int32_t first_row = BlockY() * kRows;
  const int32_t stages = (end - begin + kColumns - 1) / kColumns;

  const bool copies = thread < kGroup;
  const int32_t chunk = thread % kChunks;
  const int32_t copy_row = thread % kGroup / kChunks;
  const int32_t copied = GroupTileAt<kColumns>(copy_row, chunk);

  // W, by the first group: a thread's chunk of rows kCopyRows apart. Outputs beyond the last are the last again; of
  // columns beyond the end, where x is zeros, the last again.
  const uint16_t* const w = static_cast<const uint16_t*>(a.w.values);
  const int32_t last_output = a.w.rows - 1;
  const SharedAt ring = AtShared(room);
  int32_t w_column = begin + 8 * chunk;
  const auto copy = [&](int32_t slot) {
    const int32_t column = w_column < end ? w_column : end - 8;
    EBB_UNROLL
    for (int32_t i = 0; i < kCopies; ++i) {
      const int32_t output = first_output + copy_row + kCopyRows * i;
      const int64_t row = output < last_output ? output : last_output;
      CopyAhead(ring + (slot + copied + kCopyRows * kRowBytes * i), w + (row * a.w.cols + column));
    }
    w_column += kColumns;
  };
  EBB_UNROLL
  for (int32_t i = 0; i < kStages - 1; ++i) {
    if (copies && i < stages) copy(i * kStageBytes);
    CloseCopies();
  }

  // x, by the other group, half of it in turn: a thread's chunk of one row, or of rows kLaidRows apart.
  constexpr int32_t kLayers = kGroup / 2;
  constexpr int32_t kLaidRows = kLayers / kChunks;
  constexpr int32_t kItems = kRows > kLaidRows ? kRows / kLaidRows : 1;
  static_assert(kLaidRows % 8 == 0);
  const int32_t turn = thread % kGroup / kLayers;
  const int32_t lay_row = thread % kLayers / kChunks;
  const int32_t laid = turn * kXBytes<kRows> + GroupTileAt<kColumns>(lay_row, chunk);
  const bool lays = !copies && lay_row < kRows;
  const int32_t rows_left = lays ? a.rows - first_row - lay_row : 0;
  const float* const x_row = a.x + int64_t{rows_left > 0 ? first_row + lay_row : 0} * a.w.cols;
  const int64_t x_apart = int64_t{kLaidRows} * a.w.cols;
  int32_t x_column = begin + turn * kColumns + 8 * chunk;
  Vector16 x[kItems][2];
  const auto fetch = [&] {
    EBB_UNROLL
    for (int32_t i = 0; i < kItems; ++i) {
      x[i][0] = x[i][1] = {};
      if (kLaidRows * i >= rows_left || x_column >= end) continue;
      const Vector16* const from = reinterpret_cast<const Vector16*>(x_row + x_apart * i + x_column);
      x[i][0] = from[0];
      x[i][1] = from[1];
    }
    x_column += 2 * kColumns;
  };
  const auto lay = [&] {
    EBB_UNROLL
    for (int32_t item = 0; item < kItems; ++item) {
      Vector16 terms[2];
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) {
        const uint32_t(&two)[4] = x[item][i / 2].word;
        const Terms of_two = TermsOfAny(FloatOf(two[i % 2 * 2]), FloatOf(two[i % 2 * 2 + 1]));
        terms[0].word[i] = of_two.first;
        terms[1].word[i] = of_two.second;
      }
      EBB_UNROLL
      for (int32_t term = 0; term < 2; ++term) {
        *reinterpret_cast<Vector16*>(x_room + laid + (kRows * term + kLaidRows * item) * kRowBytes) = terms[term];
      }
    }
    FenceGroupTiles();
  };
  WaitForEarlier();  // W is under way; x, and what is written, are others'
  LetLaterBegin();   // what comes next fetches little
  if (lays) {
    fetch();
    if (turn == 0) {
      lay();
      SyncTeam();
      fetch();
    }
  }

  float sum[kTall][kWide][4] = {};
  const SharedAt x_at = AtShared(x_room);
  const SharedAt of_group = ring + thread / kGroup * (kGroupOutputs * kTall * kRowBytes);
  int32_t slot = 0;
  int32_t free_slot = (kStages - 1) * kStageBytes;
  int32_t x_slot = 0;
  for (int32_t stage = 0; stage < stages; ++stage) {
    CopiesArrived<kStages - 2>();
    Barrier();  // this stage is there, and the room of the one before is free again
    if (copies && stage + kStages - 1 < stages) copy(free_slot);
    CloseCopies();
    EBB_UNROLL
    for (int32_t m = 0; m < kTall; ++m) {
      MultiplyGroupTile<kColumns>(of_group + (slot + m * kGroupOutputs * kRowBytes), x_at + x_slot, sum[m]);
    }
    x_slot = kXBytes<kRows> - x_slot;
    if (lays && stage % 2 != turn && stage + 1 < stages) {
      lay();
      SyncTeam();  // or the compiler fetches first, and lay's fence waits for that
      fetch();
    }
    EBB_UNROLL
    for (int32_t m = 0; m < kTall; ++m) GroupTilesDone(sum[m]);
    free_slot = slot;
    slot = slot == (kStages - 1) * kStageBytes ? 0 : slot + kStageBytes;
  }

  Sums<kRows> total;
  EBB_UNROLL
  for (int32_t m = 0; m < kTall; ++m) {
    EBB_UNROLL
    for (int32_t j = 0; j < kRows / 8; ++j) {
      EBB_UNROLL
      for (int32_t i = 0; i < 4; ++i) total[m][j][i] = sum[m][j][i] + sum[m][j + kRows / 8][i];
    }
  }
  if (wide.splits > 1) {
    Barrier();  // nobody reads the shared memory any more
    if (!AddSplits<kRows>(wide, a, tile, part, a.rows - first_row, total)) return;
  }
  PutAll<kRows>(a, first_output, first_row, total);
}

template <int32_t kRows>
void LaunchRows(const LinearsArgs& args, Stream stream) {
  ShareArgs wide = ShareOf(args, kOutputs);
  const LinearArgs& one = args.of[0];
  const int32_t stages = (one.w.cols + kColumns - 1) / kColumns;
  const int32_t splits = wide.tiles < kWideBlocks ? kWideBlocks / wide.tiles : 1;
  const int32_t each = (stages + splits - 1) / splits;
  wide.columns = (each < kStagesMin ? kStagesMin : each) * kColumns;
  wide.splits = (one.w.cols + wide.columns - 1) / wide.columns;
  LaunchEarly(MultiplyWide<kRows>, {int64_t{wide.tiles} * wide.splits, (int64_t{one.rows} + kRows - 1) / kRows},
              kThreads, wide, stream, kSharedBytes<kRows>);
}

}  // namespace

void LaunchLinearRowsWide(const LinearsArgs& args, Stream stream) {
  if (args.of[0].rows <= 8) return LaunchRows<8>(args, stream);
  if (args.of[0].rows <= 16) return LaunchRows<16>(args, stream);
  LaunchRows<kLinearRows>(args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
