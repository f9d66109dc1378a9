#include "tests/gpu_check/lanes.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/ops.h"
#include "policies/hash_random.h"
#include "policies/status.h"

namespace ebb::gpu_check {
namespace {

constexpr int64_t kStride = 7919;  // prime to what it is taken modulo of, so that i * kStride visits every place once

gpu::RandomArgs Random(gpu::Element type, const GpuMemory& memory, uint64_t seed) {
  return {.type = type,
          .values = memory.as<void>(),
          .n = memory.bytes() / (type == gpu::Element::kF32 ? 4 : 2),
          .seed = seed};
}

}  // namespace

absl::StatusOr<Lanes> Lanes::Make(const Gpu& gpu, const LaneShape& s) {
  Lanes made;
  made.shape_ = s;
  const int64_t lanes = int64_t{s.sessions} * s.lanes();
  const int32_t pages_per_lane = (s.slots + gpu::kPageSlots - 1) / gpu::kPageSlots;
  const int64_t pages = lanes * pages_per_lane;
  std::vector<int32_t> token(static_cast<size_t>(lanes * s.slots), -1);
  std::vector<int32_t> placed(static_cast<size_t>(lanes * s.tokens));
  std::vector<int32_t> page(static_cast<size_t>(pages));
  for (int64_t lane = 0; lane < lanes; ++lane) {
    for (int32_t slot = 0; slot < s.slots - s.free; ++slot) {
      const auto place = static_cast<int32_t>((slot * kStride + lane) % (s.slots - s.free));
      token[lane * s.slots + slot] = place;
      if (const int32_t newest = s.slots - s.free - s.tokens; place >= newest && s.free == 0) {
        placed[lane * s.tokens + place - newest] = slot;
      }
    }
    for (int32_t t = 0; t < s.tokens && s.free > 0; ++t) placed[lane * s.tokens + t] = s.slots - s.free + t;
  }
  // Attention received is above 0, and what is 0 might be passed over.
  std::vector<float> score(static_cast<size_t>(lanes * s.tracks * s.slots));
  HashRandom random(3);
  std::ranges::generate(score, [&] { return random.UniformFloat() + 0x1p-24F; });
  for (int64_t i = 0; i < pages; ++i) page[i] = static_cast<int32_t>(i * kStride % pages);

  const int64_t d = s.head_dim;
  const int64_t heads = int64_t{s.rows()} * s.kv_heads * s.group;
  const int64_t splits = gpu::SplitsOf(s.slots, s.split_slots());
  EBB_ASSIGN(made.arena_, gpu.Allocate(pages * gpu::PageBytes(s.type, s.head_dim), "K and V"));
  EBB_ASSIGN(made.token_, gpu.Upload(std::span<const int32_t>(token), "maps"));
  EBB_ASSIGN(made.position_, gpu.Upload(std::span<const int32_t>(token), "maps"));
  EBB_ASSIGN(made.score_, gpu.Upload(std::span<const float>(score), "scores"));
  const std::vector<float> nothing(s.keeps() ? score.size() : 1);
  EBB_ASSIGN(made.keep_, gpu.Upload(std::span<const float>(nothing), "scores"));
  EBB_ASSIGN(made.placed_, gpu.Upload(std::span<const int32_t>(placed), "maps"));
  EBB_ASSIGN(made.scratch_, gpu.Allocate(lanes * s.slots * 4, "maps"));
  EBB_ASSIGN(made.page_, gpu.Upload(std::span<const int32_t>(page), "pages"));
  EBB_ASSIGN(made.q_, gpu.Allocate(heads * d * 4, "queries"));
  EBB_ASSIGN(made.partial_sums_, gpu.Allocate(heads * splits * d * 4, "sums"));
  EBB_ASSIGN(made.partial_stats_, gpu.Allocate(heads * splits * 8, "sums"));
  if (s.is_prompt) {
    const int64_t laid = int64_t{s.sessions} * s.kv_heads * s.strips() * gpu::kStripSlots;
    const int64_t tiles = s.kv_heads * gpu::LaidTiles(s.rows(), s.group, s.sessions);
    EBB_ASSIGN(made.laid_q_, gpu.Allocate(tiles * gpu::LaidTileWords(s.type, s.head_dim) * 4, "what is laid out"));
    EBB_ASSIGN(made.laid_kv_, gpu.Allocate(laid * d * 4, "what is laid out"));
    EBB_ASSIGN(made.laid_position_, gpu.Allocate(laid * 4, "what is laid out"));
    EBB_ASSIGN(made.laid_earliest_, gpu.Allocate(laid / gpu::kStripSlots * 4, "what is laid out"));
    EBB_ASSIGN(made.laid_latest_, gpu.Allocate(laid / gpu::kStripSlots * 4, "what is laid out"));
  } else {
    EBB_ASSIGN(made.logits_, gpu.Allocate(heads * s.slots * 4, "logits"));
  }
  EBB_ASSIGN(made.out_, gpu.Allocate(heads * d * 4, "what is attended"));
  EBB_ASSIGN(made.stats_, gpu.Allocate(heads * 8, "sums"));
  const std::vector<int32_t> none(static_cast<size_t>(int64_t{s.rows()} * s.kv_heads));
  EBB_ASSIGN(made.arrived_, gpu.Upload(std::span<const int32_t>(none), "counters"));
  // Of bytes too: any are codes, and two of these numbers are a float of like size, which makes a scale.
  gpu.table().random(Random(gpu::Element::kBf16, made.arena_, 1), gpu.stream());
  gpu.table().random(Random(gpu::Element::kF32, made.q_, 2), gpu.stream());

  std::vector<gpu::SessionView> views;
  std::vector<int32_t> row_session;
  for (int32_t i = 0; i < s.sessions; ++i) {
    const int64_t first = int64_t{i} * s.lanes();
    views.push_back({.token = made.token_.as<int32_t>() + first * s.slots,
                     .position = made.position_.as<int32_t>() + first * s.slots,
                     .score = made.score_.as<float>() + first * s.tracks * s.slots,
                     .keep = s.keeps() ? made.keep_.as<float>() + first * s.tracks * s.slots : nullptr,
                     .placed = made.placed_.as<int32_t>() + first * s.tokens,
                     .scratch = made.scratch_.as<int32_t>() + first * s.slots,
                     .page = made.page_.as<int32_t>() + first * pages_per_lane,
                     .capacity = s.slots,
                     .block_max = s.tokens,
                     .pages_per_lane = pages_per_lane,
                     .live = s.slots - (s.free > 0 ? s.free : s.tokens),
                     .slots = s.slots,
                     .first_token = s.slots - (s.free > 0 ? s.free : s.tokens),
                     .first_row = i * s.tokens,
                     .first_strip = i * s.strips(),
                     .tokens = s.tokens,
                     .tracks = s.tracks,
                     .rule = s.rule,
                     .modifier = s.modifier,
                     .reduction = s.reduction,
                     .best = (s.slots - s.drop) / s.tracks,
                     .drop = s.drop});
    row_session.insert(row_session.end(), s.tokens, i);
  }
  EBB_ASSIGN(made.views_, gpu.Upload(std::span<const gpu::SessionView>(views), "sessions"));
  for (gpu::SessionView& view : views) view.placed = view.scratch;
  EBB_ASSIGN(made.evicting_views_, gpu.Upload(std::span<const gpu::SessionView>(views), "sessions"));
  EBB_ASSIGN(made.row_session_, gpu.Upload(std::span<const int32_t>(row_session), "sessions"));

  ModelConfig config;
  config.head_dim = config.rotary_dims = s.head_dim;
  for (int32_t i = 0; i < s.head_dim / 2; ++i) {
    config.rope_frequencies.push_back(std::pow(500000.0, -2.0 * i / s.head_dim));
  }
  const Rope rope = MakeRope(config);
  EBB_ASSIGN(made.turns_, gpu.Upload(std::span(rope.turns), "angles"));
  made.cache_ = {.arena = {.base = made.arena_.as<void>(), .type = s.type, .head_dim = s.head_dim},
                 .sessions = made.views_.as<gpu::SessionView>(),
                 .session_count = s.sessions,
                 .row_session = made.row_session_.as<int32_t>(),
                 .rows = s.rows(),
                 .kv_heads = s.kv_heads,
                 .lanes = s.lanes(),
                 .slots_max = s.slots};
  EBB_TRY(gpu.Wait());
  return made;
}

gpu::CacheArgs Lanes::evicting() const {
  gpu::CacheArgs cache = cache_;
  cache.sessions = evicting_views_.as<gpu::SessionView>();
  return cache;
}

gpu::AttendArgs Lanes::Attend(int layer, int32_t rotary_dims, bool observes) const {
  return {.cache = cache_,
          .layer = layer,
          .group = shape_.group,
          .rope = {.turns = turns_.as<uint64_t>(), .rotary_dims = rotary_dims, .halves = 1},
          .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)),
          .q = q_.as<float>(),
          .q_stride = int64_t{shape_.kv_heads} * shape_.group * shape_.head_dim,
          .splits = gpu::SplitsOf(shape_.slots, shape_.split_slots()),
          .split_slots = shape_.split_slots(),
          .partial_sums = partial_sums_.as<float>(),
          .partial_stats = partial_stats_.as<float>(),
          .logits = observes ? logits_.as<float>() : nullptr,
          .arrived = arrived_.as<int32_t>(),
          .out = out_.as<float>(),
          .stats = stats_.as<float>()};
}

gpu::BlockArgs Lanes::Block(int layer) const {
  return {.attend = Attend(layer, shape_.head_dim, false),
          .tokens_max = shape_.tokens,
          .strips = shape_.strips(),
          .q = laid_q_.as<uint32_t>(),
          .kv = laid_kv_.as<uint32_t>(),
          .position = laid_position_.as<int32_t>(),
          .earliest = laid_earliest_.as<int32_t>(),
          .latest = laid_latest_.as<int32_t>()};
}

// Queries serve as keys and values: numbers, as many as are needed.
gpu::StoreArgs Lanes::Store(int layer) const {
  return {.cache = cache_,
          .layer = layer,
          .k = q_.as<float>(),
          .v = q_.as<float>(),
          .stride = int64_t{shape_.kv_heads} * shape_.head_dim};
}

}  // namespace ebb::gpu_check
