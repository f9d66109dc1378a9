// PolicySpec: the few orthogonal choices that make a policy, as plain structs, and their validation as a whole.
//
//   trigger (when, how many) x protection x scorer (who) x schedule x modifier x allocation x positions x cache format
//
// A caller's spec has holes; Resolve fills them with the scorer's defaults and checks the combination once, at the
// door. What comes out cannot be wrong, and nothing further in checks it again.

#ifndef EBB_POLICIES_SPEC_H_
#define EBB_POLICIES_SPEC_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "policies/calibration.h"
#include "policies/head_gates.h"
#include "policies/scorer.h"
#include "policies/trigger.h"

namespace ebb {

// Which RoPE position a cached token has: its index in the session's log, or its rank among the tokens kept.
enum class Positions { kOriginal, kCompacted };

// When the policy runs: after every prefill block and every decode step; once, when the first prompt ends; or after
// every prefill block and every n-th decode step.
enum class Schedule { kEveryStep, kOncePrompt, kEveryN };

// What happens after kOncePrompt has run: the same policy at every step; the selected tokens and the sinks stay for
// ever while the recent window slides; or nobody leaves and the cache grows to a limit.
enum class Then { kSame, kSlideRecent, kGrow };

// The unit for which one set of tokens is kept: each lane its own, or all KV heads of a layer the same.
enum class Scope { kKvHead, kLayer };

// How the query heads that share a KV head become one opinion (rank.h): the mean of what attention reports, before the
// scorer sees it; or a scorer for each query head, and then the largest keep score, the L2 norm (with a modifier: the
// exact error of the heads' concatenated output), or the union of what each head would keep.
enum class Reduction { kMean, kMax, kL2, kUnion };

// What changes the scores before selection (caote.h).
enum class Modifier { kNone, kCaote, kFastCaote };

// How one budget is shared among layers and heads (allocation.h).
enum class Allocation { kUniform, kPyramid, kAda, kDuo };

// kInt8, kFp8: K and V of a slot are bytes, each with a scale of its own (engine/ops.h, KvFormat).
enum class KvType { kF32, kBf16, kF16, kInt8, kFp8 };
// As configuration and flags say it.
constexpr std::string_view NameOf(KvType type) {
  constexpr std::array<std::string_view, 5> kNames = {"f32", "bf16", "f16", "int8", "fp8"};
  return kNames[static_cast<size_t>(type)];
}
constexpr bool IsScaled(KvType type) { return type == KvType::kInt8 || type == KvType::kFp8; }

// kFused: K rests unrotated and is rotated in registers while it is read. kRk: EQUIP's literal rotate-half copy of K is
// kept beside K (half as much memory again); the same numbers, for measuring the paper's own trade-off.
enum class RopeCache { kFused, kRk };

// As a caller writes it: absent means "the default".
struct PolicySpec {
  std::string scorer = {};                        // registry name; empty: streaming
  std::map<std::string, double> parameters = {};  // the scorer's own, by name
  std::optional<int32_t> budget = {};             // tokens per lane; absent: the model's trained context
  std::optional<double> budget_ratio = {};        // share of the first prompt, (0, 1]; excludes `budget`
  std::optional<int32_t> overflow = {};           // default 1
  int32_t slack = 0;
  int32_t max_drop = 0;
  std::optional<int32_t> sinks = {};        // default by scorer
  std::optional<int32_t> recent = {};       // default by scorer
  std::optional<Positions> positions = {};  // default by scorer
  std::optional<Schedule> schedule = {};    // default by scorer
  int32_t every_n = 0;                      // with Schedule::kEveryN
  std::optional<Then> then = {};            // with Schedule::kOncePrompt; default by scorer
  std::optional<int32_t> grow_max = {};  // with Then::kGrow: tokens per lane; default: the model's trained context, or
                                         // the budget if more
  Scope scope = Scope::kKvHead;
  std::optional<Reduction> reduction = {};  // default by scorer
  Modifier modifier = Modifier::kNone;
  Allocation allocation = Allocation::kUniform;
  std::map<std::string, double> allocation_parameters = {};  // the allocation's own, by name
  KvType kv_type = KvType::kBf16;
  RopeCache rope_cache = RopeCache::kFused;
};

// No number of a spec exceeds this many tokens, so that sums of a few of them stay far below 2^31.
inline constexpr int32_t kBudgetMax = 1 << 24;

// What the model and server say about limits; both in tokens.
struct SpecLimits {
  int32_t trained_context = 0;      // default budget, cut to budget_max
  int32_t budget_max = kBudgetMax;  // largest budget accepted; kBudgetMax if more
  int32_t query_heads = 1;          // of the model, that share a KV head
  int32_t layers = 1;               // of the model
  int32_t kv_heads = 1;             // of a layer
  // [layers] how many of the newest tokens a layer's queries see; 0: all. Empty: all, in every layer.
  std::vector<int32_t> windows = {};
  int32_t learned_positions = 0;  // tokens that the model has a learned position for; 0: positions are computed
  const CalibrationOr* calibration = nullptr;  // of the model; outlives the call. Null: there is none
  HeadGatesOr head_gates = HeadGatesMissing("");
};

// What a lane of its own is pruned to, and who is protected in it.
struct LaneRule {
  int32_t budget = 0;
  int32_t sinks = 0;
  int32_t recent = 0;

  bool operator==(const LaneRule&) const = default;
};

// A policy that passed Resolve. Copyable; the scorer is shared and immutable.
struct ValidSpec {
  std::string scorer_name = {};
  std::map<std::string, double> parameters = {};
  std::shared_ptr<const Scorer> scorer = {};  // never null
  bool evicts = false;                        // false: `full`
  bool bounded = false;             // `full`, which may yet stream in some heads: the budget is a length limit
  bool lockstep = false;            // scores depend on positions alone: all lanes evict the same tokens
  Trigger trigger = {};             // budget > 0, unless budget_ratio is set and not yet fixed by FixBudget
  double budget_ratio = 0;          // > 0: the budget follows from the first prompt's length
  int32_t budget_max = kBudgetMax;  // what FixBudget may give
  int32_t sinks = 0;
  int32_t recent = 0;
  bool sinks_follow_budget = false;    // sinks were not given: FixBudget recomputes them
  bool recent_follows_budget = false;  // nor recent
  int32_t query_heads = 1;
  int32_t layers = 1;
  int32_t kv_heads = 1;
  Positions positions = Positions::kOriginal;
  Schedule schedule = Schedule::kEveryStep;
  int32_t every_n = 0;
  Then then = Then::kSame;
  int32_t grow_max = 0;                  // > 0 with Then::kGrow alone
  bool grow_max_follows_budget = false;  // grow_max was not given: it is the trained context, or the budget if more
  Scope scope = Scope::kKvHead;
  Reduction reduction = Reduction::kMean;
  Modifier modifier = Modifier::kNone;
  Allocation allocation = Allocation::kUniform;
  std::map<std::string, double> allocation_parameters = {};
  // [layers * kv_heads] layer-major, where the allocation is not uniform; empty until what they follow from is known.
  std::vector<LaneRule> lanes = {};
  // [layers] SpecLimits.windows: a lane that is pruned keeps what its window shows, and nothing else is chosen in it.
  std::vector<int32_t> windows = {};
  int32_t learned_positions = 0;   // SpecLimits.learned_positions
  std::vector<bool> streams = {};  // [layers * kv_heads] with Allocation::kDuo: who keeps sinks and a window alone
  KvType kv_type = KvType::kBf16;
  RopeCache rope_cache = RopeCache::kFused;

  // Of lane layer * kv_heads + head.
  LaneRule rule(int32_t lane) const {
    return lanes.empty() ? LaneRule{.budget = trigger.budget, .sinks = sinks, .recent = recent} : lanes[lane];
  }
  Trigger trigger_of(int32_t lane) const {
    return {.budget = rule(lane).budget,
            .overflow = trigger.overflow,
            .slack = trigger.slack,
            .max_drop = trigger.max_drop};
  }
  // Whether the lanes' budgets follow from scores at the end of the prompt.
  bool lanes_follow_scores() const { return allocation == Allocation::kAda; }
  // Whether every lane's budget is known.
  bool lanes_known() const { return trigger.budget > 0 && (allocation == Allocation::kUniform || !lanes.empty()); }
  // The largest budget of a lane.
  int32_t budget_most() const {
    int32_t most = trigger.budget;
    for (const LaneRule& lane : lanes) most = std::max(most, lane.budget);
    return most;
  }

  // Whether each query head has a state of its own.
  bool heads_apart() const { return reduction != Reduction::kMean; }
  // What attention and the cache must provide for scorer and modifier together.
  Needs needs() const {
    Needs needs = scorer->needs();
    needs.memory |= modifier != Modifier::kNone;
    return needs;
  }
};

// The lanes' rules with those of layers that have a window in their place: its tokens, the newest. `lanes` may be empty
// where all are alike, and stays so where no layer has a window.
std::vector<LaneRule> WithWindows(const ValidSpec& spec, std::vector<LaneRule> lanes);

// Fills defaults and checks the whole. Every error has a field path that begins with `policy` and says what would have
// been right. NOT_FOUND UNKNOWN_SCORER names the known ones; FAILED_PRECONDITION is what limits.calibration says, where
// the scorer takes one (CALIBRATION_MISSING, CALIBRATION_FOREIGN), and what limits.head_gates says, where duo asks for
// them; and POSITIONS_FIXED, where compacted positions are asked for of a model that learned them: what a token is
// holds where it stood. The others are INVALID_ARGUMENT:
//
//   BUDGET_TOO_SMALL          below sinks + recent + 1, without the 1 for a rule that needs no choice (streaming), and
//                             with beta in its place for a pyramid; below what a streaming head of duo keeps; or
//                             grow_max below the budget
//   BUDGET_TOO_LARGE          a budget, a lane's share of it, or protection that needs one, above budget_max
//   BUDGET_AMBIGUOUS          budget and budget_ratio
//   RATIO_OUT_OF_RANGE        budget_ratio not in (0, 1]
//   OVERFLOW_ZERO             it would never prune
//   NEGATIVE_VALUE            overflow, slack, max_drop, sinks, recent, every_n or grow_max
//   VALUE_TOO_LARGE           one of these above budget_max
//   UNKNOWN_PARAMETER         a number that the scorer does not take
//   PARAMETER_OUT_OF_RANGE    or not in this range
//   MEANINGLESS_COMBINATION   anything but a budget on `full`, which never evicts; recent 0 on a rule that keeps the
//                             newest (streaming), or with Then::kSlideRecent; a scorer's numbers that mean nothing
//                             together (ScorerRow.check); a modifier on scores that are not
//                             attention received; a reduction other than the mean on a scorer that attention does not
//                             inform, or kL2 without a modifier; Scope::kLayer or an allocation where all lanes agree
//                             anyway; a pyramid of one layer; an allocation by heads (ada, duo) with Scope::kLayer; ada
//                             in a model of one KV head, without Schedule::kOncePrompt, or with Reduction::kUnion,
//                             whose scores cannot be compared between heads; every_n, then or grow_max without the
//                             schedule that reads them, or Schedule::kEveryN without every_n
//
// slack without max_drop, and max_drop without slack, are allowed and have no effect (LAZY's ablation sets them so).
absl::StatusOr<ValidSpec> Resolve(const PolicySpec& spec, const SpecLimits& limits);

// Turns budget_ratio into a budget once the first prompt is known: floor(prompt * ratio + 1e-9) tokens, and recomputes
// the defaults of sinks and recent. The result must lie in the range of `budget`, else INVALID_ARGUMENT
// BUDGET_TOO_SMALL or BUDGET_TOO_LARGE with field policy.trigger.budget_ratio. Shares the budget, where that waited for
// the prompt (Schedule::kOncePrompt or a ratio): no lane then gets more than the prompt has tokens. A spec of which all
// is known is returned as it is. REQUIRES: prompt_tokens >= 0.
absl::StatusOr<ValidSpec> FixBudget(const ValidSpec& spec, int32_t prompt_tokens);

// What Schedule::kOncePrompt makes of a policy once it ran for the first prompt; others stay as they are.
void SettleAfterPrompt(ValidSpec& spec);

}  // namespace ebb

#endif  // EBB_POLICIES_SPEC_H_
