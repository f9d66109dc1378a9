// The kernels as a table of functions over raw pointers: what ops_cpu calls and what each instruction set provides.
//
// Plain data only, because the files that include this are compiled for instruction sets that the linker's choice of an
// inline function must not leak out of (vec.h). Shapes and letters are those of engine/ops.h.

#ifndef EBB_ENGINE_OPS_CPU_KERNELS_H_
#define EBB_ENGINE_OPS_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace ebb::cpu {

// Element types of weights and of K/V, as kernels know them; kInt8 and kFp8 are K/V's alone.
enum class Element : int32_t { kF32, kF16, kBf16, kQ8, kQ4, kQ4K, kQ5K, kQ6K, kInt8, kFp8 };

// Packed weights. Sixteen output rows are a panel, its lanes; two panels are a group (the last is padded with zeros). k
// is cut into chunks of 32, the last padded too. A group lies as [chunk][one chunk of the group], so that memory is
// read once, in order. One chunk of a group, P = panel 0, 1:
//
//   F32, F16   [P][32 k][16]
//   BF16       [P][16 pairs][16][2 k]                                    a lane reads two neighbouring k at once,
//   Q8_0       [P][16] F16 scales, [P][8][16][4 k] bytes, value + 128    or four,
//   Q4_0       [P][16] F16 scales, [P][4][16][4] bytes: of step j the low nibbles are k = 8 j .. 8 j + 3,
//              the high ones k = 8 j + 4 .. 8 j + 7, value + 8           in two halves
//
// In the K types the eight chunks of a block of 256 share a head, and the group lies as [block][head, 8 chunks]:
//
//   head       Q4_K, Q5_K: [P][16] F16 d, [P][16] F16 dmin; Q6_K: [P][16] F16 d
//   chunk      Q4_K, Q5_K: [P][16] scales, [P][16] minima, bytes
//              Q6_K: [P][16] scales of the first 16 k, [P][16] of the other 16, int8
//              [P] of what follows: the low four bits of codes, [4][16][4] bytes as in Q4_0, and behind them
//                Q5_K [16][4] bytes, whose bit s is the fifth bit of the codes k = 4 s .. 4 s + 3
//                Q6_K [2][16][4] bytes, of s / 4 the bits 2 (s % 4) and 2 (s % 4) + 1: their upper two
//
//   value = d * scale * code - dmin * minimum, in Q6_K d * scale * (code - 32)
//   bits per weight (the file's): Q4_K 4.625 (4.5), Q5_K 5.625 (5.5), Q6_K 6.5625 (6.5625)
//
// All of which is what a dot product of bytes or of BF16 pairs takes, and what `exact` arithmetic unpacks.
inline constexpr int32_t kPanelRows = 16;
inline constexpr int32_t kGroupPanels = 2;
inline constexpr int32_t kGroupRows = kPanelRows * kGroupPanels;
inline constexpr int32_t kChunk = 32;

// Of the K types: chunks under one head; bytes of a head, of a panel's codes in a chunk, of a chunk without the head.
inline constexpr int32_t kSuperChunks = 8;
constexpr bool IsKType(Element type) { return type == Element::kQ4K || type == Element::kQ5K || type == Element::kQ6K; }
constexpr int64_t KHeadBytes(Element type) { return type == Element::kQ6K ? 64 : 128; }
constexpr int64_t KPanelBytes(Element type) {
  return type == Element::kQ4K ? 256 : type == Element::kQ5K ? 256 + 64 : 256 + 128;
}
constexpr int64_t KChunkBytes(Element type) { return 64 + kGroupPanels * KPanelBytes(type); }

constexpr int64_t ChunkBytes(Element type) {  // of one group
  switch (type) {
    case Element::kF32:
      return 4096;
    case Element::kF16:
    case Element::kBf16:
      return 2048;
    case Element::kQ8:
      return 64 + 1024;
    case Element::kQ4:
      return 64 + 512;
    case Element::kQ4K:
    case Element::kQ5K:
    case Element::kQ6K:  // an eighth of a block and its head
      return KHeadBytes(type) / kSuperChunks + KChunkBytes(type);
    case Element::kInt8:
    case Element::kFp8:
      return 0;
  }
  return 0;
}

// Columns of x that share a scale when x is rounded to bytes.
inline constexpr int32_t kRoundedBlock = 128;

// Rows of x rounded for `fast` arithmetic, k padded with zeros to whole chunks. For weights of 8 bits and less:
//
//   x[m][k] ~ scales[m][k / 128] * bytes[m][k]    scale = max |x| / 127 over the block, ties to even
//   offsets[m][k / 32] = -128 * sum of bytes      of a chunk: what a product with value + 128 has too much
//   halves[m][k / 32]  = the same of the chunk's first 16 bytes
//
// What is not finite makes its block's scale not a number. For BF16 weights x rounded to BF16, in the form that the
// instruction set multiplies: floats, or pairs of BF16 in the first half of a chunk.
struct RoundedRows {
  int8_t* bytes = nullptr;     // [rows][chunks * 32]
  float* scales = nullptr;     // [rows][ceil(k / 128)]
  int32_t* offsets = nullptr;  // [rows][chunks]
  int32_t* halves = nullptr;   // [rows][chunks]
  float* pairs = nullptr;      // [rows][chunks][32]
};

// y[m, 0..outputs-1] (+)= x[m, :] W^T for one group and `rows` rows of x.
//
// linear_exact: weights are dequantised, x is float32; each chunk is summed by itself in k order and then added (for
// quantised types multiplied by its scale and added; Q6_K, which has two scales, by halves; in Q4_K and Q5_K the
// minimum times the sum of x is then subtracted). linear_fast: x is rounded; bytes are multiplied and summed as
// integers, which is exact, chunk by chunk, and scaled; BF16 pairs are summed in float32 in k order, of each pair the
// second first, or as tiles.h has it (sums_apart). Either way the order is the same for any number of rows.
struct LinearArgs {
  Element type = Element::kF32;
  const std::byte* weights = nullptr;  // of the group
  int32_t outputs = 0;                 // rows of W in the group, 1 .. kGroupRows
  int32_t k = 0;                       // columns of W
  const float* x = nullptr;            // [rows] of stride k
  RoundedRows rounded = {};            // for linear_fast, instead of x
  int32_t rows = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  bool add = false;
};

struct RopeArgs {
  const uint64_t* turns = nullptr;    // [rotary_dims / 2]
  const float* half_turns = nullptr;  // [rotary_dims / 2][2]
  int32_t rotary_dims = 0;
  bool halves = false;  // RopePairs::kHalves, else kNeighbours
};

struct KvArgs {
  Element type = Element::kBf16;  // F32, F16, BF16, kInt8 or kFp8
  bool rk = false;
  int32_t head_dim = 0;
  int32_t page_tiles = 0;
  std::byte* const* pages = nullptr;
};

// Slots that one step of online softmax takes in. Blocks begin at multiples of it, whatever the rows are: that is what
// makes a row's bits independent of the rows computed beside it.
inline constexpr int32_t kBlockTiles = 4;
inline constexpr int32_t kBlockSlots = 16 * kBlockTiles;

// Slots that are summed up by themselves before they meet others: a part. Parts begin at multiples of it, each is
// folded block by block from nothing, and they are merged in slot order, whoever folded them. So threads may share a
// lane, and its bits do not tell; a lane of one part is not merged at all.
inline constexpr int32_t kPartSlots = 16 * kBlockSlots;

// Largest head that kernels keep on their stack.
inline constexpr int32_t kMaxHeadDim = 512;

// What rows have made of some slots. `width` = head_dim rounded up to 16.
struct AttendState {
  float* sums = nullptr;    // [rows][width] sum of p * v so far
  float* peak = nullptr;    // [rows] largest logit so far
  float* weight = nullptr;  // [rows][16] sum of p so far, by lane
};

// Memory of one thread for one call of attend; [n] are floats.
struct AttendScratch {
  float* q = nullptr;       // [rows][width] rotated, scaled
  AttendState part = {};    // of the part that is being folded
  AttendState all = {};     // of those before it, where a lane has several
  float* keys = nullptr;    // [kBlockTiles][head_dim][16] rotated keys of a block
  float* angles = nullptr;  // [kBlockTiles][rotary_dims][16] of a block, where lanes share them
  float* logits = nullptr;  // [rows][kBlockSlots], or [rows][slots up to a block] where rows are observed
  float* p = nullptr;       // [rows][kBlockSlots]
};

// Some of the tokens of one AttendTask: rows = tokens * group.
struct AttendArgs {
  RopeArgs rope = {};
  KvArgs kv = {};
  const int32_t* position = nullptr;  // [slots up to 16]
  int32_t slots = 0;
  // Fold this part alone, to scratch.part and, where rows are observed, their logits; -1: all parts, to the end.
  int32_t part = -1;
  const float* angles = nullptr;
  const float* q = nullptr;
  float* out = nullptr;
  int64_t stride = 0;
  int64_t out_stride = 0;
  int32_t tokens = 0;
  int32_t group = 0;
  const int32_t* q_position = nullptr;
  float scale = 0;                // of q . k
  float cap = 0;                  // of logits; 0: none
  int32_t reach = INT32_MAX;      // positions that a query sees, the newest ones
  const float* slopes = nullptr;  // [group] what a step of distance takes from a logit; null: nothing
  AttendScratch scratch = {};
  KvArgs next = {};              // the lane that is likely to be attended after, of the same types,
  int32_t next_first = 0;        // the tile that begins what is attended of it,
  int32_t next_tiles = 0;        // and how many tiles to ask for, at most a block's; 0: none is known
  float* column_sums = nullptr;  // [slots] of these tokens alone; null unless wanted, as the two below
  float* last_row = nullptr;     // [slots]
  float* window = nullptr;       // [window_rows][slots], the last window_rows of these tokens
  int32_t window_rows = 0;
  // Instead of the mean over the group, each query head's own: head g's numbers lie g times this many floats further on
  // in all three; 0: the mean.
  int64_t head_stride = 0;
};

struct StoreArgs {
  RopeArgs rope = {};
  KvArgs kv = {};
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t stride = 0;
  int32_t tokens = 0;
  const int32_t* slots = nullptr;
};

// Rows of K (unrotated) or V of slots first .. first + count - 1 as floats, out [count][head_dim].
struct ReadArgs {
  KvArgs kv = {};
  bool values = false;
  int32_t first = 0;
  int32_t count = 0;
  float* out = nullptr;
};

// Of the feed-forward part: a / (1 + e^-a); a / (1 + e^(-2 c (a + 0.044715 a^3))) with c = sqrt(2 / pi), which is GELU
// in its tanh form; max(a, 0). What is not a number stays so.
enum class Curve : int32_t { kSilu, kGelu, kRelu };

struct Kernels {
  const char* name = nullptr;
  // Sums of BF16 products are in an order of their own: bits that no other instruction set has.
  bool sums_apart = false;
  int32_t tile_rows = 6;  // of x that linear kernels take at a time where there are many
  void (*linear_exact)(const LinearArgs&) = nullptr;
  void (*linear_fast)(const LinearArgs&) = nullptr;  // BF16, Q8_0, Q4_0 and the K types
  // Rounds one row of k floats: to bytes, or to BF16.
  void (*round_to_bytes)(const float* x, int32_t k, const RoundedRows& row) = nullptr;
  void (*round_to_bf16)(const float* x, int32_t k, const RoundedRows& row) = nullptr;
  // Of lanes that share positions, slots, tokens, their positions and the group. `next` and scratch.angles are the
  // first one's.
  void (*attend)(const AttendArgs* lanes, int32_t count) = nullptr;
  // Merges the parts of one lane that calls of attend have folded, in slot order, and ends as attend without parts
  // does. Each part's state lies `stride` floats behind the one before. scratch.all is merge's memory, scratch.logits
  // is where those calls left logits; nothing else of scratch is used.
  void (*merge)(const AttendArgs& lane, const AttendState& first, int64_t stride, int32_t count) = nullptr;
  void (*store)(const StoreArgs&) = nullptr;
  void (*read)(const ReadArgs&) = nullptr;
  // Cosines and sines of one tile of 16 positions: angles [rotary_dims / 2][2][16].
  void (*angles)(const RopeArgs&, const int32_t* position, float* angles) = nullptr;
  // y = x / sqrt(mean(x^2) + eps) * weight, one row of n.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y) = nullptr;
  // y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, alike.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int64_t n, float* y) = nullptr;
  // y = curve(x) * up, or curve(x) where up is null. y may be x.
  void (*activate)(Curve curve, const float* x, const float* up, int64_t n, float* y) = nullptr;
  // x = cap * tanh(x / cap).
  void (*soft_cap)(float cap, int64_t n, float* x) = nullptr;
  // x = e^(x - largest) / the sum of these.
  void (*softmax)(float largest, int64_t n, float* x) = nullptr;
};

#ifdef EBB_KERNEL_ISA
namespace EBB_KERNEL_ISA {
void LinearExact(const LinearArgs& args);
void LinearFast(const LinearArgs& args);
void LinearKExact(const LinearArgs& args);  // of the K types, which the two above pass on
void LinearKFast(const LinearArgs& args);
void RoundToBytes(const float* x, int32_t k, const RoundedRows& row);
void RoundToBf16(const float* x, int32_t k, const RoundedRows& row);
void Attend(const AttendArgs* lanes, int32_t count);
void Merge(const AttendArgs& lane, const AttendState& first, int64_t stride, int32_t count);
void Store(const StoreArgs& args);
void Read(const ReadArgs& args);
void Angles(const RopeArgs& rope, const int32_t* position, float* angles);
void RmsNorm(const float* x, const float* weight, float eps, int64_t n, float* y);
void LayerNorm(const float* x, const float* weight, const float* bias, float eps, int64_t n, float* y);
void Activate(Curve curve, const float* x, const float* up, int64_t n, float* y);
void SoftCap(float cap, int64_t n, float* x);
void Softmax(float largest, int64_t n, float* x);
}  // namespace EBB_KERNEL_ISA
#endif

}  // namespace ebb::cpu

#endif  // EBB_ENGINE_OPS_CPU_KERNELS_H_
