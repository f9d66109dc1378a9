#include "engine/snapshot/session_image.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/cache/lane_tiles.h"
#include "engine/engine.h"
#include "engine/snapshot/policy_record.h"
#include "policies/check.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int32_t kPositionMax = std::numeric_limits<int32_t>::max();

absl::Status Foreign(const char* what, const std::string& made_with, const std::string& here) {
  return Refuse(
      absl::StatusCode::kFailedPrecondition,
      absl::StrFormat("the snapshot was made with the %s '%s', and this server has '%s'", what, made_with, here),
      {.reason = "SNAPSHOT_FOREIGN", .metadata = {{"snapshot", made_with}, {"server", here}}});
}

void WriteModel(const ImageLimits& limits, SnapshotWriter& to) {
  to.Begin(RecordKind::kModel);
  to.AddText(limits.engine.model->fingerprint);
  to.AddText(limits.arithmetic);
}

absl::Status CheckModel(const SnapshotRecord& record, const ImageLimits& limits) {
  RecordReader from(record.payload);
  const std::string model = from.ReadText();
  const std::string arithmetic = from.ReadText();
  EBB_TRY(from.Finish("model"));
  if (model != limits.engine.model->fingerprint) return Foreign("model", model, limits.engine.model->fingerprint);
  if (arithmetic != limits.arithmetic) return Foreign("arithmetic", arithmetic, limits.arithmetic);
  return absl::OkStatus();
}

void WriteNumbers(const SessionOnEngine& session, SnapshotWriter& to) {
  const CacheShape& shape = session.cache().shape();
  to.Begin(RecordKind::kSession);
  to.Add(session.block_size_max());
  to.Add(session.length_limit());
  to.Add(session.next_position());
  to.Add(session.evicted());
  to.Add(session.steps_since_policy());
  to.Add(session.stale_from());
  to.Add(uint8_t{session.prompt_ended()});
  to.Add(static_cast<uint8_t>(session.cache().share()));
  to.Add(shape.capacity);
  to.AddAll(std::span<const int32_t>(shape.slots_of));
  to.AddAll(session.log());
  to.AddAll(std::span<const float>(session.last_queries()));
}

void WriteMap(const SlotMap& map, SnapshotWriter& to) {
  to.Begin(RecordKind::kMap);
  to.AddAll(map.token());
  const std::span<const int32_t> positions = map.position().first(map.token().size());
  const bool told = map.positions() == Positions::kCompacted || std::ranges::equal(positions, map.token());
  to.AddAll(told ? std::span<const int32_t>() : positions);
  for (int32_t track = 0; track < map.state_shape().tracks; ++track) {
    to.AddAll(map.state(track).slot);
    to.AddAll(map.state(track).lane);
  }
}

size_t BytesOf(const SessionOnEngine& session) {
  const SessionCache& cache = session.cache();
  size_t bytes = 4096 + session.log().size_bytes() + session.last_queries().size() * sizeof(float);
  for (const SlotMap& map : cache.maps()) {
    bytes += 64 + 2 * map.token().size_bytes();
    for (int32_t track = 0; track < map.state_shape().tracks; ++track) {
      bytes += 64 + map.state(track).slot.size_bytes() + map.state(track).lane.size_bytes();
    }
  }
  for (int32_t lane = 0; lane < cache.shape().lanes(); ++lane) {
    bytes += 64 + static_cast<size_t>(TileBytes(cache.shape().format, cache.map_of(lane).end()));
  }
  return bytes;
}

// Reads the records of one image in their order.
class ImageReader {
 public:
  ImageReader(std::span<const SnapshotRecord> records, const ImageLimits& limits) : left_(records), limits_(limits) {}

  absl::StatusOr<SessionImage> Read() {
    EBB_ASSIGN(const SnapshotRecord model, Next(RecordKind::kModel, "model"));
    EBB_TRY(CheckModel(model, limits_));
    EBB_ASSIGN(const SnapshotRecord policy, Next(RecordKind::kPolicy, "policy"));
    EBB_ASSIGN(image_.policy, ReadPolicy(policy, LimitsOf(*limits_.engine.model)));
    EBB_ASSIGN(const SnapshotRecord session, Next(RecordKind::kSession, "session"));
    EBB_TRY(ReadNumbers(session));
    EBB_TRY(CheckShape());
    const CacheShape& shape = image_.shape;
    const int32_t maps = MapsFor(shape, image_.maps.share);
    image_.maps.maps.reserve(maps);
    for (int32_t map = 0; map < maps; ++map) {
      EBB_ASSIGN(const SnapshotRecord record, Next(RecordKind::kMap, "slots"));
      EBB_TRY(ReadMap(record, map * (shape.lanes() / maps)));
    }
    for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
      EBB_ASSIGN(const SnapshotRecord record, Next(RecordKind::kLane, "lane"));
      const int64_t bytes = TileBytes(shape.format, image_.maps.maps[lane / (shape.lanes() / maps)].end());
      if (static_cast<int64_t>(record.payload.size()) != bytes) {
        return SnapshotDamaged(
            absl::StrFormat("lane %d has %d bytes, and %d are expected", lane, record.payload.size(), bytes));
      }
      image_.tiles.push_back(record.payload);
    }
    EBB_TRY(CheckRoom());
    return std::move(image_);
  }

 private:
  absl::StatusOr<SnapshotRecord> Next(RecordKind kind, const char* name) {
    while (!left_.empty() && left_.front().kind == RecordKind::kServer) left_ = left_.subspan(1);
    if (left_.empty() || left_.front().kind != kind) {
      return SnapshotDamaged(absl::StrFormat("a record of the %s is expected", name));
    }
    const SnapshotRecord record = left_.front();
    left_ = left_.subspan(1);
    return record;
  }

  absl::Status ReadNumbers(const SnapshotRecord& record) {
    RecordReader from(record.payload);
    SessionState& state = image_.state;
    image_.block_size_max = from.Read<int32_t>();
    image_.length_limit = from.Read<int32_t>();
    state.next_position = from.Read<int32_t>();
    state.evicted = from.Read<int64_t>();
    state.decode_steps = from.Read<int32_t>();
    state.stale_from = from.Read<int32_t>();
    const auto prompt_ended = from.Read<uint8_t>();
    const auto share = from.Read<uint8_t>();
    image_.shape.capacity = from.Read<int32_t>();
    image_.shape.slots_of = from.ReadAll<int32_t>();
    state.log = from.ReadAll<int32_t>();
    state.last_queries = from.ReadAll<float>();
    EBB_TRY(from.Finish("session"));
    if (prompt_ended > 1 || share > static_cast<uint8_t>(Share::kLane)) return OutOfRange("a choice");
    state.prompt_ended = prompt_ended == 1;
    image_.maps.share = static_cast<Share>(share);
    const ModelConfig& model = *limits_.engine.model;
    if (state.log.size() > static_cast<size_t>(kPositionMax)) return OutOfRange("the log's length");
    for (const int32_t token : state.log) {
      if (token < 0 || token >= model.vocab) return OutOfRange("a token of the log");
    }
    if (state.next_position < 0) return OutOfRange("the next position");
    if (state.stale_from < 0) return OutOfRange("what an edit left stale");
    if (state.evicted < 0) return OutOfRange("the number of evicted tokens");
    if (state.decode_steps < 0 || state.decode_steps >= 1 << 30) return OutOfRange("the number of steps");
    const size_t queries = static_cast<size_t>(model.layers) * model.heads * model.head_dim;
    if (!state.last_queries.empty() && state.last_queries.size() != queries) return OutOfRange("the newest queries");
    if (image_.length_limit < 1) return OutOfRange("the length limit");
    return absl::OkStatus();
  }

  // The cache has room for all that its policy may ever need.
  absl::Status CheckShape() {
    if (image_.block_size_max > limits_.engine.step_tokens_max) {
      return Foreign("largest block", absl::StrFormat("%d tokens", image_.block_size_max),
                     absl::StrFormat("scheduling.step_tokens_max %d", limits_.engine.step_tokens_max));
    }
    if (image_.block_size_max < 1) return OutOfRange("the block size");
    // Before the first prompt ended its budgets are those that are known then.
    const Prompt prompt = image_.state.prompt_ended ? Prompt::kEnded : Prompt::kAhead;
    EBB_ASSIGN(const CacheShape needed,
               ShapeFor({.policy = image_.policy, .block_size_max = image_.block_size_max}, prompt, limits_.engine));
    CacheShape& shape = image_.shape;
    const int32_t capacity = shape.capacity;
    std::vector<int32_t> slots_of = std::move(shape.slots_of);
    shape = needed;
    shape.capacity = capacity;
    shape.slots_of = std::move(slots_of);
    if (!shape.slots_of.empty() && shape.slots_of.size() != static_cast<size_t>(shape.lanes())) {
      return OutOfRange("the number of lanes");
    }
    for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
      if (shape.slots(lane) < needed.slots(lane) || shape.slots(lane) > capacity || capacity >= 1 << 30) {
        return OutOfRange("a lane's number of slots");
      }
    }
    if (shape.pages() > limits_.pages_total) {
      return RefuseField(
          "SESSION_TOO_LARGE", "snapshot",
          absl::StrFormat("the session needs %d pages, there are %d in all", shape.pages(), limits_.pages_total));
    }
    // Lanes share a map as the policy lets them, or each has its own. A policy that evicts no more once did.
    ValidSpec policy = image_.policy;
    policy.evicts = policy.evicts || FindScorer(policy.scorer_name)->evicts;
    if (image_.maps.share != ShareFor(policy) && image_.maps.share != Share::kLane) return OutOfRange("a choice");
    const int32_t together = shape.lanes() / MapsFor(shape, image_.maps.share);
    for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
      const int32_t first = lane / together * together;
      const bool alike =
          shape.slots(lane) == shape.slots(first) && image_.policy.rule(lane) == image_.policy.rule(first);
      if (!alike) return OutOfRange("what lanes share");
    }
    return absl::OkStatus();
  }

  absl::Status ReadMap(const SnapshotRecord& record, int32_t first_lane) {
    const CacheShape& shape = image_.shape;
    RecordReader from(record.payload);
    const std::vector<int32_t> token = from.ReadAll<int32_t>();
    const std::vector<int32_t> position = from.ReadAll<int32_t>();
    EBB_TRY(CheckSlots(token, position, shape.slots(first_lane)));
    const StateShape state = StateFor(shape, image_.policy, image_.maps.share);
    SlotMap& map =
        image_.maps.maps.emplace_back(shape.slots(first_lane), shape.block_max, state, image_.policy.positions);
    map.Fill(token, position);
    for (int32_t track = 0; track < state.tracks; ++track) {
      const MutableScorerState into = map.state(track);
      if (!Fill(from.ReadAll<float>(), into.slot) || !Fill(from.ReadAll<float>(), into.lane)) {
        return OutOfRange("a scorer's state");
      }
    }
    return from.Finish("slots");
  }

  static bool Fill(const std::vector<float>& from, std::span<float> into) {
    if (from.size() != into.size()) return false;
    std::ranges::copy(from, into.begin());
    return true;
  }

  absl::Status CheckSlots(std::span<const int32_t> token, std::span<const int32_t> position, int32_t slots) const {
    if (token.size() > static_cast<size_t>(slots)) return OutOfRange("the number of slots");
    if (!token.empty() && token.back() < 0) return OutOfRange("the last slot");
    std::vector<int32_t> live;
    for (const int32_t each : token) {
      if (each < -1 || each >= static_cast<int64_t>(image_.state.log.size())) return OutOfRange("a slot's token");
      if (each >= 0) live.push_back(each);
    }
    std::ranges::sort(live);
    if (std::ranges::adjacent_find(live) != live.end()) return OutOfRange("a slot's token");
    if (position.empty()) return absl::OkStatus();
    if (position.size() != token.size() || image_.policy.positions != Positions::kOriginal) {
      return OutOfRange("the number of positions");
    }
    for (size_t slot = 0; slot < token.size(); ++slot) {
      const bool good = token[slot] < 0 ? position[slot] == -1 : position[slot] >= 0 && position[slot] < kPositionMax;
      if (!good) return OutOfRange("a slot's position");
    }
    return absl::OkStatus();
  }

  // Every lane has room for the next step, and for those that come before the policy makes room.
  absl::Status CheckRoom() const {
    const ValidSpec& policy = image_.policy;
    const bool once = policy.schedule == Schedule::kOncePrompt;
    const bool evicts = policy.evicts && policy.trigger.budget > 0 && !(once && !image_.state.prompt_ended);
    const bool grows = once && (!image_.state.prompt_ended || policy.then == Then::kGrow);
    const bool limited = policy.bounded || policy.trigger.budget == 0 || grows;  // as SessionOnEngine::room has it
    int64_t ahead = image_.block_size_max;
    if (policy.schedule == Schedule::kEveryN) {
      ahead += policy.every_n - 1 - image_.state.decode_steps % policy.every_n;
    }
    for (int32_t lane = 0; lane < image_.shape.lanes(); ++lane) {
      const int32_t slots = image_.shape.slots(lane);
      const auto& maps = image_.maps.maps;
      const int32_t live = maps[lane / (image_.shape.lanes() / static_cast<int32_t>(maps.size()))].live();
      const bool makes_room = evicts && live + ahead <= slots;
      const bool ends = limited && live <= image_.length_limit && image_.length_limit <= slots;
      if (!makes_room && !ends) return OutOfRange("the number of live tokens");
    }
    return absl::OkStatus();
  }

  static absl::Status OutOfRange(const char* what) {
    return SnapshotDamaged(absl::StrFormat("%s is out of range", what));
  }

  std::span<const SnapshotRecord> left_;
  const ImageLimits& limits_;
  SessionImage image_ = {};
};

}  // namespace

void WriteAllButLanes(const SessionOnEngine& session, const ImageLimits& limits, SnapshotWriter& to) {
  EBB_CHECK(session.CheckSettled().ok());
  to.Reserve(BytesOf(session));
  WriteModel(limits, to);
  WritePolicy(session.policy(), LimitsOf(*limits.engine.model), to);
  WriteNumbers(session, to);
  for (const SlotMap& map : session.cache().maps()) WriteMap(map, to);
}

void WriteLane(const SessionOnEngine& session, int32_t lane, SnapshotWriter& to) {
  const SessionCache& cache = session.cache();
  const LaneStorage storage = cache.storage(lane / cache.shape().kv_heads, lane % cache.shape().kv_heads);
  to.Begin(RecordKind::kLane);
  ReadTiles(storage, cache.map_of(lane).token(),
            to.AddBytes(static_cast<size_t>(TileBytes(storage.format, storage.slots))));
}

absl::StatusOr<SessionImage> ReadSession(std::span<const SnapshotRecord> records, const ImageLimits& limits) {
  return ImageReader(records, limits).Read();
}

}  // namespace ebb
