// Attention of some tokens over one lane, RoPE fused, softmax online over blocks of 64 slots (kernels.h, AttendArgs).
//
// Per block: rotate its keys ([component][16 slots], so a dot product stays within its lane), take every row's logits,
// then fold the block into each row's (peak, weight, sums). Few rows, as in decode, take a key's components into their
// logits while they are in registers; for many the rotated keys are put down in L1 first, once. Lanes that share their
// positions take turns block by block, so that a block's angles are computed once for all. A slot that a row may not
// see is masked out of its logits and left out of its sum of values, so its bytes are never part of any result. Blocks
// and parts (kPartSlots) begin at fixed slots and a row takes them in order: its bits depend on nothing but what it
// sees and where that lies.
//
// The two kinds of RoPE pairs differ only in where a component is read from: q and the rotated keys are held pair by
// pair, then the rest, and the sums run in that order.

#include <cstdint>

#include "engine/ops/cpu/attend_state.h"
#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/kv.h"
#include "engine/ops/cpu/vec.h"
#include "engine/ops/cpu/vec_math.h"

namespace ebb::cpu::EBB_KERNEL_ISA {
namespace {

// The slots of a block that a query at some position may see, in slot order.
template <typename T>
struct Visible {
  int32_t count = 0;
  int32_t lane[kBlockSlots];    // slot - first slot of the block
  const T* value[kBlockSlots];  // its row of V
  const T* ahead[kBlockSlots];  // as much of what is folded next
};

// One block: where it begins, how much of it exists, its positions (-1 past the last slot) and, where they are at
// hand, the angles of its tiles.
struct Block {
  int32_t first = 0;
  int32_t tiles = 0;
  const float* angles = nullptr;
  alignas(64) int32_t position[kBlockSlots];
};

EBB_INLINE void ReadBlock(const AttendArgs& a, int32_t first, Block& block) {
  const int32_t left = a.slots - first;
  const int32_t slots = left < kBlockSlots ? left : kBlockSlots;
  block.first = first;
  block.tiles = (slots + 15) / 16;
  for (int32_t s = 0; s < kBlockSlots; ++s) block.position[s] = s < slots ? a.position[first + s] : -1;
}

// A query sees the positions behind this one, up to its own.
EBB_INLINE int32_t Before(const AttendArgs& a, int32_t query) { return query >= a.reach ? query - a.reach : -1; }

// What the rows of a call see of a block: its largest position up to the last query, -1 if no row sees any; whether the
// last query sees all of its slots; and whether a window leaves some of what earlier queries see.
struct Sight {
  int32_t newest;
  bool whole;
  bool slides;
};
EBB_INLINE Sight Look(const AttendArgs& a, const Block& block) {
  const int32_t query = a.q_position[a.tokens - 1];
  const int32_t before_first = Before(a, a.q_position[0]), before_last = Before(a, query);
  Sight sight = {-1, true, false};
  for (int32_t s = 0; s < 16 * block.tiles; ++s) {
    const int32_t position = block.position[s];
    const bool seen = position > before_first && position <= query;
    sight.whole = sight.whole && seen && position > before_last;
    sight.slides = sight.slides || (seen && position <= before_last);
    sight.newest = seen && position > sight.newest ? position : sight.newest;
  }
  return sight;
}

// The block that is folded next, of this lane or another: its keys are asked for while values are added, which asks
// memory for nothing else.
struct Ahead {
  const KvArgs* kv = nullptr;  // null: none is known
  int32_t tile = 0;
  int32_t tiles = 0;
};

// Lists what a query at `query` sees; everything where it sees the whole.
template <typename T>
void See(const AttendArgs& a, const Block& block, const Ahead& ahead, int32_t query, bool whole, Visible<T>& seen) {
  const int32_t d = a.kv.head_dim;
  const int32_t before = Before(a, query);
  seen.count = 0;
  for (int32_t t = 0; t < block.tiles; ++t) {
    const T* values = TileAt<T>(a.kv, block.first / 16 + t).v;
    const T* next = ahead.kv != nullptr && t < ahead.tiles ? TileAt<T>(*ahead.kv, ahead.tile + t).k : values;
    if (whole) {  // without counting one by one
      for (int32_t s = 0; s < 16; ++s) {
        seen.lane[16 * t + s] = 16 * t + s;
        seen.value[16 * t + s] = values + s * d;
        seen.ahead[16 * t + s] = next + s * d;
      }
      seen.count += 16;
      continue;
    }
    for (int32_t s = 0; s < 16; ++s) {
      const int32_t position = block.position[16 * t + s];
      seen.lane[seen.count] = 16 * t + s;
      seen.value[seen.count] = values + s * d;
      seen.ahead[seen.count] = next + s * d;
      seen.count += position > before && position <= query ? 1 : 0;
    }
  }
}

// q rotated by its position and scaled, components in the order of this file, zero past d.
void RotateQueries(const AttendArgs& a) {
  const int32_t d = a.kv.head_dim;
  const int32_t width = Width(d);
  const int32_t pairs = a.rope.rotary_dims / 2;
  const Floats scale = Splat(a.scale);
  int32_t phase[kMaxHeadDim / 2 + 16] = {};
  float cos[kMaxHeadDim / 2 + 16];
  float sin[kMaxHeadDim / 2 + 16];
  float first[kMaxHeadDim / 2 + 16] = {};
  float second[kMaxHeadDim / 2 + 16] = {};
  for (int32_t t = 0; t < a.tokens; ++t) {
    const uint64_t position = static_cast<uint32_t>(a.q_position[t]);
    for (int32_t i = 0; i < pairs; ++i) phase[i] = static_cast<int32_t>((position * a.rope.turns[i]) >> 32);
    for (int32_t i = 0; i < pairs; i += 16) {
      const CosSin turned = Turn(FromPhase(Load(phase + i)));
      Store(turned.cos, cos + i);
      Store(turned.sin, sin + i);
    }
    for (int32_t g = 0; g < a.group; ++g) {
      const float* from = a.q + t * a.stride + g * d;
      float* q = a.scratch.q + (int64_t{t} * a.group + g) * width;
      for (int32_t i = 0; i < pairs; ++i) {
        const Pair pair = PairAt(a.rope, i);
        first[i] = from[pair.first];
        second[i] = from[pair.second];
      }
      for (int32_t i = 0; i < pairs; i += 16) {
        const Floats x = Load(first + i);
        const Floats y = Load(second + i);
        const Floats c = Load(cos + i);
        const Floats s = Load(sin + i);
        Store(Fnma(y, s, x * c), first + i);
        Store(Fma(x, s, y * c), second + i);
      }
      for (int32_t i = 0; i < pairs; ++i) {
        q[2 * i] = first[i];
        q[2 * i + 1] = second[i];
      }
      for (int32_t c = 2 * pairs; c < d; ++c) q[c] = from[c];
      for (int32_t c = d; c < width; ++c) q[c] = 0;
      for (int32_t c = 0; c < width; c += 16) Store(Load(q + c) * scale, q + c);
    }
  }
}

// Asks for what will be read soon: a tile's values while its keys are rotated and, where many rows follow each other,
// the keys of the tile after the next. Two components at a time, so that requests go out at the pace of the
// arithmetic.
template <typename T>
struct Following {
  const T* values;
  const T* keys;  // or null
  EBB_INLINE void Ask(int32_t component) const {
    constexpr int kLine = 64 / sizeof(T);
#pragma GCC unroll 2
    for (int32_t element = 16 * component; element < 16 * (component + 2); element += kLine) {
      Prefetch(values + element);
      if (keys != nullptr) Prefetch(keys + element);
    }
  }
};

// Calls use(c, key) with each component of a tile's rotated keys, in the order of this file. `angles`: the tile's, or
// null where they are to be computed, from positions all of which are near.
template <typename E, bool kGivenAngles, bool kFew, typename Use>
EBB_INLINE void ForEachComponent(const AttendArgs& a, int32_t tile, const int32_t* position, const float* angles,
                                 const Use& use) {
  using Type = typename E::Type;
  const auto view = TileAt<Type>(a.kv, tile);
  if constexpr (E::kScaled) {
    Prefetch(view.scales);
    Prefetch(view.scales + 16);
  }
  const bool ends_soon = kFew || 16 * (tile + 2) >= a.slots;
  const Following<Type> following = {view.v, ends_soon ? nullptr : TileAt<Type>(a.kv, tile + 2).k};
  const int32_t pairs = a.rope.rotary_dims / 2;
  const Floats at = ToFloats(Load(position));
  for (int32_t i = 0; i < pairs; ++i) {
    const Pair pair = PairAt(a.rope, i);
    CosSin turned;
    if constexpr (kGivenAngles) {
      turned = {Load(angles + 32 * i), Load(angles + 32 * i + 16)};
    } else {
      turned = Turn(Near(at, Splat(a.rope.half_turns[2 * i]), Splat(a.rope.half_turns[2 * i + 1])));
    }
    following.Ask(2 * i);
    const Floats x = E::Read(view.k + 16 * pair.first);
    const Floats y = E::Read(view.k + 16 * pair.second);
    if (view.rk == nullptr) {
      use(2 * i, Fnma(y, turned.sin, x * turned.cos));
      use(2 * i + 1, Fma(x, turned.sin, y * turned.cos));
    } else {  // EQUIP 5.3: K cos + RK sin
      use(2 * i, Fma(E::Read(view.rk + 16 * pair.first), turned.sin, x * turned.cos));
      use(2 * i + 1, Fma(E::Read(view.rk + 16 * pair.second), turned.sin, y * turned.cos));
    }
  }
  for (int32_t c = 2 * pairs; c < a.kv.head_dim; ++c) {
    if (c % 2 == 0) following.Ask(c);
    use(c, E::Read(view.k + 16 * c));
  }
}

// The same of tile t of a block, with angles from wherever they are to be had. kFew: rows are few.
template <typename E, bool kFew, typename Use>
EBB_INLINE void ForEachRotated(const AttendArgs& a, const Block& block, int32_t t, const Use& use) {
  const int32_t tile = block.first / 16 + t;
  const int32_t* position = block.position + 16 * t;
  if (block.angles != nullptr) {
    ForEachComponent<E, true, kFew>(a, tile, position, block.angles + int64_t{t} * a.rope.rotary_dims * 16, use);
  } else if (Largest(ToFloats(Load(position))) >= static_cast<float>(kNearPositions)) {
    alignas(64) float angles[kMaxHeadDim * 16];
    Angles(a.rope, position, angles);
    ForEachComponent<E, true, kFew>(a, tile, position, angles, use);
  } else {
    ForEachComponent<E, false, kFew>(a, tile, position, nullptr, use);
  }
}

// keys [d][16]
template <typename E>
void RotateKeys(const AttendArgs& a, const Block& block, int32_t t, float* keys) {
  const auto put_down = [keys](int32_t c, Floats key) __attribute__((always_inline)) { Store(key, keys + 16 * c); };
  ForEachRotated<E, false>(a, block, t, put_down);
}

// logits[r][0 .. 15] = q[r] . the rotated keys of one tile, kRows rows at once.
template <typename E, int kRows>
void DotRotated(const AttendArgs& a, const Block& block, int32_t t, float* logits, int64_t stride) {
  const float* q = a.scratch.q;
  const int32_t width = Width(a.kv.head_dim);
  Floats sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r] = Zero();
  const auto take_in = [&](int32_t c, Floats key) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r] = Fma(key, Splat(q[r * width + c]), sum[r]);
  };
  ForEachRotated<E, true>(a, block, t, take_in);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) Store(sum[r], logits + r * stride);
}

// REQUIRES: 1 <= rows <= kRows.
template <typename E, int kRows>
void DotRotatedRows(const AttendArgs& a, const Block& block, int32_t rows, float* logits, int64_t stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return DotRotatedRows<E, kRows - 1>(a, block, rows, logits, stride);
  }
  for (int32_t t = 0; t < block.tiles; ++t) {
    DotRotated<E, kRows>(a, block, t, logits + 16 * t, stride);
  }
}

// logits[r][16 t ..] = q[r] . keys[t], kRows rows and kTiles tiles at once.
template <int kRows, int kTiles>
EBB_INLINE void Dot(const float* q, int32_t width, const float* keys, int32_t d, float* logits, int64_t stride) {
  Floats sum[kRows][kTiles];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) sum[r][t] = Zero();
  }
  for (int32_t c = 0; c < d; ++c) {
    Floats key[kTiles];
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) key[t] = Load(keys + 16 * (t * int64_t{d} + c));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Floats component = Splat(q[int64_t{r} * width + c]);
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) sum[r][t] = Fma(key[t], component, sum[r][t]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) Store(sum[r][t], logits + r * stride + 16 * t);
  }
}

// Rows row .. of which at most kRows are left.
template <int kRows>
void DotRows(const AttendArgs& a, const Block& block, int32_t row, int32_t rows, float* logits, int64_t stride) {
  constexpr int kTiles = TileVectors(kRows);
  const int32_t d = a.kv.head_dim;
  const int32_t width = Width(d);
  for (; row + kRows <= rows; row += kRows) {
    const float* q = a.scratch.q + int64_t{row} * width;
    float* to = logits + row * stride;
    int32_t t = 0;
    for (; t + kTiles <= block.tiles; t += kTiles) {
      Dot<kRows, kTiles>(q, width, a.scratch.keys + int64_t{16} * t * d, d, to + 16 * t, stride);
    }
    for (; t < block.tiles; ++t) {
      Dot<kRows, 1>(q, width, a.scratch.keys + int64_t{16} * t * d, d, to + 16 * t, stride);
    }
  }
  if constexpr (kRows > 1) DotRows<kRows - 1>(a, block, row, rows, logits, stride);
}

// What the model makes of the logits of one row beside q . k: a cap, and ALiBi's share of the distance.
void Bend(const AttendArgs& a, const Block& block, int32_t row, int32_t query, float* logits) {
  if (a.cap > 0) {
    for (int32_t t = 0; t < block.tiles; ++t) {
      Store(Capped(Load(logits + 16 * t), Splat(a.cap)), logits + 16 * t);
    }
  }
  if (a.slopes == nullptr) return;
  const Floats slope = Splat(a.slopes[row % a.group]);
  for (int32_t t = 0; t < block.tiles; ++t) {
    const Floats distance = Splat(static_cast<float>(query)) - ToFloats(Load(block.position + 16 * t));
    Store(Fnma(distance, slope, Load(logits + 16 * t)), logits + 16 * t);
  }
}

// Masks the logits of one row, raises its peak, and turns them into weights relative to it. Where K and V have scales,
// logits arrive in units of K's, and weights leave multiplied by V's: no component of either met one.
template <typename E>
void Softmax(const AttendArgs& a, const Block& block, int32_t row, int32_t query, float* logits) {
  const AttendState& s = a.scratch.part;
  const int32_t before = Before(a, query);
  const float* scales[kBlockTiles] = {};  // [2][16] of each tile
  if constexpr (E::kScaled) {
    for (int32_t t = 0; t < block.tiles; ++t) {
      scales[t] = TileAt<typename E::Type>(a.kv, block.first / 16 + t).scales;
      Store(Load(logits + 16 * t) * Load(scales[t]), logits + 16 * t);
    }
  }
  Bend(a, block, row, query, logits);
  Floats largest = Splat(kNone);
  for (int32_t t = 0; t < block.tiles; ++t) {
    const Ints position = Load(block.position + 16 * t);
    const Mask seen = AndNot(Greater(position, Splat(before)), Greater(position, Splat(query)));
    const Floats x = Select(seen, Load(logits + 16 * t), Splat(kNone));
    Store(x, logits + 16 * t);
    largest = Max(x, largest);
  }
  const float former = s.peak[row];
  const float here = Largest(largest);
  const float peak = here > former ? here : former;
  if (peak == kNone) return;  // nothing visible so far
  float* weight = s.weight + int64_t{16} * row;
  float* p = a.scratch.p + int64_t{kBlockSlots} * row;
  Floats sum = Load(weight);
  if (peak != former) {
    const int32_t width = Width(a.kv.head_dim);
    const Floats shrink = Exp(Splat(former - peak));
    sum = sum * shrink;
    float* sums = s.sums + int64_t{row} * width;
    for (int32_t c = 0; c < width; c += 16) Store(Load(sums + c) * shrink, sums + c);
    s.peak[row] = peak;
  }
  for (int32_t t = 0; t < block.tiles; ++t) {
    const Floats x = Exp(Load(logits + 16 * t) - Splat(peak));
    if constexpr (E::kScaled) {
      Store(x * Load(scales[t] + 16), p + 16 * t);
    } else {
      Store(x, p + 16 * t);
    }
    sum = sum + x;
  }
  Store(sum, weight);
}

// kVectors vectors of a row of V: pairs of them as E orders them, or one, of which `last` components exist.
template <typename E, int kVectors>
EBB_INLINE void ReadValues(const typename E::Type* from, int last, Floats (&value)[kVectors]) {
  if constexpr (kVectors == 1) {
    value[0] = last == 16 ? E::Read(from) : E::ReadFirst(from, last);
  } else {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v += 2) {
      const FloatPair two = E::ReadTwo(from + 16 * v);
      value[v] = two.low;
      value[v + 1] = two.high;
    }
  }
}

// sums[r][column ..] += p[r] . V over the visible slots. kFew: asks for as much of what is ahead.
template <typename E, bool kFew, int kRows, int kVectors>
EBB_INLINE void AddColumns(const AttendArgs& a, const Visible<typename E::Type>& seen, int32_t row, int32_t column,
                           int last) {
  const int32_t width = Width(a.kv.head_dim);
  float* sums = a.scratch.part.sums + int64_t{row} * width + column;
  const float* p = a.scratch.p + int64_t{row} * kBlockSlots;
  Floats sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Load(sums + r * width + 16 * v);
  }
  for (int32_t i = 0; i < seen.count; ++i) {
    const float* weight = p + seen.lane[i];
    Floats value[kVectors];
    ReadValues<E>(seen.value[i] + column, last, value);
    if constexpr (kFew) {
      constexpr int kLine = 64 / sizeof(typename E::Type);
#pragma GCC unroll 8
      for (int element = 0; element < 16 * kVectors; element += kLine) Prefetch(seen.ahead[i] + column + element);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Floats share = Splat(weight[r * kBlockSlots]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Fma(value[v], share, sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) Store(sum[r][v], sums + r * width + 16 * v);
  }
}

template <typename E, bool kFew, int kRows>
void AddValues(const AttendArgs& a, const Visible<typename E::Type>& seen, int32_t row, int32_t rows) {
  constexpr int kVectors = PairVectors(kRows);
  const int32_t d = a.kv.head_dim;
  for (; row + kRows <= rows; row += kRows) {
    int32_t c = 0;
    for (; c + 16 * kVectors <= d; c += 16 * kVectors) AddColumns<E, kFew, kRows, kVectors>(a, seen, row, c, 16);
    for (; c + 32 <= d; c += 32) AddColumns<E, kFew, kRows, 2>(a, seen, row, c, 16);
    for (; c < d; c += 16) AddColumns<E, kFew, kRows, 1>(a, seen, row, c, d - c < 16 ? d - c : 16);
  }
  if constexpr (kRows > 1) AddValues<E, kFew, kRows - 1>(a, seen, row, rows);
}

// Adds the values of a block to every row.
template <typename E, bool kFew>
void AddBlock(const AttendArgs& a, const Block& block, const Sight& sight, const Ahead& ahead) {
  // Tokens older than something in the block see less of it, as do all but the oldest where it leaves their windows:
  // such tokens take their values one at a time; a slot that only some rows of a tile of sums may see must not enter it
  // even with weight zero, since its bytes may be anything.
  Visible<typename E::Type> seen;
  int32_t all = 0;
  for (; all < a.tokens && (sight.slides || a.q_position[all] < sight.newest); ++all) {
    See(a, block, ahead, a.q_position[all], false, seen);
    if (seen.count > 0) AddValues<E, kFew, kPairRows>(a, seen, all * a.group, (all + 1) * a.group);
  }
  if (all == a.tokens) return;
  See(a, block, ahead, a.q_position[a.tokens - 1], sight.whole, seen);
  AddValues<E, kFew, kPairRows>(a, seen, all * a.group, a.tokens * a.group);
}

// Folds one block into every row.
template <typename E>
void FoldBlock(const AttendArgs& a, const Block& block, const Sight& sight, const Ahead& ahead, float* logits,
               int64_t stride) {
  const int32_t rows = a.tokens * a.group;
  if (sight.newest < 0) {
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t t = 0; t < block.tiles; ++t) Store(Splat(kNone), logits + r * stride + 16 * t);
    }
    return;
  }
  const bool few = rows <= kFusedRows;
  if (few) {
    DotRotatedRows<E, kFusedRows>(a, block, rows, logits, stride);
  } else {
    for (int32_t t = 0; t < block.tiles; ++t) {
      RotateKeys<E>(a, block, t, a.scratch.keys + int64_t{16} * t * a.kv.head_dim);
    }
    DotRows<kTileRows>(a, block, 0, rows, logits, stride);
  }
  for (int32_t r = 0; r < rows; ++r) Softmax<E>(a, block, r, a.q_position[r / a.group], logits + r * stride);
  if (few) {
    AddBlock<E, true>(a, block, sight, ahead);
  } else {
    AddBlock<E, false>(a, block, sight, ahead);
  }
}

// Angles of a block: those given, or computed here where several lanes share them.
EBB_INLINE void FindAngles(const AttendArgs& a, int32_t lanes, Block& block) {
  const int64_t tile_floats = int64_t{a.rope.rotary_dims} * 16;
  if (a.angles != nullptr) {
    block.angles = a.angles + block.first / 16 * tile_floats;
  } else if (lanes > 1) {
    for (int32_t t = 0; t < block.tiles; ++t) {
      Angles(a.rope, block.position + 16 * t, a.scratch.angles + t * tile_floats);
    }
    block.angles = a.scratch.angles;
  }
}

// What is folded after a block of lanes[i], of slots that end at `end`.
EBB_INLINE Ahead AfterLane(const AttendArgs* lanes, int32_t count, int32_t i, const Block& block, int32_t end) {
  const AttendArgs& a = lanes[0];
  if (i + 1 < count) return {&lanes[i + 1].kv, block.first / 16, block.tiles};
  const int32_t tile = (block.first + kBlockSlots) / 16;
  const int32_t left = (end + 15) / 16 - tile;
  if (left > 0) return {&a.kv, tile, left < kBlockTiles ? left : kBlockTiles};
  return {a.next_tiles > 0 ? &a.next : nullptr, a.next_first, a.next_tiles};
}

// Before the first block of a part other than the first: what the one before it came to joins those before it.
EBB_INLINE void EndPart(const AttendArgs& a) {
  MergeState(a, a.scratch.part, a.scratch.all);
  Reset(a, a.scratch.part);
}

template <typename E>
void AttendLanes(const AttendArgs* lanes, int32_t count) {
  const AttendArgs& a = lanes[0];
  const bool one = a.part >= 0;
  const bool several = !one && a.slots > kPartSlots;
  const int32_t begin = one ? a.part * kPartSlots : 0;
  const int32_t end = one && begin + kPartSlots < a.slots ? begin + kPartSlots : a.slots;
  for (int32_t i = 0; i < count; ++i) {
    RotateQueries(lanes[i]);
    Reset(lanes[i], lanes[i].scratch.part);
    if (several) Reset(lanes[i], lanes[i].scratch.all);
  }
  Block block;
  for (int32_t first = begin; first < end; first += kBlockSlots) {
    ReadBlock(a, first, block);
    const Sight sight = Look(a, block);
    if (sight.newest >= 0) FindAngles(a, count, block);
    for (int32_t i = 0; i < count; ++i) {
      if (first > begin && first % kPartSlots == 0) EndPart(lanes[i]);
      float* logits = lanes[i].scratch.logits + (IsObserved(lanes[i]) ? first : 0);
      FoldBlock<E>(lanes[i], block, sight, AfterLane(lanes, count, i, block, end), logits, LogitsStride(lanes[i]));
    }
  }
  for (int32_t i = 0; i < count && !one; ++i) {
    if (several) EndPart(lanes[i]);
    Finish<E>(lanes[i], several ? lanes[i].scratch.all : lanes[i].scratch.part);
  }
}

template <typename E>
void MergeLane(const AttendArgs& a, const AttendState& first, int64_t stride, int32_t count) {
  Reset(a, a.scratch.all);
  for (int64_t i = 0; i < count; ++i) {
    const AttendState part = {first.sums + i * stride, first.peak + i * stride, first.weight + i * stride};
    MergeState(a, part, a.scratch.all);
  }
  Finish<E>(a, a.scratch.all);
}

}  // namespace

void Attend(const AttendArgs* lanes, int32_t count) {
  switch (lanes[0].kv.type) {
    case Element::kF32:
      return AttendLanes<KvF32>(lanes, count);
    case Element::kF16:
      return AttendLanes<KvF16>(lanes, count);
    case Element::kInt8:
      return AttendLanes<KvInt8>(lanes, count);
    case Element::kFp8:
      return AttendLanes<KvFp8>(lanes, count);
    default:
      return AttendLanes<KvBf16>(lanes, count);
  }
}

void Merge(const AttendArgs& lane, const AttendState& first, int64_t stride, int32_t count) {
  switch (lane.kv.type) {
    case Element::kF32:
      return MergeLane<KvF32>(lane, first, stride, count);
    case Element::kF16:
      return MergeLane<KvF16>(lane, first, stride, count);
    case Element::kInt8:
      return MergeLane<KvInt8>(lane, first, stride, count);
    case Element::kFp8:
      return MergeLane<KvFp8>(lane, first, stride, count);
    default:
      return MergeLane<KvBf16>(lane, first, stride, count);
  }
}

}  // namespace ebb::cpu::EBB_KERNEL_ISA
