#include "engine/session_shape.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

// Slots that lane layer * kv_heads + head may ever need.
int64_t SlotsOf(const ValidSpec& policy, int32_t lane, int32_t block, Prompt prompt, const EngineLimits& limits) {
  const bool once = policy.schedule == Schedule::kOncePrompt && prompt == Prompt::kAhead;
  const bool alike = policy.lanes.empty() || once || policy.grow_max > 0;
  const int32_t budget = alike ? LengthLimit(policy, prompt, limits) : policy.rule(lane).budget;
  // Nobody comes in past a length limit.
  if (policy.bounded && budget == policy.trigger.budget) return budget;
  Trigger trigger = policy.trigger;
  trigger.budget = budget;
  // The tokens of decode steps since the policy ran are there when the next block comes.
  return Capacity(trigger, block + (policy.schedule == Schedule::kEveryN ? policy.every_n - 1 : 0));
}

}  // namespace

int64_t PageBytes(int32_t head_dim) {
  const KvFormat largest = {.type = KvType::kF32, .rope_cache = RopeCache::kRk, .head_dim = head_dim};
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(largest.tile_bytes())));
}

int32_t LengthLimit(const ValidSpec& policy, Prompt prompt, const EngineLimits& limits) {
  const bool once = policy.schedule == Schedule::kOncePrompt && prompt == Prompt::kAhead;
  const bool waits = policy.trigger.budget == 0 || once;
  return std::max({policy.budget_most(), policy.grow_max, waits ? limits.model->context : 0});
}

KvFormat FormatFor(const ValidSpec& policy, const EngineLimits& limits) {
  KvFormat format = {.type = policy.kv_type, .rope_cache = policy.rope_cache, .head_dim = limits.model->head_dim};
  format.page_tiles = static_cast<int32_t>(limits.page_bytes / format.tile_bytes());
  return format;
}

absl::StatusOr<CacheShape> ShapeFor(const SessionOptions& options, Prompt prompt, const EngineLimits& limits) {
  if (options.block_size_max < 1 || options.block_size_max > limits.step_tokens_max) {
    return RefuseField("BLOCK_SIZE_OUT_OF_RANGE", "block_size",
                       absl::StrFormat("%d is not in 1..%d", options.block_size_max, limits.step_tokens_max));
  }
  const ValidSpec& policy = options.policy;
  CacheShape shape = {.layers = limits.model->layers,
                      .kv_heads = limits.model->kv_heads,
                      .query_heads = limits.model->group(),
                      .format = FormatFor(policy, limits),
                      .block_max = options.block_size_max};
  for (int32_t lane = 0; lane < (policy.lanes.empty() ? 1 : shape.lanes()); ++lane) {
    const int64_t slots = SlotsOf(policy, lane, options.block_size_max, prompt, limits);
    EBB_CHECK(slots > 0);
    EBB_CHECK(slots < (int64_t{1} << 30));  // Resolve bounds what it is made of
    shape.capacity = std::max(shape.capacity, static_cast<int32_t>(slots));
    if (!policy.lanes.empty()) shape.slots_of.push_back(static_cast<int32_t>(slots));
  }
  return shape;
}

}  // namespace ebb
