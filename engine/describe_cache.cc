#include "engine/describe_cache.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lane_work.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

absl::Status CheckIndex(const char* field, std::optional<int32_t> index, int32_t count) {
  if (!index || (*index >= 0 && *index < count)) return absl::OkStatus();
  return RefuseField("LANE_OUT_OF_RANGE", field, absl::StrFormat("%d is not in 0..%d", *index, count - 1));
}

// Without its scores.
LaneReport ReportLane(const SessionOnEngine& session, int32_t layer, int32_t head) {
  const SessionCache& cache = session.cache();
  const SlotMap& map = cache.map(layer, head);
  const int32_t lane = layer * cache.shape().kv_heads + head;
  const ValidSpec& policy = session.policy();
  LaneReport report = {.layer = layer,
                       .head = head,
                       .capacity = cache.shape().slots(lane),
                       .budget = policy.evicts && policy.lanes_known() ? policy.rule(lane).budget : 0};
  for (int32_t slot = 0; slot < map.end(); ++slot) {
    if (map.token()[slot] < 0) continue;
    report.slots.push_back(slot);
    report.tokens.push_back(map.token()[slot]);
    report.positions.push_back(map.position()[slot]);
  }
  return report;
}

class Description final : public DescribeWork {
 public:
  // `maps`: of these lanes, ascending.
  Description(const Device& device, const SessionOnEngine& session, std::vector<LaneReport> lanes,
              const std::vector<int32_t>& maps)
      : session_(session), lanes_(std::move(lanes)), maps_(maps), ranking_(device, session, session.policy(), maps) {}

  absl::StatusOr<bool> Advance(int32_t lanes) override {
    EBB_CHECK(lanes >= 1);
    if (!session_.policy().evicts) return false;
    return !ranking_.AdvanceScores(lanes, scores_);
  }

  std::vector<LaneReport> Take() override {
    if (!session_.policy().evicts) return std::move(lanes_);
    size_t at = 0;
    for (LaneReport& lane : lanes_) {
      if (session_.cache().map_index(lane.layer, lane.head) != maps_[at]) ++at;
      for (const int32_t slot : lane.slots) lane.scores.push_back(scores_[at][slot]);
    }
    return std::move(lanes_);
  }

 private:
  const SessionOnEngine& session_;
  std::vector<LaneReport> lanes_;
  std::vector<int32_t> maps_;
  std::vector<std::vector<float>> scores_ = {};  // of maps_
  MapRanking ranking_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DescribeWork>> BeginDescribeOf(const Device& device, const SessionOnEngine& session,
                                                              std::optional<int32_t> layer,
                                                              std::optional<int32_t> head) {
  const SessionCache& cache = session.cache();
  EBB_TRY(CheckIndex("layer", layer, cache.shape().layers));
  EBB_TRY(CheckIndex("head", head, cache.shape().kv_heads));
  std::vector<LaneReport> lanes;
  std::vector<int32_t> maps;
  for (int32_t l = layer.value_or(0); l <= layer.value_or(cache.shape().layers - 1); ++l) {
    for (int32_t h = head.value_or(0); h <= head.value_or(cache.shape().kv_heads - 1); ++h) {
      lanes.push_back(ReportLane(session, l, h));
      const int32_t map = cache.map_index(l, h);
      if (maps.empty() || maps.back() != map) maps.push_back(map);
    }
  }
  return std::make_unique<Description>(device, session, std::move(lanes), maps);
}

}  // namespace ebb
