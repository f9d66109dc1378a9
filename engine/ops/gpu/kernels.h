// The device's kernels as a table of functions over plain data: what the host side (engine/gpu) calls and what each
// target provides. Targets: `cuda` and `hip`, shared libraries that are loaded at run time, and `emulated32` and
// `emulated64`, the same sources run by the host with warps of 32 and of 64 (emulation.h).
//
// Plain data only: the table crosses the border between compilers. Every pointer inside an argument is the device's.
// Launches of one stream run in order and return at once; what goes wrong in one is told by the next `wait`. The bits
// of a row depend neither on the other rows of a launch nor on the warp's width. Letters as in engine/ops.h: T rows
// (tokens) of a step, H KV heads, G query heads per KV head, d head_dim, n slots of a lane.

#ifndef EBB_ENGINE_OPS_GPU_KERNELS_H_
#define EBB_ENGINE_OPS_GPU_KERNELS_H_

#include <cstdint>

#include "engine/ops/gpu/anywhere.h"
#include "engine/ops/gpu/draw_needs.h"
#include "engine/ops/gpu/linear_splits.h"
#include "engine/ops/gpu/matrix.h"
#include "engine/ops/gpu/mixture.h"
#include "engine/ops/gpu/norms.h"

namespace ebb::gpu {

// Changes with any struct of this file and of those it includes: a library of another version is not used.
inline constexpr int32_t kTableVersion = 19;

// --- the cache ---------------------------------------------------------------------------------------------------

// Slots of a page, the unit of allocation, and of a split, what one block of threads attends to. Splits begin at fixed
// slots, and how many a lane has follows from its own slots, whoever else is in the step: that is what makes a row's
// bits its own.
inline constexpr int32_t kPageSlots = 64;
inline constexpr int32_t kSplitSlots = 256;
// Slots that the last split takes beyond what others have, rather than leave them to one more. A bounded session has a
// slot more than its budget while a token is placed before another leaves: with a budget of four splits that would be a
// fifth block beside each four, and a device that has room for all blocks at once would run some after the others.
inline constexpr int32_t kSplitMore = 16;
inline constexpr int32_t kSplitSlotsMax = kSplitSlots + kSplitMore;
// Splits of a lane, each of `split_slots` but the last, which has what is left, up to kSplitMore above it.
EBB_ANYWHERE constexpr int32_t SplitsOf(int32_t slots, int32_t split_slots) {
  return (slots - (slots > kSplitMore ? kSplitMore : 0) + split_slots - 1) / split_slots;
}
// Slots of split `split` of these, of slot split * split_slots and those after it; 0: the lane has no such split.
EBB_ANYWHERE constexpr int32_t SlotsOfSplit(int32_t slots, int32_t split_slots, int32_t split) {
  const int32_t splits = SplitsOf(slots, split_slots);
  if (split >= splits) return 0;
  return split == splits - 1 ? slots - split * split_slots : split_slots;
}
// The most slots that make as many splits as `slots` do.
constexpr int32_t SlotsOfAsManySplits(int32_t slots, int32_t split_slots) {
  return slots == 0 ? 0 : SplitsOf(slots, split_slots) * split_slots + kSplitMore;
}

inline constexpr int32_t kHeadDimMax = 256;  // a multiple of 16
inline constexpr int32_t kGroupMax = 8;

// Of the rows of a prompt's block: slots that are laid out together, and slots of a split, as many as a block of
// threads is to be busy with. Whole splits are whole stages of either.
inline constexpr int32_t kStripSlots = 16;
inline constexpr int32_t kStageSlots = 64;
// Strips of a lane of n slots: whole stages.
EBB_ANYWHERE constexpr int32_t LaidStrips(int32_t slots) {
  return (slots + kStageSlots - 1) / kStageSlots * (kStageSlots / kStripSlots);
}
inline constexpr int32_t kBlockSplitSlots = 2048;

// The arena is cut into pages; one holds K and V of kPageSlots slots of one lane, a row per slot:
//
//   K [64][d]   unrotated          V [64][d]          in the cache's element type: F32, F16, BF16, or bytes: Q8, FP8
//   S [2][64]   floats, only with bytes: what a slot's K, and its V, are to be multiplied by (engine/ops.h, KvFormat)
//
// Slot s of a lane is row s % 64 of page page[s / 64]. A row is read in vectors, and replacing a token writes two rows
// and moves nothing.
struct Arena {
  void* base = nullptr;
  Element type = Element::kBf16;
  int32_t head_dim = 0;
};

constexpr bool IsScaled(Element type) { return type == Element::kQ8 || type == Element::kFp8; }
constexpr int64_t KvBytes(Element type) { return type == Element::kF32 ? 4 : IsScaled(type) ? 1 : 2; }
constexpr int64_t PageBytes(Element type, int32_t head_dim) {
  return int64_t{2} * kPageSlots * (head_dim * KvBytes(type) + (IsScaled(type) ? 4 : 0));
}

// What a lane's scores are made of, and so who leaves.
enum class ScoreRule : int32_t {
  kAge,          // nothing: the oldest leaves
  kSum,          // all attention received so far
  kLast,         // attention paid by the newest query
  kShortKeys,    // the key's length, of which the longest leaves
  kLongKeys,     // or the shortest
  kKeyLikeness,  // nothing: the key that is most like the lane's mean leaves
  kChance,       // nothing: a hash decides
};

// What changes scores of attention before anybody leaves (policies/caote.h).
enum class ScoreModifier : int32_t { kNone, kCaote, kFastCaote };

// How the scores of query heads that share a KV head become the lane's: they never were apart; the largest; the L2
// norm; or the union of what each would keep (policies/rank.h).
enum class HeadReduction : int32_t { kTogether, kLargest, kL2, kUnion };

// What left one lane with those who were evicted together.
struct LaneLoss {
  double mass = 0;    // of attention, 0 .. 1
  double error = 0;   // how far the output moved, in units of the values; 0 where nobody stays
  double output = 0;  // its length before
};

// One session's lanes in one step, or those of some layers: layer-major, and all hold equally many tokens, but each its
// own. The host fills this in without asking the device: who sits where is known here alone, how many is arithmetic.
struct SessionView {
  int32_t* token = nullptr;       // [lanes][capacity] index in the log, -1 where free
  int32_t* position = nullptr;    // [lanes][capacity] RoPE position, -1 where free
  float* score = nullptr;         // [lanes][tracks][capacity] the rule's
  float* keep = nullptr;          // alike, what is made of them; null: nothing. Who leaves goes by a lane's first track
  int32_t* placed = nullptr;      // [lanes][block_max] slots of the step's tokens; behind it, where Place looks first
  int32_t* scratch = nullptr;     // [lanes][capacity]
  const int32_t* page = nullptr;  // [lanes][pages_per_lane] into the arena
  float* queries = nullptr;       // [lanes][G][d] the newest token's, unrotated
  int32_t* left = nullptr;        // [lanes][drop] who left, in the order of their slots; null: nobody asks
  LaneLoss* loss = nullptr;       // [lanes] what left with them; null: nobody asks
  int32_t capacity = 0;
  int32_t block_max = 0;
  int32_t pages_per_lane = 0;
  int32_t live = 0;         // tokens in a lane before the step
  int32_t slots = 0;        // n: every live slot is below it, the step's own included, once FillHoles has run
  int32_t spread = 0;       // before that, every live slot is below this
  int32_t first_token = 0;  // index in the log of the step's first
  int32_t first_row = 0;    // of the step's rows
  int32_t first_strip = 0;  // of a prompt's block: LaidStrips of the sessions of its launch before it (BlockArgs)
  int32_t tokens = 0;       // rows, 1 .. block_max
  int32_t tracks = 1;       // scores of a slot: one, or one for each query head
  int32_t compacted = 0;    // positions are ranks among the live, else indices in the log
  ScoreRule rule = ScoreRule::kAge;
  ScoreModifier modifier = ScoreModifier::kNone;
  HeadReduction reduction = HeadReduction::kTogether;
  uint64_t seed = 0;   // of kChance
  int32_t fresh = 0;   // of kChance: a draw for each decision, else one for each token
  int32_t best = 0;    // of kUnion: candidates that each track would keep
  int32_t sinks = 0;   // oldest and
  int32_t recent = 0;  // newest live tokens that stay
  int32_t drop = 0;    // tokens that leave each lane when the step is over; sinks + recent + drop <= live tokens
};

// --- arguments ---------------------------------------------------------------------------------------------------

// x [T][dim] = scale * rows of `table` [vocab][dim].
struct EmbedArgs {
  Matrix table = {};
  const int32_t* tokens = nullptr;  // [T] in 0 .. vocab - 1
  float scale = 1;
  float* x = nullptr;  // 16-byte aligned
  int32_t rows = 0;
};

// y [T][out] = x [T][in] W^T + bias, or y += . Where weights are BF16 or quantised, linear_tiles rounds x to BF16, and
// linear_rows to the sum of two: within 2^-17 of it. F32 and F16 are multiplied by x as it is. W is finite. An infinite
// number of x makes y what its products with W are together, infinite or NaN, as on the CPU.
struct LinearArgs {
  Matrix w = {};
  const float* bias = nullptr;  // [out] or null
  const float* x = nullptr;     // [T][in], 16-byte aligned
  float* y = nullptr;           // row t at y + t * y_stride
  int64_t y_stride = 0;
  int32_t rows = 0;
  int32_t add = 0;
  // Of linear_rows where weights are neither F32 nor F16, for launches of one stream in turn: what parts of the columns
  // add up to, and how many of them are done, zeros before and after each launch.
  float* partial = nullptr;    // [LinearPartials(out, in, rows)], linear_splits.h
  int32_t* arrived = nullptr;  // [LinearMeetings(out, rows)]
};

// Products with one x in one launch: of cols, x, rows, partial and arrived all have the same. Partial sums are as many
// as those of one product whose outputs fill their tiles together.
struct LinearsArgs {
  LinearArgs of[kTogetherMax] = {};
  int32_t count = 0;
};

// y = x W^T of sorted choices (mixture.h), each by its expert's part of W: with the bits of linear_tiles by that part
// alone, whichever way a row came.
struct LinearExpertsArgs {
  // w [experts * out][in], part after part; y [T * used][out]; `rows` T * used. No bias, and nothing is added to.
  LinearArgs linear = {};
  int32_t experts = 0;
  const int32_t* row_of = nullptr;    // of choices, the rows of x; null: x is sorted, too
  const ExpertTile* tiles = nullptr;  // [ExpertTiles(T * used, experts)]
};

// y = x in BF16, n numbers, a multiple of 8; both aligned to 16 bytes.
struct RoundArgs {
  const float* x = nullptr;
  uint16_t* y = nullptr;
  int64_t n = 0;
};

// y = curve(gate) * up, of n floats, a multiple of 4; y may be either. All are 16-byte aligned.
enum class Curve : int32_t { kSilu, kGelu, kRelu };
struct ActivateArgs {
  Curve curve = Curve::kSilu;
  const float* gate = nullptr;
  const float* up = nullptr;  // null: ones
  float* y = nullptr;
  int64_t n = 0;
};

// x = cap * tanh(x / cap), n floats.
struct CapArgs {
  float* x = nullptr;
  int64_t n = 0;
  float cap = 0;
};

// As engine/ops.h, Rope: pair i turns by position * turns[i] * 2^-64 turns. Of halves, rotary_dims is a multiple of 16.
struct RopeArgs {
  const uint64_t* turns = nullptr;  // [rotary_dims / 2]
  int32_t rotary_dims = 0;
  int32_t halves = 0;  // pairs are (i, i + rotary_dims / 2), else (2 i, 2 i + 1)
};

// What all kernels of the cache are told. `lanes` = kv_heads * the layers whose lanes these are; `layer` counts them.
struct CacheArgs {
  Arena arena = {};
  const SessionView* sessions = nullptr;  // [sessions]
  int32_t session_count = 0;
  const int32_t* row_session = nullptr;  // [T]
  int32_t rows = 0;
  int32_t kv_heads = 0;
  int32_t lanes = 0;
  int32_t slots_max = 0;  // no `slots` of the sessions is larger
};

// x [T][dim] += rows of `table` [positions][dim], each by the position of its token in its session's first lane.
struct EmbedPositionsArgs {
  Matrix table = {};
  CacheArgs cache = {};  // of layer 0
  float* x = nullptr;    // 16-byte aligned
};

// K and V of the step's tokens into the slots where they were placed, of one layer; lengths of keys as they then rest,
// where these are the session's scores; and of each session's newest token the queries, with which anybody can ask
// later what it attends to.
struct StoreArgs {
  CacheArgs cache = {};
  int32_t layer = 0;
  const float* k = nullptr;  // row t, head h at k + t * stride + h * d, unrotated; v alike
  const float* v = nullptr;
  const float* q = nullptr;  // row t, query head j at q + t * stride + j * d, unrotated, 16-byte aligned
  int64_t stride = 0;        // with queries a multiple of 4
  int32_t group = 0;         // G; 0: queries are not kept
};

// Attention of every row over its session's lanes of one layer, split by split:
//
//   logit[t, h, g, s] = scale * R(position of t) q[t, h, g] . R(position[s]) k[s], under a cap cap * tanh(logit / cap),
//                       lowered by slope[h, g] * (position of t - position[s]);
//                       -inf where position[s] is that of a later token, of one before the window, or of none
//   of split c        peak = max over its slots, weight = sum of e^(logit - peak), sums = sum of e^(logit - peak) v
//
// Of caches in BF16 or bytes q, k and v are finite; else what is multiplied by them may be NaN where infinity would do.
// Of rows that come alone keys that turn are rounded to F16, so that, turned, they are within its 65504; so is q times
// the scale.
//
// The launch before Attend writes neither sessions nor their `position` and `placed`: it may not be done when Attend
// looks.
//
// The splits are folded in ascending order into out = sum / weight, and into stats (peak, 1 / weight): by Attend, of
// rows that come alone, of which it also tells the scores what they received; by AttendMerge, of others.
//
// Attention received, by the rule of each session: P = mean over G of e^(logit - peak) / weight; kSum adds the sum over
// the session's rows to its scores, kLast replaces them by the last row. Where query heads have tracks of their own, P
// is that head's.
struct AttendArgs {
  CacheArgs cache = {};       // `rows` and `session_count`: how many from first_row and first_session on
  int32_t first_row = 0;      // the launch's; arrays hold the rows of the whole step
  int32_t first_session = 0;  // that of first_row
  int32_t layer = 0;
  int32_t group = 0;  // G, 1 .. kGroupMax
  RopeArgs rope = {};
  float scale = 0;
  float cap = 0;                  // 0: none
  const float* slopes = nullptr;  // [H * G], or null: zeros. REQUIRES where there are some: rotary_dims is 0
  int32_t window = INT32_MAX;     // positions that a row sees, the newest, its own among them
  const float* q = nullptr;       // row t, query head j at q + t * q_stride + j * d, unrotated
  int64_t q_stride = 0;
  int32_t splits = 0;  // SplitsOf(slots_max, split_slots)
  int32_t split_slots = kSplitSlots;
  float* partial_sums = nullptr;   // [T][H * G][splits][d]
  float* partial_stats = nullptr;  // [T][H * G][splits][2]: peak, weight
  float* logits = nullptr;         // [T][H * G][slots_max], or null where no session of the step observes; slots_max
                                   // is a multiple of 4
  int32_t* arrived = nullptr;      // [T][H], zeros before and after: splits that are attended
  float* out = nullptr;            // [T][H * G][d]
  float* stats = nullptr;          // [T][H * G][2]
};

// The same for rows of prompts' blocks: K and V are read once for many rows, by tensor cores. Lay puts what they
// multiply where one vector is what one thread wants next (lay.cc draws it); AttendBlock attends in splits of
// kBlockSplitSlots; AttendMerge folds them; ObserveBlock tells the scores.
//
//   q         [H][LaidTiles] tiles of LaidTileWords: kLaidRows rows of one session, rotated and scaled, as K lies in
//             kv; then a float a row, which ObserveBlock writes, and the row's position. Session i of the launch begins
//             with tile (first row, counted from the launch's) * G / kLaidRows + i
//   kv        of each session [H][LaidStrips][2][terms][d / 16][32][4] words, one session behind the other: K, rotated,
//             and V of kStripSlots slots; zeros where a slot is free
//   position  [H][LaidStrips * kStripSlots] alike: INT32_MAX where a slot is free, which no row sees
//   earliest  [H][LaidStrips] alike: the first position there, INT32_MAX where all are free; and
//   latest    alike the last, -1
//
// A word is two BF16. With K and V in BF16 or bytes there is one term: what is multiplied is rounded. F32 and F16 take
// three that add up to the number, so that a product is as good as one of floats.
constexpr int32_t LaidTerms(Element type) { return type == Element::kF32 || type == Element::kF16 ? 3 : 1; }
inline constexpr int32_t kLaidRows = 16;
constexpr int64_t LaidTiles(int64_t rows, int32_t group, int64_t sessions) {
  return rows * group / kLaidRows + sessions;
}
constexpr int32_t LaidTileWords(Element type, int32_t head_dim) {
  return LaidTerms(type) * kLaidRows * head_dim / 2 + 2 * kLaidRows;
}
struct BlockArgs {
  AttendArgs attend = {};  // logits are not written
  int32_t tokens_max = 0;  // the most that a session of the launch brings
  int32_t strips = 0;      // LaidStrips(slots_max)
  uint32_t* q = nullptr;
  uint32_t* kv = nullptr;
  int32_t* position = nullptr;
  int32_t* earliest = nullptr;
  int32_t* latest = nullptr;
};

// Moves the tokens that sit at or past `slots` of their session into the lowest free slots, in the order of their
// slots: K, V, positions, scores. REQUIRES: live + tokens <= slots. `scratch` is anything afterwards.
struct FillHolesArgs {
  CacheArgs cache = {};
};

// Seats the step's tokens in the lowest-numbered free slots of every lane, in token order, with scores of 0.
struct PlaceArgs {
  CacheArgs cache = {};
};

// Of every lane that somebody leaves in this step, what its scores become by the modifier of its session, into `keep`:
//
//   a[j] = score[j] / sum of score,  X = sum a[j] v[j]; of kFastCaote the mean of the live v[j]
//   keep[j] = a[j] / (1 - a[j]) * |X - v[j]|
//
// over all live slots, the step's own included, for each track. Free slots become 0; what is below 0 or NaN counts as
// 0, and where nothing is above 0 all count as equal. Totals are float64, as on the CPU. Where all that may leave do,
// nothing is read and `keep` is anything.
struct CaoteArgs {
  CacheArgs cache = {};
  int32_t tracks = 1;  // the most of a session
};

// Of sessions that go by it, how unlike the mean key each key is, into `keep` (policies/key_likeness.h):
//
//   m = mean over live slots j of k[j] / |k[j]|,  keep[j] = -cos(k[j], m)
//
// in float64, keys as they rest. Terms of m are rounded to where their sum is exact. Free slots are anything; so is all
// where all that may leave do.
struct LikenessArgs {
  CacheArgs cache = {};
};

// Of sessions that go by it, a hash of each live token into `keep`: bit for bit that of policies/random.h.
struct ChanceArgs {
  CacheArgs cache = {};
};

// The scores of a lane's tracks, modified or not, into its first track of `keep`, of sessions with several. Free slots
// are anything; so is all where all that may leave do.
//
//   kLargest  the largest, NaN if one is       kL2  sqrt(sum of squares)       kUnion  the mean over the tracks, and
//   those whom some track counts among its `best` candidates are lifted, in their order, above those whom none does
struct ReduceArgs {
  CacheArgs cache = {};
};

// Of sessions that ask, what leaves each lane with those whom Evict will free (policies/caote.h, MeasureEviction), on
// the attention that the session's newest token pays:
//
//   a[j] = mean over G of the softmax over the slots that it sees of scale * R(newest) q . R(position[j]) k[j], or of
//          what a cap and slopes make of that (AttendArgs)
//   X' = sum of a[j] v[j] / sum of a[j] over those who stay
//   mass = sum of a[j],  error = |sum of a[j] (v[j] - X')| over those who leave,  output = |X|
//
// NaN counts as 0. `scratch` is anything afterwards.
struct LossArgs {
  CacheArgs cache = {};
  int32_t group = 0;  // G
  RopeArgs rope = {};
  float scale = 0;
  float cap = 0;
  const float* slopes = nullptr;
  int32_t window = INT32_MAX;
};

// Frees `drop` slots of every lane: the smallest scores between sinks and recent tokens; NaN leaves first, of equal
// scores the older. Compacted positions close up. Tells who left where somebody asks.
struct EvictArgs {
  CacheArgs cache = {};
};

// The first of the largest logits of each row; NaN counts as minus infinity, and of nothing else token 0 is the first.
struct GreedyArgs {
  const float* logits = nullptr;  // [rows][vocab], 16-byte aligned
  int32_t vocab = 0;
  int32_t rows = 0;
  int32_t* token = nullptr;  // [rows]
  // Of several parts, for launches of one stream in turn: the largest of each, and how many of them are done, zeros
  // before and after each launch.
  uint64_t* parts = nullptr;   // [rows * GreedyParts(vocab)]
  int32_t* arrived = nullptr;  // [rows]
};

// Logits that one block of threads looks at.
inline constexpr int32_t kGreedyPart = 4096;
constexpr int32_t GreedyParts(int32_t vocab) { return (vocab + kGreedyPart - 1) / kGreedyPart; }

// The `count` largest logits of each row, the larger first and of equal ones the smaller token; NaN counts as, and is
// told as, minus infinity, -0 as 0.
struct LargestArgs {
  const float* logits = nullptr;  // [rows][vocab]
  int32_t vocab = 0;
  int32_t rows = 0;
  int32_t count = 0;              // 1 .. kLargestMax, at most vocab
  uint64_t* scratch = nullptr;    // [rows * LargestScratch(vocab, count)]
  TokenLogit* largest = nullptr;  // [rows][count]
};

// Logits that one block of threads looks at; the largest of a row's parts are cut into such parts again. What they are
// is kept in LargestScratch numbers a row.
inline constexpr int32_t kLargestPart = 4096;
constexpr int32_t LargestParts(int32_t n) { return (n + kLargestPart - 1) / kLargestPart; }
constexpr int64_t LargestScratch(int32_t vocab, int32_t count) {
  int64_t all = 0;
  for (int32_t n = vocab; n > kLargestPart; all += n) n = LargestParts(n) * count;
  return all;
}

// The mass of each row that asks for it, and the token in which a share of it ends. Rows that do not ask are left as
// they are. Weights are relative to the largest logit; NaN and minus infinity have none, and where all are, the mass is
// 0.
struct MassArgs {
  const float* logits = nullptr;     // [rows][vocab]
  const int32_t* best = nullptr;     // [rows] as GreedyArgs.token
  const DrawNeeds* needs = nullptr;  // [rows]
  int32_t vocab = 0;
  int32_t rows = 0;
  double* parts = nullptr;  // [rows * MassParts(vocab)]
  RowMass* mass = nullptr;  // [rows]
};

// Logits whose weights one block of threads adds up.
inline constexpr int32_t kMassPart = 4096;
constexpr int32_t MassParts(int32_t vocab) { return (vocab + kMassPart - 1) / kMassPart; }

// values[i] = scale * u, u in [-1, 1) a hash of (seed, i): what a benchmark multiplies, made where it is read.
struct RandomArgs {
  Element type = Element::kF32;  // F32, F16 or BF16
  void* values = nullptr;
  int64_t n = 0;
  float scale = 1;
  uint64_t seed = 0;
};

// --- the table ---------------------------------------------------------------------------------------------------

using Stream = void*;
// Launches that were recorded, not run, to be run any number of times with the arguments they had: a graph.
using Recording = void*;
// A place in a stream, and when the device came by.
using Moment = void*;
// Null: it worked; else what the runtime says, valid for the life of the library.
using Error = const char*;

// A kernel whose blocks want more shared memory than the device has for one.
struct Shortage {
  const char* file = nullptr;  // of the kernel; null: there is none
  int32_t needed = 0;          // bytes, of its own declarations and of what its launch asks for
  int32_t there = 0;
};

struct Table {
  int32_t version = 0;
  int32_t warp = 0;
  const char* name = nullptr;
  // What a call says that found too little memory of the device, this pointer: nothing is broken by it.
  Error no_memory = nullptr;

  Error (*devices)(int32_t* count) = nullptr;  // where there is no driver, or one that is too old, an error
  // Name, capability, versions, as text of at most `bytes`, its end included.
  Error (*describe)(int32_t device, char* text, int32_t bytes) = nullptr;
  // What decides bits there, likewise: for what the code that runs was compiled, and which kind of device runs it.
  // Empty in the emulation.
  Error (*code)(int32_t device, char* text, int32_t bytes) = nullptr;
  Error (*open)(int32_t device, Stream* stream) = nullptr;
  Error (*use)(int32_t device) = nullptr;  // by the calling thread, from now on
  void (*close)(Stream stream) = nullptr;
  Error (*memory)(int64_t* free_bytes, int64_t* total_bytes) = nullptr;  // of the device opened last
  Error (*allocate)(int64_t bytes, void** memory) = nullptr;             // aligned to 256 bytes
  void (*release)(void* memory) = nullptr;
  // Of the host, which a copy reads or writes while the host goes on.
  Error (*allocate_host)(int64_t bytes, void** memory) = nullptr;
  void (*release_host)(void* memory) = nullptr;
  Error (*copy_in)(void* to, const void* from, int64_t bytes, Stream stream) = nullptr;
  Error (*copy_out)(void* to, const void* from, int64_t bytes, Stream stream) = nullptr;  // `to` is whole after `wait`
  Error (*copy_within)(void* to, const void* from, int64_t bytes, Stream stream) = nullptr;
  Error (*wait)(Stream stream) = nullptr;
  // What is launched from `record` to `recorded` is kept instead of run; a copy in or out meanwhile is an error. These
  // and `replay` may say no_memory: then nothing was kept or run, and the stream records no more.
  Error (*record)(Stream stream) = nullptr;
  Error (*recorded)(Stream stream, Recording* recording) = nullptr;
  Error (*replay)(Recording recording, Stream stream) = nullptr;
  void (*drop)(Recording recording) = nullptr;
  // From `rehearse` to `rehearsed` what the calling thread launches is not run: it is only seen whether the device that
  // it uses has the kernel, and the shared memory for it. Tells the first that has not.
  void (*rehearse)() = nullptr;
  Error (*rehearsed)(Shortage* shortage) = nullptr;
  Error (*make_moment)(Moment* moment) = nullptr;
  void (*drop_moment)(Moment moment) = nullptr;
  Error (*mark)(Moment moment, Stream stream) = nullptr;  // not while the stream records
  // Of moments that were marked and waited for.
  Error (*between)(Moment from, Moment to, double* seconds) = nullptr;

  void (*embed)(const EmbedArgs&, Stream) = nullptr;
  void (*embed_positions)(const EmbedPositionsArgs&, Stream) = nullptr;
  void (*rms_norm)(const RmsNormArgs&, Stream) = nullptr;
  void (*layer_norm)(const LayerNormArgs&, Stream) = nullptr;
  void (*norm_heads)(const NormHeadsArgs&, Stream) = nullptr;
  void (*linear_rows)(const LinearArgs&, Stream) = nullptr;  // for the few rows of decode: weights are read once
  void (*linear_rows_together)(const LinearsArgs&, Stream) = nullptr;
  void (*linear_tiles)(const LinearArgs&, Stream) = nullptr;  // for blocks of a prompt
  void (*route)(const RouteArgs&, Stream) = nullptr;
  void (*linear_experts)(const LinearExpertsArgs&, Stream) = nullptr;
  void (*combine)(const CombineArgs&, Stream) = nullptr;
  void (*round)(const RoundArgs&, Stream) = nullptr;
  void (*activate)(const ActivateArgs&, Stream) = nullptr;
  void (*fill_holes)(const FillHolesArgs&, Stream) = nullptr;  // where any session's spread is above its slots
  void (*place)(const PlaceArgs&, Stream) = nullptr;
  void (*store)(const StoreArgs&, Stream) = nullptr;
  void (*attend)(const AttendArgs&, Stream) = nullptr;
  void (*attend_merge)(const AttendArgs&, Stream) = nullptr;
  void (*lay)(const BlockArgs&, Stream) = nullptr;
  void (*attend_block)(const BlockArgs&, Stream) = nullptr;
  void (*observe_block)(const BlockArgs&, Stream) = nullptr;
  void (*caote)(const CaoteArgs&, Stream) = nullptr;
  void (*reduce)(const ReduceArgs&, Stream) = nullptr;
  void (*likeness)(const LikenessArgs&, Stream) = nullptr;
  void (*chance)(const ChanceArgs&, Stream) = nullptr;
  void (*loss)(const LossArgs&, Stream) = nullptr;
  void (*evict)(const EvictArgs&, Stream) = nullptr;
  void (*cap)(const CapArgs&, Stream) = nullptr;
  void (*greedy)(const GreedyArgs&, Stream) = nullptr;
  void (*largest)(const LargestArgs&, Stream) = nullptr;
  void (*mass)(const MassArgs&, Stream) = nullptr;
  void (*random)(const RandomArgs&, Stream) = nullptr;
};

// What a library exports under this name: extern "C" const Table* ebb_gpu_table().
inline constexpr char kTableSymbol[] = "ebb_gpu_table";

}  // namespace ebb::gpu

#ifdef EBB_GPU_TARGET
#include "engine/ops/gpu/launches.h"
#endif

#endif  // EBB_ENGINE_OPS_GPU_KERNELS_H_
