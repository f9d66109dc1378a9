#include "engine/gpu/gpu_session.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/learned_positions.h"
#include "policies/check.h"
#include "policies/device_rule.h"
#include "policies/status.h"
#include "policies/trigger.h"

namespace ebb {
namespace {

// A policy's words, and the kernels'.
constexpr std::pair<DeviceRule, gpu::ScoreRule> kRules[] = {{DeviceRule::kAge, gpu::ScoreRule::kAge},
                                                            {DeviceRule::kSum, gpu::ScoreRule::kSum},
                                                            {DeviceRule::kLast, gpu::ScoreRule::kLast},
                                                            {DeviceRule::kKeyLength, gpu::ScoreRule::kLongKeys},
                                                            {DeviceRule::kKeyLikeness, gpu::ScoreRule::kKeyLikeness},
                                                            {DeviceRule::kChance, gpu::ScoreRule::kChance}};
constexpr std::pair<Modifier, gpu::ScoreModifier> kModifiers[] = {
    {Modifier::kNone, gpu::ScoreModifier::kNone},
    {Modifier::kCaote, gpu::ScoreModifier::kCaote},
    {Modifier::kFastCaote, gpu::ScoreModifier::kFastCaote}};
constexpr std::pair<Reduction, gpu::HeadReduction> kReductions[] = {{Reduction::kMean, gpu::HeadReduction::kTogether},
                                                                    {Reduction::kMax, gpu::HeadReduction::kLargest},
                                                                    {Reduction::kL2, gpu::HeadReduction::kL2},
                                                                    {Reduction::kUnion, gpu::HeadReduction::kUnion}};

template <typename Of, typename Is, size_t kWords>
Is Find(const std::pair<Of, Is> (&words)[kWords], Of word) {
  const auto* const found = std::ranges::find(words, word, &std::pair<Of, Is>::first);
  EBB_CHECK(found != std::end(words));
  return found->second;
}

gpu::ScoreRule RuleOf(DeviceRule rule, const ValidSpec& policy) {
  const bool short_ones_stay = rule == DeviceRule::kKeyLength && policy.parameters.at("keep") == 0;
  return short_ones_stay ? gpu::ScoreRule::kShortKeys : Find(kRules, rule);
}

// Pages dealt out to lanes.
std::vector<int32_t> TableOf(const GpuSession::Shape& shape, std::span<const int32_t> pages) {
  std::vector<int32_t> table(static_cast<size_t>(shape.lanes) * shape.pages_per_lane(), -1);
  auto next = pages.begin();
  for (const GpuSession::Lanes& kind : shape.kinds.of) {
    for (int32_t lane = kind.first; lane < kind.first + kind.count; ++lane, next += kind.pages()) {
      std::copy_n(next, kind.pages(), table.begin() + int64_t{lane} * shape.pages_per_lane());
    }
  }
  return table;
}

}  // namespace

GpuPages::GpuPages(int32_t pages) : free_(static_cast<size_t>(pages)) {
  std::iota(free_.begin(), free_.end(), 0);  // ascending: a heap
}

absl::StatusOr<std::vector<int32_t>> GpuPages::Take(int64_t pages) {
  if (pages > free()) {
    return Refuse(absl::StatusCode::kUnavailable,
                  absl::StrFormat("%d pages of the GPU's cache are needed, and %d are free", pages, free()),
                  {.reason = "NO_PAGES"});
  }
  std::vector<int32_t> taken;
  for (; pages > 0; --pages) {
    std::ranges::pop_heap(free_, std::greater());
    taken.push_back(free_.back());
    free_.pop_back();
  }
  return taken;
}

void GpuPages::GiveBack(std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    free_.push_back(page);
    std::ranges::push_heap(free_, std::greater());
  }
}

absl::StatusOr<std::unique_ptr<GpuSession>> GpuSession::Open(const Gpu& gpu, GpuPages& pages, const ValidSpec& policy,
                                                             const Shape& shape) {
  EBB_ASSIGN(const DeviceRule rule, DeviceRuleOf(policy));
  std::unique_ptr<GpuSession> session(new GpuSession(gpu, pages, policy, shape));
  session->rule_ = RuleOf(rule, policy);
  EBB_ASSIGN(session->held_, pages.Take(shape.pages()));
  session->table_ = TableOf(shape, session->held_);
  const std::vector<int32_t> free(static_cast<size_t>(shape.lanes) * shape.capacity, -1);
  const auto slots = static_cast<int64_t>(free.size() * sizeof(int32_t));
  session->tracks_ = policy.heads_apart() ? policy.query_heads : 1;
  EBB_ASSIGN(session->token_, gpu.Upload(std::span(free), "slot maps"));
  EBB_ASSIGN(session->position_, gpu.Upload(std::span(free), "slot maps"));
  EBB_ASSIGN(session->score_, gpu.Allocate(slots * session->tracks_, "scores"));
  const bool from_nothing = rule == DeviceRule::kKeyLikeness || rule == DeviceRule::kChance;
  if (policy.modifier != Modifier::kNone || session->tracks_ > 1 || from_nothing) {
    EBB_ASSIGN(session->keep_, gpu.Allocate(slots * session->tracks_, "scores"));
  }
  EBB_ASSIGN(session->scratch_, gpu.Allocate(slots, "slot maps"));
  EBB_ASSIGN(session->placed_, gpu.Allocate(int64_t{shape.lanes} * shape.block_max * 4, "slot maps"));
  EBB_ASSIGN(session->queries_, gpu.Allocate(int64_t{shape.lanes} * shape.queries * 4, "queries"));
  EBB_ASSIGN(session->logits_, gpu.Allocate(int64_t{shape.vocab} * 4, "logits"));
  EBB_ASSIGN(session->page_, gpu.Upload(std::span<const int32_t>(session->table_), "page table"));
  EBB_TRY(gpu.Wait());
  return session;
}

GpuSession::~GpuSession() { pages_.GiveBack(held_); }

int64_t GpuSession::bytes() const {
  int64_t bytes = 0;
  for (const GpuMemory* const memory :
       {&token_, &position_, &score_, &keep_, &placed_, &scratch_, &page_, &queries_, &logits_}) {
    bytes += memory->bytes();
  }
  return bytes;
}

absl::Status GpuSession::CanAppend(int32_t count) const {
  if (is_lost_) {
    return Refuse(absl::StatusCode::kUnavailable,
                  "a failure of the GPU ended this session; begin it again from its log", {.reason = "GPU_FAULT"});
  }
  if (count < 1 || count > shape_.block_max) {
    return Refuse(absl::StatusCode::kInvalidArgument,
                  absl::StrFormat("%d tokens in a step; a step takes 1 to %d", count, shape_.block_max),
                  {.reason = "BLOCK_TOO_LARGE"});
  }
  EBB_TRY(CheckLearnedPositions(policy_, at_.tokens, count));
  for (const GpuSight sight : kGpuSights) {
    const Lanes& kind = shape_.kinds[sight];
    if (kind.count == 0 || at_.live[sight] + count <= kind.slots) continue;
    return Refuse(absl::StatusCode::kResourceExhausted,
                  absl::StrFormat("%d tokens more than the %d there are exceed the session's limit of %d", count,
                                  at_.live[sight], kind.slots),
                  {.reason = "LENGTH_LIMIT"});
  }
  return absl::OkStatus();
}

int32_t GpuSession::Drop(const Coming& step, GpuSight sight) const {
  if (!policy_.evicts || shape_.kinds[sight].count == 0) return 0;
  switch (policy_.schedule) {
    case Schedule::kEveryStep:
      break;
    case Schedule::kEveryN:
      if (step.tokens == 1 && (at_.decode_steps + 1) % policy_.every_n != 0) return 0;
      break;
    case Schedule::kOncePrompt:
      if (!at_.prompt_ended && !step.prompt_ends) return 0;
  }
  return TokensToDrop(policy_.trigger_of(shape_.kinds[sight].of_model), at_.live[sight] + step.tokens);
}

// Tokens that come one by one find what leaves with them: while a policy evicts, no lane has more slots than those need
// before somebody leaves, and none is closed up for the few that are free in between. A cache that went home comes back
// without those that are free at its end; they count once as many tokens have come as would have taken them.
int32_t GpuSession::SlotsIn(const Coming& step, GpuSight sight) const {
  const Lanes& kind = shape_.kinds[sight];
  const int32_t needed = at_.live[sight] + step.tokens;
  if (!policy_.evicts) return needed;
  const int64_t one_by_one = Capacity(policy_.trigger_of(kind.of_model), std::max(policy_.every_n, 1));
  const int64_t taken = std::max(at_.slots[sight], at_.tokens);
  return std::max(needed, static_cast<int32_t>(std::min({taken, one_by_one, int64_t{kind.slots}})));
}

gpu::SessionView GpuSession::View(int32_t first_row, const Coming& step, GpuSight sight) const {
  const bool draws = rule_ == gpu::ScoreRule::kChance;
  const LaneRule rule = policy_.rule(shape_.kinds[sight].of_model);
  const int64_t lane = shape_.kinds[sight].first;
  const int64_t slot = lane * shape_.capacity;
  return {.token = token_.as<int32_t>() + slot,
          .position = position_.as<int32_t>() + slot,
          .score = score_.as<float>() + slot * tracks_,
          .keep = keep_.bytes() > 0 ? keep_.as<float>() + slot * tracks_ : nullptr,
          .placed = placed_.as<int32_t>() + lane * shape_.block_max,
          .scratch = scratch_.as<int32_t>() + slot,
          .page = page_.as<int32_t>() + lane * shape_.pages_per_lane(),
          .queries = queries_.as<float>() + lane * shape_.queries,
          .capacity = shape_.capacity,
          .block_max = shape_.block_max,
          .pages_per_lane = shape_.pages_per_lane(),
          .live = at_.live[sight],
          .slots = SlotsIn(step, sight),
          .spread = at_.slots[sight],
          .first_token = at_.tokens,
          .first_row = first_row,
          .tokens = step.tokens,
          .tracks = tracks_,
          .compacted = policy_.positions == Positions::kCompacted ? 1 : 0,
          .rule = rule_,
          .modifier = Find(kModifiers, policy_.modifier),
          .reduction = Find(kReductions, policy_.reduction),
          .seed = draws ? static_cast<uint64_t>(policy_.parameters.at("seed")) : 0,
          .fresh = draws && policy_.parameters.at("mode") != 0 ? 1 : 0,
          .best = std::max(rule.budget - rule.sinks - rule.recent, 0) / tracks_,
          .sinks = rule.sinks,
          .recent = rule.recent,
          .drop = Drop(step, sight)};
}

void GpuSession::Finish(const Coming& step) {
  for (const GpuSight sight : kGpuSights) {
    if (shape_.kinds[sight].count == 0) continue;
    const int32_t drop = Drop(step, sight);
    at_.slots[sight] = SlotsIn(step, sight);
    at_.live[sight] += step.tokens - drop;
  }
  at_.tokens += step.tokens;
  at_.decode_steps = step.tokens > 1 ? 0 : at_.decode_steps + 1;
  keeps_logits_ = false;
  if (!step.prompt_ends) return;
  at_.prompt_ended = true;
  SettleAfterPrompt(policy_);
}

absl::Status GpuSession::Pretend(int32_t tokens) {
  EBB_CHECK(at_.tokens == 0);
  for (const Lanes& kind : shape_.kinds.of) EBB_CHECK(kind.count == 0 || tokens <= kind.slots);
  std::vector<int32_t> places(static_cast<size_t>(shape_.lanes) * shape_.capacity, -1);
  for (int32_t lane = 0; lane < shape_.lanes; ++lane) {
    std::iota(places.begin() + int64_t{lane} * shape_.capacity,
              places.begin() + int64_t{lane} * shape_.capacity + tokens, 0);
  }
  const std::vector<float> scores(places.size() * tracks_, 0);
  EBB_TRY(gpu_.CopyIn(std::span<const int32_t>(places), token_.as<int32_t>()));
  EBB_TRY(gpu_.CopyIn(std::span<const int32_t>(places), position_.as<int32_t>()));
  EBB_TRY(gpu_.CopyIn(std::span<const float>(scores), score_.as<float>()));
  at_.tokens = tokens;
  at_.live.of = at_.slots.of = {tokens, tokens};
  return gpu_.Wait();
}

absl::Status GpuSession::Seat(const GpuSeats& seats, const GpuProgress& at) {
  EBB_CHECK(at_.tokens == 0);
  EBB_CHECK(std::ssize(seats.token) == int64_t{shape_.lanes} * shape_.capacity);
  EBB_CHECK(seats.score.size() == seats.token.size() * tracks_);
  EBB_CHECK(std::ssize(seats.queries) == (at.tokens > 0 ? int64_t{shape_.lanes} * shape_.queries : 0));
  EBB_TRY(gpu_.CopyIn(std::span(seats.token), token_.as<int32_t>()));
  EBB_TRY(gpu_.CopyIn(std::span(seats.position), position_.as<int32_t>()));
  EBB_TRY(gpu_.CopyIn(std::span(seats.score), score_.as<float>()));
  EBB_TRY(gpu_.CopyIn(std::span(seats.queries), queries_.as<float>()));
  at_ = at;
  return absl::OkStatus();
}

absl::StatusOr<GpuSeats> GpuSession::Seats() const {
  const auto slots = static_cast<size_t>(shape_.lanes) * shape_.capacity;
  GpuSeats seats = {.token = std::vector<int32_t>(slots),
                    .position = std::vector<int32_t>(slots),
                    .score = std::vector<float>(slots * tracks_),
                    .queries = std::vector<float>(static_cast<size_t>(shape_.lanes) * shape_.queries)};
  EBB_TRY(gpu_.CopyOut(token_.as<int32_t>(), std::span(seats.token)));
  EBB_TRY(gpu_.CopyOut(position_.as<int32_t>(), std::span(seats.position)));
  EBB_TRY(gpu_.CopyOut(score_.as<float>(), std::span(seats.score)));
  EBB_TRY(gpu_.CopyOut(queries_.as<float>(), std::span(seats.queries)));
  EBB_TRY(gpu_.Wait());
  return seats;
}

absl::StatusOr<std::vector<float>> GpuSession::Logits() const {
  std::vector<float> logits(keeps_logits_ ? static_cast<size_t>(shape_.vocab) : 0);
  if (logits.empty()) return logits;
  EBB_TRY(gpu_.CopyOut(logits_.as<float>(), std::span(logits)));
  EBB_TRY(gpu_.Wait());
  return logits;
}

absl::Status GpuSession::Remove(int32_t first, int32_t end) {
  std::vector<int32_t> tokens(static_cast<size_t>(shape_.lanes) * shape_.capacity);
  std::vector<int32_t> positions(tokens.size());
  EBB_TRY(gpu_.CopyOut(token_.as<int32_t>(), std::span(tokens)));
  EBB_TRY(gpu_.CopyOut(position_.as<int32_t>(), std::span(positions)));
  EBB_TRY(gpu_.Wait());
  std::vector<int32_t> removed(static_cast<size_t>(shape_.lanes), 0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (positions[i] < first || positions[i] >= end) continue;  // a free one is -1
    tokens[i] = positions[i] = -1;
    ++removed[i / shape_.capacity];
  }
  if (std::ranges::count(removed, removed[0]) != std::ssize(removed)) {
    return RefuseField("GPU_POLICY_UNSUPPORTED", "policy",
                       "lanes that hold different tokens, of which some would be taken out");
  }
  if (policy_.positions == Positions::kCompacted) {
    for (int32_t& position : positions) position -= position >= end ? removed[0] : 0;
  }
  EBB_TRY(gpu_.CopyIn(std::span<const int32_t>(tokens), token_.as<int32_t>()));
  EBB_TRY(gpu_.CopyIn(std::span<const int32_t>(positions), position_.as<int32_t>()));
  for (const GpuSight sight : kGpuSights) {
    if (shape_.kinds[sight].count > 0) at_.live[sight] -= removed[0];
  }
  return gpu_.Wait();
}

absl::StatusOr<std::vector<int32_t>> GpuSession::Tokens() const {
  std::vector<int32_t> tokens(static_cast<size_t>(shape_.lanes) * shape_.capacity);
  EBB_TRY(gpu_.CopyOut(token_.as<int32_t>(), std::span(tokens)));
  EBB_TRY(gpu_.Wait());
  return tokens;
}

}  // namespace ebb
