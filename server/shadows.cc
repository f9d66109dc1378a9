#include "server/shadows.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include "engine/divergence.h"
#include "policies/hash_random.h"
#include "policies/status.h"
#include "server/resource_name.h"
#include "server/unevicted_scorer.h"

namespace ebb {
namespace {

constexpr uint64_t kSampling = 0x5AD0;  // purpose of the hash

// The likeliest token, of equals the first.
ptrdiff_t First(std::span<const float> logits) { return std::ranges::max_element(logits) - logits.begin(); }

// Uniform in [0, 1), the session's for ever.
double DrawOf(std::string_view session) { return HashUniform(SeedFor(session), kSampling, 0); }

}  // namespace

bool IsSampled(std::string_view session, double share) { return DrawOf(session) < share; }

void Shadows::Ride(std::span<OpenSession* const> sessions, int32_t rows_max, std::vector<BatchRow>& batch) {
  riders_.clear();
  if (options_.share == 0) return;
  int64_t real = 0;  // tokens
  for (const BatchRow& row : batch) real += static_cast<int64_t>(row.tokens.size());
  int64_t left = std::min(engine_.step_tokens_max() - real, real + kCatchUp);
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (left <= 0 || batch.size() >= static_cast<size_t>(rows_max)) return;
    Shadow* const shadow = Find(*sessions[i]);
    if (shadow == nullptr) continue;
    const std::span<const int32_t> log = sessions[i]->cache->log();
    const std::span<const int32_t> old = log.subspan(shadow->cache->log().size());
    // A draft is not in the log yet, and may never be; an edit's tokens need not be what the log goes on with.
    const bool goes_on = !batch[i].draft && batch[i].session->edit_left() == 0;
    const std::span<const int32_t> fresh = goes_on ? batch[i].tokens : std::span<const int32_t>();
    const auto missing = static_cast<int64_t>(old.size() + fresh.size());
    if (missing == 0) continue;
    if (missing > shadow->cache->room()) {  // it can never catch up
      metrics_.shadow_drops.length.Add();
      Drop(*shadow);
      continue;
    }
    const int64_t take = std::min<int64_t>({missing, left, sessions[i]->request.block_size});
    // A copy: the log that `old` points into grows in the same step.
    const std::span<const int32_t> made_up = old.first(std::min(old.size(), static_cast<size_t>(take)));
    const std::span<const int32_t> now = fresh.first(static_cast<size_t>(take) - made_up.size());
    shadow->tokens.assign(made_up.begin(), made_up.end());
    shadow->tokens.insert(shadow->tokens.end(), now.begin(), now.end());
    const bool compared = take == missing && goes_on;
    if (compared) batch[i].enough = {};
    batch.push_back(
        {.session = shadow->cache.get(), .tokens = shadow->tokens, .want = compared ? Want::kLast : Want::kNone});
    riders_.push_back({.session = sessions[i], .real = i, .compared = compared});
    left -= take;
  }
}

void Shadows::StayOut() {
  riders_.clear();
  if (options_.share > 0) metrics_.shadow_steps_without.Add();
}

void Shadows::Compare(std::span<const BatchRow> batch) {
  const std::span<const BatchRow> rows = batch.last(riders_.size());
  for (size_t i = 0; i < riders_.size(); ++i) {
    const bool ran = rows[i].fault.ok() && batch[riders_[i].real].fault.ok();
    if (!riders_[i].compared || !ran) continue;
    const std::span<const float> full = rows[i].logits;
    const std::span<const float> evicted = batch[riders_[i].real].logits.last(full.size());
    const PolicyMetrics& policy = *riders_[i].session->policy_metrics;
    const double divergence = KlDivergence(full, evicted);
    const bool agree = First(full) == First(evicted);
    policy.shadow_kl.Observe(divergence);
    policy.shadow_tokens.Add();
    if (agree) policy.shadow_agreed.Add();
    Trial* const trial = riders_[i].session->trial.get();
    if (trial == nullptr) continue;
    trial->fresh.Add(TrialMetric::kShadowKl, divergence);
    trial->fresh.Add(TrialMetric::kShadowAgreement, agree ? 1 : 0);
  }
}

void Shadows::MakeRoom(int64_t pages) {
  while (engine_.memory().pages_total - engine_.memory().pages_reserved < pages && DropYoungest()) continue;
}

bool Shadows::DropYoungest() {
  for (auto shadow = shadows_.rbegin(); running_ > 0 && shadow != shadows_.rend(); ++shadow) {
    if (shadow->second.cache == nullptr) continue;
    metrics_.shadow_drops.pages.Add();
    Drop(shadow->second);
    return true;
  }
  return false;
}

void Shadows::End(SessionId session) {
  const auto shadow = shadows_.find(session);
  if (shadow == shadows_.end()) return;
  Drop(shadow->second);
  shadows_.erase(shadow);
}

void Shadows::SetOptions(const ShadowOptions& options) {
  options_ = options;
  for (auto& [session, shadow] : shadows_) {
    if (shadow.draw >= options.share) Drop(shadow);
  }
  std::erase_if(shadows_, [&options](const auto& entry) { return entry.second.draw >= options.share; });
}

void Shadows::EndLost() {
  for (auto shadow = shadows_.begin(); shadow != shadows_.end();) {
    const bool is_lost = shadow->second.cache != nullptr && shadow->second.cache->is_lost();
    if (is_lost) Drop(shadow->second);
    shadow = is_lost ? shadows_.erase(shadow) : std::next(shadow);
  }
}

Shadows::Shadow* Shadows::Find(const OpenSession& session) {
  const double draw = DrawOf(session.request.id);
  if (draw >= options_.share) return nullptr;
  const auto [found, is_new] = shadows_.try_emplace(session.id, Shadow{.draw = draw});
  Shadow& shadow = found->second;
  if (!is_new) return shadow.cache == nullptr ? nullptr : &shadow;
  absl::StatusOr<std::unique_ptr<Session>> cache = Open(session);
  if (!cache.ok()) {
    metrics_.shadow_drops.no_room.Add();
    return nullptr;
  }
  shadow.cache = *std::move(cache);
  ++running_;
  Count(shadow.cache->pages());
  return &shadow;
}

absl::StatusOr<std::unique_ptr<Session>> Shadows::Open(const OpenSession& session) {
  const ValidSpec& policy = session.cache->policy();
  const PolicySpec spec = {.scorer = UnevictedScorer(),
                           .budget = options_.tokens_max,
                           .kv_type = policy.kv_type,
                           .rope_cache = policy.rope_cache};
  EBB_ASSIGN(ValidSpec unevicted, Resolve(spec, LimitsOf(engine_.config())));
  try {
    return engine_.OpenSession({.policy = std::move(unevicted), .block_size_max = session.request.block_size});
  } catch (const std::bad_alloc&) {
    return absl::UnavailableError("no memory for a shadow");
  }
}

void Shadows::Drop(Shadow& shadow) {
  if (shadow.cache == nullptr) return;
  const int64_t pages = shadow.cache->pages();
  shadow.cache.reset();
  shadow.tokens = {};
  --running_;
  Count(-pages);
}

void Shadows::Count(int64_t more_pages) {
  pages_ += more_pages;
  const EngineMemory memory = engine_.memory();
  metrics_.shadows.Set(running_);
  metrics_.pages.owned.Add(static_cast<double>(more_pages));
  metrics_.pages.free.Set(static_cast<double>(memory.pages_total - memory.pages_reserved));
}

}  // namespace ebb
