#include "engine/edit_session.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/cache/evictor.h"
#include "policies/check.h"
#include "policies/status.h"
#include "policies/trigger.h"

namespace ebb {
namespace {

constexpr int64_t kLogMax = int64_t{1} << 30;  // indices stay far below 2^31

absl::Status LengthLimit(const SessionOnEngine& session, int64_t limit, int64_t length) {
  return Refuse(absl::StatusCode::kResourceExhausted,
                absl::StrFormat("the edit would need room for %d tokens; the session may hold %d", length, limit),
                {.reason = "LENGTH_LIMIT",
                 .quota = "session",
                 .metadata = {{"length_limit", absl::StrFormat("%d", limit)},
                              {"length", absl::StrFormat("%d", session.cache_length())}}});
}

absl::Status CheckSpans(std::span<const EditSpan> spans, int32_t length) {
  if (spans.empty()) return RefuseField("EDIT_EMPTY", "spans", "there is nothing to replace; give a span");
  int64_t after = length;
  int32_t done = 0;  // the end of the span before
  for (size_t i = 0; i < spans.size(); ++i) {
    const EditSpan& span = spans[i];
    const std::string field = absl::StrFormat("spans[%d]", i);
    if (span.start < 0 || span.start > span.end || span.end > length) {
      const bool starts_behind = span.start < 0 || span.start > length;
      return RefuseField(
          "OUT_OF_RANGE", field + (starts_behind ? ".start" : ".end"),
          absl::StrFormat("[%d, %d) is no range of the session's %d tokens", span.start, span.end, length));
    }
    if (span.start == span.end && span.tokens.empty()) {
      return RefuseField("EDIT_EMPTY", field, "it replaces no token by none");
    }
    if (span.start < done) {
      return RefuseField("SPANS_OVERLAP", field,
                         absl::StrFormat("it begins at %d, and the one before it ends at %d; give spans in ascending "
                                         "order, apart",
                                         span.start, done));
    }
    done = span.end;
    after += static_cast<int64_t>(span.tokens.size()) - (span.end - span.start);
  }
  if (after == 0) {
    return RefuseField("NOTHING_WOULD_STAY", "spans",
                       absl::StrFormat("all %d tokens of the log would leave; at least 1 stays", length));
  }
  if (after <= kLogMax) return absl::OkStatus();
  return Refuse(absl::StatusCode::kResourceExhausted,
                absl::StrFormat("the log would have %d tokens; it may have %d", after, kLogMax),
                {.reason = "LENGTH_LIMIT", .quota = "session"});
}

// The edited log, and where its tokens come from.
void Splice(std::span<const int32_t> log, std::span<const EditSpan> spans, EditPlan& plan) {
  int32_t at = 0;
  const auto keep_until = [&](int32_t end) {
    for (; at < end; ++at) {
      plan.log.push_back(log[at]);
      plan.former.push_back(at);
    }
  };
  for (const EditSpan& span : spans) {
    keep_until(span.start);
    plan.log.insert(plan.log.end(), span.tokens.begin(), span.tokens.end());
    plan.former.resize(plan.log.size(), -1);
    plan.inserted += static_cast<int32_t>(span.tokens.size());
    plan.removed += span.end - span.start;
    at = span.end;
  }
  keep_until(static_cast<int32_t>(log.size()));
}

// [tokens of the log] whether each lives in this map.
std::vector<bool> LiveIn(const SlotMap& map, size_t log_tokens) {
  std::vector<bool> live(log_tokens, false);
  for (const int32_t token : map.token()) {
    if (token >= 0) live[token] = true;
  }
  return live;
}

// Which tokens are run: all that are new, and of the others, as the mode says, those that live in some lane.
void ListWork(const EditRequest& request, const std::vector<bool>& live_somewhere, EditPlan& plan) {
  const auto length = static_cast<int32_t>(plan.log.size());
  const bool tail = request.mode == EditMode::kRecomputeTail;
  plan.from = tail ? std::min(request.spans.front().start, length - 1) : 0;
  if (request.restore) plan.from = 0;
  int32_t window = 0;  // tokens to run behind the last edit passed
  for (int32_t i = plan.from; i < length; ++i) {
    const int32_t former = plan.former[i];
    const bool behind_edit = former != (i == 0 ? 0 : plan.former[i - 1] + 1);
    if (behind_edit) window = request.mode == EditMode::kRecomputeSpan ? request.window : 0;
    const bool lives = former >= 0 && live_somewhere[former];
    const bool in_window = lives && window > 0;
    if (in_window) --window;
    const bool run = former < 0 || in_window || (tail && (lives || request.restore));
    if (run || i == length - 1) plan.work.push_back(i);
  }
}

// Whether the policy evicts from a lane of the map that holds `live` tokens.
bool Evicts(const SessionOnEngine& session, int32_t map, int32_t live) {
  const ValidSpec& policy = session.policy();
  const bool waits = policy.schedule == Schedule::kOncePrompt && !session.prompt_ended();
  if (!policy.evicts || policy.trigger.budget == 0 || waits) return false;
  return TokensToDrop(policy.trigger_of(session.cache().first_lane(map)), live) > 0;
}

// What a map comes to after the edit.
struct Outcome {
  int32_t kept = 0;      // tokens of the log before that live in it and stay in the log
  int32_t reused = 0;    // of these, those that are not run
  int32_t stale = 0;     // of these, those at stale_from or later
  int32_t visiting = 0;  // tokens that are run, and do not stay in it
};

Outcome OutcomeIn(const std::vector<bool>& live, const EditPlan& plan) {
  Outcome outcome;
  size_t next = 0;  // of the work
  for (int32_t i = 0; i < static_cast<int32_t>(plan.log.size()); ++i) {
    const bool run = next < plan.work.size() && plan.work[next] == i;
    if (run) ++next;
    if (plan.former[i] < 0) continue;
    const bool lives = live[plan.former[i]];
    outcome.kept += lives ? 1 : 0;
    outcome.reused += lives && !run ? 1 : 0;
    outcome.stale += lives && !run && i >= plan.stale_from ? 1 : 0;
    outcome.visiting += !lives && run ? 1 : 0;
  }
  return outcome;
}

// The first token whose K and V stay what they were behind a text that was another one.
int32_t StaleFrom(const SessionOnEngine& session, const std::vector<bool>& live_somewhere, const EditPlan& plan,
                  int32_t first_edit) {
  if (plan.restore) return kNothingStale;
  const int32_t before = session.stale_from();
  if (plan.mode == EditMode::kRecomputeTail) return before < plan.from ? before : kNothingStale;
  size_t next = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(plan.log.size()); ++i) {
    const bool run = next < plan.work.size() && plan.work[next] == i;
    if (run) ++next;
    const int32_t former = plan.former[i];
    if (former < 0) continue;
    if (former >= before || (former >= first_edit && !run && live_somewhere[former])) return i;
  }
  return kNothingStale;
}

// Room that a session which does not evict has to have.
absl::Status CheckRoom(const SessionOnEngine& session, const EditPlan& plan, std::span<const Outcome> outcomes) {
  if (session.room() == std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  const int64_t limit = int64_t{session.cache_length()} + session.room();
  for (const Outcome& outcome : outcomes) {
    const int64_t visitors = std::min(outcome.visiting, session.block_size_max());
    const int64_t need =
        plan.restore ? static_cast<int64_t>(plan.log.size()) : int64_t{outcome.kept} + plan.inserted + visitors;
    if (need > limit) return LengthLimit(session, limit, need);
  }
  return absl::OkStatus();
}

// A learned position is part of what K and V were made from, so that a token which is not run again cannot move.
absl::Status CheckLearnedPositions(const SessionOnEngine& session, const EditPlan& plan) {
  if (session.policy().learned_positions == 0 || plan.mode == EditMode::kRecomputeTail) return absl::OkStatus();
  for (int32_t i = 0; i < static_cast<int32_t>(plan.former.size()); ++i) {
    if (plan.former[i] < 0 || plan.former[i] == i) continue;
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("mode: the model learned its positions, and token %d would move to %d; use "
                                  "RECOMPUTE_TAIL, or replace tokens by as many",
                                  plan.former[i], i),
                  {.reason = "POSITIONS_FIXED", .field = "mode"});
  }
  return absl::OkStatus();
}

EditExactness ExactnessOf(const SessionOnEngine& session, const EditPlan& plan, std::span<const Outcome> outcomes) {
  if (plan.stale_from != kNothingStale) return EditExactness::kStale;
  const auto length = static_cast<int32_t>(plan.log.size());
  bool evicts = false;
  for (int32_t map = 0; map < static_cast<int32_t>(outcomes.size()); ++map) {
    evicts = evicts || Evicts(session, map, length);
    if (!plan.restore && outcomes[map].kept < length - plan.inserted) return EditExactness::kEvicted;
  }
  // A fresh session would evict as often, at the same tokens, if it ran as many; one whose schedule or shares hang on
  // its first prompt's end would have had that elsewhere.
  const ValidSpec& policy = session.policy();
  const bool as_fresh = plan.restore && policy.schedule != Schedule::kOncePrompt && !policy.lanes_follow_scores();
  return evicts && !as_fresh ? EditExactness::kEvicted : EditExactness::kExact;
}

// Makes the states again that follow from K, V and positions.
void RebuildStates(const Device& device, SessionOnEngine& session) {
  SessionCache& cache = session.cache();
  const ValidSpec& policy = session.policy();
  if (!policy.evicts || cache.share() == Share::kAllLanes) return;
  const CacheShape& shape = cache.shape();
  LaneReader reader;
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    const int32_t layer = lane / shape.kv_heads, head = lane % shape.kv_heads;
    SlotMap& map = cache.map(layer, head);
    if (map.live() == 0) continue;
    LaneView view = cache.view(layer, head, policy, static_cast<int32_t>(session.log().size()));
    if (policy.needs().memory) {
      reader.Point(*device.ops, cache.storage(layer, head), device.rope_view);
      view.memory = &reader;
    }
    for (int32_t g = 0; g < (policy.heads_apart() ? shape.query_heads : 1); ++g) {
      policy.scorer->Rebuild(view, map.state(cache.first_track(layer, head) + g));
    }
  }
}

// The states [tracks, slot_floats] of the live token whose keep score is the median; empty where there is none.
std::vector<float> MedianStates(const Device& device, const SessionOnEngine& session, int32_t index) {
  const SlotMap& map = session.cache().maps()[index];
  const StateShape& shape = map.state_shape();
  if (shape.slot_floats == 0 || !session.policy().evicts || session.policy().needs().probes) return {};
  EvictScratch scratch;
  RankSlots(device.Of(session, session.policy(), index), scratch);
  std::vector<int32_t> slots;
  for (int32_t slot = 0; slot < map.end(); ++slot) {
    if (map.token()[slot] >= 0 && !std::isnan(scratch.keep[slot])) slots.push_back(slot);
  }
  if (slots.empty()) return {};
  const auto median = slots.begin() + static_cast<int64_t>(slots.size() / 2);
  std::ranges::nth_element(slots, median, {},
                           [&](int32_t slot) { return std::pair(scratch.keep[slot], map.token()[slot]); });
  std::vector<float> states;
  for (int32_t track = 0; track < shape.tracks; ++track) {
    const ScorerState state = map.state(track);
    const auto own = state.slot.subspan(int64_t{*median} * shape.slot_floats, shape.slot_floats);
    states.insert(states.end(), own.begin(), own.end());
  }
  return states;
}

}  // namespace

absl::StatusOr<EditPlan> PlanEditOf(const SessionOnEngine& session, const EditRequest& request) {
  EBB_TRY(session.CheckSettled());
  const std::span<const int32_t> log = session.log();
  if (log.empty()) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  "the session is empty: there is nothing to edit; prefill it first", {.reason = "EMPTY_SESSION"});
  }
  EBB_TRY(CheckSpans(request.spans, static_cast<int32_t>(log.size())));
  EBB_CHECK(request.window >= 0);
  if (request.restore && request.mode != EditMode::kRecomputeTail) {
    return RefuseField("RESTORE_NEEDS_TAIL", "restore",
                       "evicted tokens can only be computed with all that follows them; use RECOMPUTE_TAIL");
  }
  EditPlan plan = {.mode = request.mode, .restore = request.restore};
  Splice(log, request.spans, plan);
  std::vector<std::vector<bool>> live;
  std::vector<bool> live_somewhere(log.size(), false);
  for (const SlotMap& map : session.cache().maps()) {
    live.push_back(LiveIn(map, log.size()));
    for (size_t i = 0; i < log.size(); ++i) live_somewhere[i] = live_somewhere[i] || live.back()[i];
  }
  EBB_TRY(CheckLearnedPositions(session, plan));
  ListWork(request, live_somewhere, plan);
  plan.stale_from = StaleFrom(session, live_somewhere, plan, request.spans.front().start);
  std::vector<Outcome> outcomes;
  for (const std::vector<bool>& of_map : live) {
    outcomes.push_back(OutcomeIn(of_map, plan));
    plan.reused = std::max(plan.reused, outcomes.back().reused);
    plan.stale = std::max(plan.stale, outcomes.back().stale);
  }
  EBB_TRY(CheckRoom(session, plan, outcomes));
  plan.exactness = ExactnessOf(session, plan, outcomes);
  return plan;
}

void BeginEditOf(const Device& device, SessionOnEngine& session, const EditPlan& plan) {
  session.StartEdit(plan);
  if (plan.mode == EditMode::kRecomputeTail) return RebuildStates(device, session);
  for (int32_t map = 0; map < static_cast<int32_t>(session.cache().maps().size()); ++map) {
    session.SetNewcomersState(map, MedianStates(device, session, map));
  }
}

void CloseEditStep(const Device& device, SessionOnEngine& session) {
  const bool in_place = session.edits_in_place();
  session.CloseEditStep();
  if (in_place && session.edit_left() == 0) RebuildStates(device, session);
}

}  // namespace ebb
