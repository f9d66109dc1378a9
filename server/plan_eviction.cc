#include "server/plan_eviction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/caote.h"
#include "policies/select.h"
#include "policies/shortest.h"
#include "policies/status.h"

namespace ebb {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are copied as they come");

// The values of a row; nobody asks for keys.
class RowMemory final : public LaneMemory {
 public:
  void Point(std::span<const float> values, size_t slots) {
    values_ = values;
    head_dim_ = static_cast<int32_t>(values.size() / slots);
  }

  int32_t head_dim() const override { return head_dim_; }
  RopeView rope() const override { return {}; }
  std::span<const float> Keys(int32_t /*first*/, int32_t /*count*/) const override { return {}; }
  std::span<const float> Values(int32_t first, int32_t count) const override {
    return values_.subspan(static_cast<size_t>(first) * head_dim_, static_cast<size_t>(count) * head_dim_);
  }

 private:
  std::span<const float> values_ = {};
  int32_t head_dim_ = 0;
};

template <typename Element>
absl::Status Unpack(const std::string& field, const std::string& bytes, std::vector<Element>& elements) {
  if (bytes.size() % sizeof(Element) != 0) {
    return RefuseField("WRONG_LENGTH", field,
                       absl::StrFormat("%d bytes are no whole elements of %d bytes", bytes.size(), sizeof(Element)));
  }
  elements.resize(bytes.size() / sizeof(Element));
  if (!bytes.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::Status WrongCount(const std::string& field, size_t count, const std::string& right) {
  return RefuseField("WRONG_LENGTH", field, absl::StrFormat("%d elements; it takes %s", count, right));
}

template <typename Number>
absl::Status OutOfRange(const std::string& field, size_t index, Number value, const std::string& right) {
  return RefuseField("OUT_OF_RANGE", absl::StrFormat("%s[%d]", field, index),
                     absl::StrFormat("%s is not %s", Shortest(value), right));
}

int32_t CountLive(std::span<const int32_t> token) {
  return static_cast<int32_t>(std::ranges::count_if(token, [](int32_t t) { return t >= 0; }));
}

int32_t Tokens(uint32_t count) { return static_cast<int32_t>(std::min<uint32_t>(count, kPlanSlotsMax)); }

absl::StatusOr<std::optional<CaoteForm>> FormOf(v1::Modifier modifier) {
  switch (modifier) {
    case v1::MODIFIER_UNSPECIFIED:
    case v1::MODIFIER_NONE:
      return std::optional<CaoteForm>();
    case v1::MODIFIER_CAOTE:
      return std::optional(CaoteForm::kExact);
    case v1::MODIFIER_FAST_CAOTE:
      return std::optional(CaoteForm::kFast);
    default:
      return RefuseField("UNKNOWN_ENUM_VALUE", "modifier", absl::StrFormat("%d is no value of this enum", modifier));
  }
}

// Plans one row after another; the arrays keep their capacity.
class RowPlanner {
 public:
  RowPlanner(const v1::PlanEvictionRequest& request, std::optional<CaoteForm> form) : request_(request), form_(form) {}

  absl::Status Plan(int index, v1::PlannedRow& planned) {
    const v1::PlanRow& row = request_.rows(index);
    path_ = absl::StrFormat("rows[%d]", index);
    EBB_TRY(ReadScores(row));
    EBB_TRY(ReadValues(row));
    EBB_TRY(ReadTokens(row));
    EBB_ASSIGN(const LaneView selectable, Selectable(row));
    EBB_ASSIGN(const int32_t count, Count(row, selectable));
    if (form_) Caote(lane_, *form_, caote_, scores_);
    EBB_TRY(SelectVictims(selectable, scores_, count, select_, victims_));
    planned.mutable_victims()->Add(victims_.begin(), victims_.end());
    if (!attention_.empty()) Measure(planned);
    return absl::OkStatus();
  }

 private:
  std::string Path(const std::string& field) const { return path_ + "." + field; }

  absl::Status CheckWeights(const std::string& field, std::span<const float> weights) const {
    const auto wrong = std::ranges::find_if(weights, [](float w) { return !(std::isfinite(w) && w >= 0); });
    if (wrong == weights.end()) return absl::OkStatus();
    return OutOfRange(Path(field), static_cast<size_t>(wrong - weights.begin()), *wrong, "attention: finite, >= 0");
  }

  absl::Status ReadScores(const v1::PlanRow& row) {
    EBB_TRY(Unpack(Path("scores"), row.scores(), scores_));
    EBB_TRY(Unpack(Path("attention"), row.attention(), attention_));
    if (scores_.empty() && attention_.empty()) {
      return RefuseField("MISSING", Path("scores"), "a row needs scores or attention");
    }
    EBB_TRY(CheckWeights("attention", attention_));
    if (scores_.empty()) {
      scores_ = attention_;
    } else {
      if (!attention_.empty() && attention_.size() != scores_.size()) {
        return WrongCount(Path("attention"), attention_.size(), absl::StrFormat("%d, as scores", scores_.size()));
      }
      if (form_) EBB_TRY(CheckWeights("scores", scores_));
    }
    if (scores_.size() <= kPlanSlotsMax) return absl::OkStatus();
    return RefuseField("TOO_LONG", Path(row.scores().empty() ? "attention" : "scores"),
                       absl::StrFormat("%d slots; at most %d", scores_.size(), kPlanSlotsMax));
  }

  absl::Status ReadValues(const v1::PlanRow& row) {
    const size_t n = scores_.size();
    EBB_TRY(Unpack(Path("values"), row.values(), values_));
    if (values_.size() % n != 0) {
      return WrongCount(Path("values"), values_.size(), absl::StrFormat("a multiple of the %d slots", n));
    }
    if (form_ && values_.empty()) return RefuseField("MISSING", Path("values"), "a modifier needs them");
    memory_.Point(values_, n);
    return absl::OkStatus();
  }

  absl::Status ReadTokens(const v1::PlanRow& row) {
    const size_t n = scores_.size();
    EBB_TRY(Unpack(Path("tokens"), row.tokens(), token_));
    if (token_.empty()) {
      token_.resize(n);
      std::iota(token_.begin(), token_.end(), 0);
    } else {
      if (token_.size() != n) return WrongCount(Path("tokens"), token_.size(), absl::StrFormat("%d, one a slot", n));
      const auto below = std::ranges::find_if(token_, [](int32_t t) { return t < -1; });
      if (below != token_.end()) {
        return OutOfRange(Path("tokens"), static_cast<size_t>(below - token_.begin()), *below, "-1 or above");
      }
      EBB_TRY(CheckDistinct());
    }
    lane_ = {.token = token_,
             .live = CountLive(token_),
             .sinks = Tokens(request_.sinks()),
             .recent = Tokens(request_.recent()),
             .memory = &memory_};
    return CheckValues();
  }

  // By a bit for each token between the oldest and the newest; where these are far apart, by sorting, which takes some
  // ten times as long.
  absl::Status CheckDistinct() {
    const auto repeated = [&](int32_t token) {
      return RefuseField("TOKEN_REPEATED", Path("tokens"), absl::StrFormat("two live slots have token %d", token));
    };
    int32_t oldest = std::numeric_limits<int32_t>::max();
    int32_t newest = -1;
    for (const int32_t token : token_) {
      oldest = token < 0 ? oldest : std::min(oldest, token);
      newest = std::max(newest, token);
    }
    if (newest < 0) return absl::OkStatus();
    constexpr size_t kSparse = 256;
    const auto spread = static_cast<size_t>(newest - oldest) + 1;
    if (spread <= kSparse * token_.size()) {
      seen_.assign((spread + 63) / 64, 0);
      for (const int32_t token : token_) {
        if (token < 0) continue;
        const auto at = static_cast<size_t>(token - oldest);
        if ((seen_[at / 64] >> at % 64 & 1) != 0) return repeated(token);
        seen_[at / 64] |= uint64_t{1} << at % 64;
      }
      return absl::OkStatus();
    }
    LiveAges();
    std::ranges::sort(ages_);
    const auto twice = std::ranges::adjacent_find(ages_);
    return twice == ages_.end() ? absl::OkStatus() : repeated(*twice);
  }

  // Fills ages_ with the tokens of the live slots, in no order.
  void LiveAges() {
    ages_.clear();
    std::ranges::copy_if(token_, std::back_inserter(ages_), [](int32_t t) { return t >= 0; });
  }

  // Of free slots anything goes.
  absl::Status CheckValues() const {
    const auto d = static_cast<size_t>(memory_.head_dim());
    for (size_t slot = 0; slot < token_.size(); ++slot) {
      if (token_[slot] < 0) continue;
      for (size_t at = slot * d; at < (slot + 1) * d; ++at) {
        if (!std::isfinite(values_[at])) return OutOfRange(Path("values"), at, values_[at], "finite");
      }
    }
    return absl::OkStatus();
  }

  // The lane as selection sees it: protected slots are free, and what of them are sinks or recent no longer counts
  // among those.
  absl::StatusOr<LaneView> Selectable(const v1::PlanRow& row) {
    selectable_ = token_;
    for (int i = 0; i < row.protected_slots_size(); ++i) {
      const v1::SlotRange& range = row.protected_slots(i);
      if (range.start() >= range.end() || range.end() > token_.size()) {
        return RefuseField("OUT_OF_RANGE", Path(absl::StrFormat("protected_slots[%d]", i)),
                           absl::StrFormat("[%d, %d) is empty or not within the row's %d slots", range.start(),
                                           range.end(), token_.size()));
      }
      std::fill(selectable_.begin() + range.start(), selectable_.begin() + range.end(), -1);
    }
    LaneView view = lane_;
    view.token = selectable_;
    view.live = CountLive(selectable_);
    if (view.live == lane_.live || lane_.sinks + lane_.recent >= lane_.live) return view;
    LiveAges();
    const auto age_at = [&](int32_t rank) {
      std::ranges::nth_element(ages_, ages_.begin() + rank);
      return ages_[rank];
    };
    const int32_t oldest = age_at(lane_.sinks);
    const int32_t newest = age_at(lane_.live - lane_.recent - 1);
    for (size_t slot = 0; slot < token_.size(); ++slot) {
      const int32_t token = token_[slot];
      if (token < 0 || selectable_[slot] >= 0) continue;
      view.sinks -= static_cast<int32_t>(token < oldest);
      view.recent -= static_cast<int32_t>(token > newest);
    }
    return view;
  }

  absl::StatusOr<int32_t> Count(const v1::PlanRow& row, const LaneView& selectable) const {
    const bool own = row.count_case() != v1::PlanRow::COUNT_NOT_SET;
    if (!own && request_.count_case() == v1::PlanEvictionRequest::COUNT_NOT_SET) {
      return RefuseField("MISSING", "keep", "say how many stay or leave: keep or evict, here or in each row");
    }
    const bool keeps = own ? row.has_keep() : request_.has_keep();
    const uint32_t given = keeps ? (own ? row.keep() : request_.keep()) : (own ? row.evict() : request_.evict());
    const int64_t count = keeps ? std::max<int64_t>(int64_t{lane_.live} - given, 0) : given;
    // As SelectVictims counts, but in the words of the request.
    const bool some = lane_.sinks + lane_.recent < lane_.live;
    const int32_t candidates = some ? std::max(selectable.live - selectable.sinks - selectable.recent, 0) : 0;
    if (count <= candidates) return static_cast<int32_t>(count);
    const std::string field = own ? Path(keeps ? "keep" : "evict") : path_;
    return Refuse(
        absl::StatusCode::kInvalidArgument,
        absl::StrFormat("%s: %d slots were to leave, but only %d of %d live ones may, beside sinks %d, recent "
                        "%d and %d protected slots",
                        field, count, candidates, lane_.live, lane_.sinks, lane_.recent, lane_.live - selectable.live),
        {.reason = "NOT_ENOUGH_CANDIDATES",
         .field = field,
         .metadata = {{"count", absl::StrFormat("%d", count)}, {"candidates", absl::StrFormat("%d", candidates)}}});
  }

  void Measure(v1::PlannedRow& planned) {
    double total = 0;
    for (size_t slot = 0; slot < token_.size(); ++slot) total += token_[slot] >= 0 ? attention_[slot] : 0.0F;
    double gone = 0;
    for (const int32_t slot : victims_) gone += attention_[slot];
    planned.set_attention_mass(total > 0 ? std::min(gone / total, 1.0) : 0.0);
    if (values_.empty()) return;  // there is no output to measure
    const EvictionLoss loss = MeasureEviction(lane_, attention_, victims_, caote_);
    planned.set_output_error(loss.error);
    planned.set_output_norm(loss.output);
  }

  const v1::PlanEvictionRequest& request_;
  const std::optional<CaoteForm> form_;
  std::string path_ = {};                 // of the row
  std::vector<float> scores_ = {};        // [n]
  std::vector<float> attention_ = {};     // [n] or empty
  std::vector<float> values_ = {};        // [n, d] or empty
  std::vector<int32_t> token_ = {};       // [n]
  std::vector<int32_t> selectable_ = {};  // [n] without the protected
  std::vector<int32_t> ages_ = {};        // [live]
  std::vector<uint64_t> seen_ = {};       // a bit for each token
  std::vector<int32_t> victims_ = {};
  LaneView lane_ = {};
  RowMemory memory_ = {};
  SelectScratch select_ = {};
  CaoteScratch caote_ = {};
};

}  // namespace

absl::Status PlanEviction(const v1::PlanEvictionRequest& request, absl::FunctionRef<bool()> cancelled,
                          v1::PlanEvictionResponse& response) {
  if (request.rows().empty()) return RefuseField("MISSING", "rows", "there is none");
  if (request.rows_size() > kPlanRowsMax) {
    return RefuseField("TOO_MANY", "rows", absl::StrFormat("%d rows; at most %d", request.rows_size(), kPlanRowsMax));
  }
  EBB_ASSIGN(const std::optional<CaoteForm> form, FormOf(request.modifier()));
  RowPlanner planner(request, form);
  response.mutable_rows()->Reserve(request.rows_size());
  for (int i = 0; i < request.rows_size(); ++i) {
    if (cancelled()) {
      return Refuse(absl::StatusCode::kCancelled, "the caller cancelled the call", {.reason = "CALL_CANCELLED"});
    }
    EBB_TRY(planner.Plan(i, *response.add_rows()));
  }
  return absl::OkStatus();
}

}  // namespace ebb
