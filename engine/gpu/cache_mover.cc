#include "engine/gpu/cache_mover.h"

#include <algorithm>
#include <utility>

#include "engine/cache/lane_tiles.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int64_t kStageBytes = int64_t{8} << 20;

}  // namespace

absl::StatusOr<CacheMover> CacheMover::Make(GpuEngine& gpu, int32_t threads) {
  const int64_t pages = std::max<int64_t>(1, kStageBytes / gpu.page_bytes());
  std::array<GpuHostMemory, 2> stages;
  for (GpuHostMemory& stage : stages) {
    EBB_ASSIGN(stage, gpu.gpu().AllocateHost(pages * gpu.page_bytes(), "caches on their way"));
  }
  return CacheMover(gpu, threads, std::move(stages));
}

std::vector<CacheMover::Piece> CacheMover::PiecesOf(const GpuSession& session) {
  std::vector<Piece> pieces;
  const GpuSession::Shape& shape = session.shape();
  for (int32_t lane = 0; lane < shape.lanes; ++lane) {
    const int32_t there = shape.order[lane];
    const int32_t slots = session.slots(shape.SightOf(there));
    for (int32_t first = 0; first < slots; first += gpu::kPageSlots) {
      pieces.push_back({.lane = lane,
                        .first = first,
                        .count = std::min(gpu::kPageSlots, slots - first),
                        .page = session.pages()[int64_t{there} * shape.pages_per_lane() + first / gpu::kPageSlots]});
    }
  }
  return pieces;
}

std::span<const CacheMover::Piece> CacheMover::Chunk(std::span<const Piece> pieces, size_t chunk) const {
  const auto most = static_cast<size_t>(pieces_max());
  const size_t first = std::min(pieces.size(), chunk * most);
  return pieces.subspan(first, std::min(most, pieces.size() - first));
}

SlotRows CacheMover::RowsAt(size_t stage, int64_t piece) const {
  std::byte* const page = stages_[stage].as<std::byte>().data() + piece * gpu_.page_bytes();
  const bool scaled = IsScaled(gpu_.kv_type());
  const int64_t scales = scaled ? int64_t{2} * gpu::kPageSlots * static_cast<int64_t>(sizeof(float)) : 0;
  const int64_t values = (gpu_.page_bytes() - scales) / 2;
  auto* const first_scale = reinterpret_cast<float*>(page + 2 * values);
  return {.keys = page,
          .values = page + values,
          .key_scales = scaled ? first_scale : nullptr,
          .value_scales = scaled ? first_scale + gpu::kPageSlots : nullptr};
}

// Heads one behind the other, from the order that they have to the other, in place.
void CacheMover::Reorder(std::span<std::byte> heads, int64_t component_bytes, Way way) const {
  const std::vector<int32_t>& order = gpu_.head_order();
  if (order.empty()) return;
  std::vector<std::byte> before(static_cast<size_t>(std::ssize(order) * component_bytes));
  for (; !heads.empty(); heads = heads.subspan(before.size())) {
    std::copy_n(heads.begin(), before.size(), before.begin());
    for (int64_t there = 0; there < std::ssize(order); ++there) {
      const int64_t from = way == Way::kToDevice ? order[there] : there;
      const int64_t to = way == Way::kToDevice ? there : order[there];
      std::copy_n(before.begin() + from * component_bytes, component_bytes, heads.begin() + to * component_bytes);
    }
  }
}

void CacheMover::ReorderQueries(std::vector<float>& queries, Way way) const {
  Reorder(std::as_writable_bytes(std::span(queries)), sizeof(float), way);
}

void CacheMover::ReorderKeys(std::byte* keys, int64_t slots, Way way) const {
  const int64_t component_bytes = gpu::KvBytes(ElementOf(gpu_.kv_type()));
  Reorder({keys, static_cast<size_t>(slots * gpu_.config().head_dim * component_bytes)}, component_bytes, way);
}

// Calls copy(device's bytes, buffer's) for every run of neighbouring pages.
template <typename Copy>
absl::Status CacheMover::CopyPages(std::span<const Piece> pieces, size_t stage, const Copy& copy) const {
  for (size_t i = 0; i < pieces.size();) {
    size_t end = i + 1;
    while (end < pieces.size() && pieces[end].page == pieces[end - 1].page + 1) ++end;
    const auto page_bytes = static_cast<size_t>(gpu_.page_bytes());
    EBB_TRY(copy(gpu_.page(pieces[i].page),
                 stages_[stage].as<std::byte>().subspan(i * page_bytes, (end - i) * page_bytes)));
    i = end;
  }
  return absl::OkStatus();
}

absl::Status CacheMover::Bring(const SessionOnEngine& session, GpuSession& to) {
  const SessionCache& cache = session.cache();
  const CacheShape& shape = cache.shape();
  const auto slots = static_cast<size_t>(shape.lanes()) * shape.capacity;
  GpuSeats seats = {.token = std::vector<int32_t>(slots, -1),
                    .position = std::vector<int32_t>(slots, -1),
                    .score = std::vector<float>(slots * to.tracks(), 0),
                    .queries = std::vector<float>(session.last_queries().size())};
  GpuProgress progress = {.tokens = static_cast<int32_t>(session.log().size()),
                          .prompt_ended = session.prompt_ended(),
                          .decode_steps = session.steps_since_policy()};
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    const SlotMap& map = cache.map_of(lane);
    const int32_t there = to.shape().order[lane];
    const GpuSight sight = to.shape().SightOf(there);
    const int64_t at = int64_t{there} * shape.capacity;
    if (!seats.queries.empty()) {
      const int64_t each = to.shape().queries;
      std::copy_n(session.last_queries().begin() + lane * each, each, seats.queries.begin() + there * each);
    }
    progress.live[sight] = map.live();  // alike for all lanes of a kind
    progress.slots[sight] = std::max(progress.slots[sight], map.end());
    std::ranges::copy(map.token(), seats.token.begin() + at);
    std::ranges::copy(map.position().first(static_cast<size_t>(map.end())), seats.position.begin() + at);
    if (map.state_shape().slot_floats == 0) continue;
    EBB_CHECK(map.state_shape() == StateShape({.tracks = cache.lanes_of_map() * to.tracks(), .slot_floats = 1}));
    for (int32_t track = 0; track < to.tracks(); ++track) {
      std::ranges::copy(map.state(lane % cache.lanes_of_map() * to.tracks() + track).slot,
                        seats.score.begin() + at * to.tracks() + int64_t{track} * shape.capacity);
    }
  }
  ReorderQueries(seats.queries, Way::kToDevice);
  EBB_TRY(gpu_.gpu().Use());
  EBB_TRY(to.Seat(seats, progress));
  const std::vector<Piece> pieces = PiecesOf(to);
  for (size_t chunk = 0; !Chunk(pieces, chunk).empty(); ++chunk) {
    const std::span<const Piece> now = Chunk(pieces, chunk);
    const size_t stage = chunk % 2;
    threads_->For(std::ssize(now), [&](int64_t i, int32_t) {
      const LaneStorage lane = cache.storage(now[i].lane / shape.kv_heads, now[i].lane % shape.kv_heads);
      const SlotRows rows = RowsAt(stage, i);
      ReadRows(lane, now[i].first, now[i].count, rows);
      ReorderKeys(rows.keys, now[i].count, Way::kToDevice);
    });
    EBB_TRY(gpu_.gpu().Wait());  // for the other buffer, which is filled next
    EBB_TRY(CopyPages(now, stage, [&](std::byte* page, std::span<std::byte> bytes) {
      return gpu_.gpu().CopyIn(std::span<const std::byte>(bytes), page);
    }));
  }
  return gpu_.gpu().Wait();
}

absl::Status CacheMover::Fetch(const GpuSession& from, SessionOnEngine& session) {
  SessionCache& cache = session.cache();
  const CacheShape& shape = cache.shape();
  EBB_TRY(gpu_.gpu().Use());
  const std::vector<Piece> pieces = PiecesOf(from);
  const auto begin = [&](size_t chunk) {
    return CopyPages(Chunk(pieces, chunk), chunk % 2, [&](const std::byte* page, std::span<std::byte> bytes) {
      return gpu_.gpu().CopyOut(page, bytes);
    });
  };
  EBB_ASSIGN(GpuSeats seats, from.Seats());
  ReorderQueries(seats.queries, Way::kHome);
  EBB_ASSIGN(std::vector<float> logits, from.Logits());
  EBB_TRY(begin(0));
  for (size_t chunk = 0; !Chunk(pieces, chunk).empty(); ++chunk) {
    EBB_TRY(gpu_.gpu().Wait());
    EBB_TRY(begin(chunk + 1));
    const std::span<const Piece> now = Chunk(pieces, chunk);
    threads_->For(std::ssize(now), [&](int64_t i, int32_t) {
      const LaneStorage lane = cache.storage(now[i].lane / shape.kv_heads, now[i].lane % shape.kv_heads);
      const SlotRows rows = RowsAt(chunk % 2, i);
      ReorderKeys(rows.keys, now[i].count, Way::kHome);
      WriteRows(lane, now[i].first, now[i].count, rows);
    });
  }
  SessionCache::Maps maps = {.share = cache.share()};
  for (int32_t index = 0; index < std::ssize(cache.maps()); ++index) {
    const SlotMap& former = cache.maps()[index];
    SlotMap& map = maps.maps.emplace_back(former.capacity(), shape.block_max, former.state_shape(), former.positions());
    const int32_t there = from.shape().order[cache.first_lane(index)];
    std::span<const int32_t> token = std::span(seats.token)
                                         .subspan(static_cast<size_t>(there) * shape.capacity,
                                                  static_cast<size_t>(from.slots(from.shape().SightOf(there))));
    while (!token.empty() && token.back() < 0) token = token.first(token.size() - 1);
    map.Fill(token, {});
    if (map.state_shape().slot_floats == 0) continue;
    const int32_t tracks = map.state_shape().tracks;
    std::vector<float> states(static_cast<size_t>(tracks));
    const int64_t first = int64_t{there} * from.tracks();
    for (int32_t slot = 0; slot < map.end(); ++slot) {
      if (map.token()[slot] < 0) continue;
      for (int32_t i = 0; i < tracks; ++i) states[i] = seats.score[(first + i) * shape.capacity + slot];
      map.SetState(slot, states);
    }
  }
  cache.TakeMaps(std::move(maps));
  session.last_queries().resize(seats.queries.size());
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    const int64_t each = from.shape().queries;
    std::copy_n(seats.queries.begin() + from.shape().order[lane] * each, each,
                session.last_queries().begin() + lane * each);
  }
  session.kept_logits() = std::move(logits);
  return absl::OkStatus();
}

}  // namespace ebb
