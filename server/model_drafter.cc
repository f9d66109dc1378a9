#include "server/model_drafter.h"

#include <algorithm>
#include <new>
#include <utility>

#include "policies/check.h"
#include "policies/status.h"
#include "server/draft_model.h"

namespace ebb {

ModelDrafter::ModelDrafter(Engine* engine, const ValidSpec& policy, const DraftCacheMetrics& metrics)
    : engine_(engine),
      policy_(policy),
      block_(engine == nullptr ? 0 : std::min(kDraftBlock, engine->step_tokens_max())),
      metrics_(metrics) {
  if (engine_ != nullptr) Count();
}

ModelDrafter::Round ModelDrafter::Draft(std::span<Wish> wishes) {
  Round round;
  if (engine_ == nullptr || wishes.empty()) return round;
  ++round_;
  rows_.clear();
  rows_wishes_.clear();
  std::vector<Follower*> drafting;  // of each row
  int64_t left = std::min<int64_t>(engine_->step_tokens_max(), kCatchUp);
  for (Wish& wish : wishes) {
    Follower* const follower = Follow(wish);
    if (follower == nullptr || left == 0) continue;
    const auto known = static_cast<size_t>(follower->begin) + follower->cache->log().size();
    const std::span<const int32_t> old = wish.log.subspan(known);
    const auto missing = static_cast<int64_t>(old.size()) + 1;
    const int64_t take = std::min<int64_t>({missing, left, block_});
    if (!follower->cache->CanAppend(static_cast<int32_t>(take)).ok()) {  // its positions are used up: begin anew
      metrics_.drops_length.Add();
      End(wish.session);
      continue;
    }
    follower->tokens.assign(old.begin(), old.begin() + std::min<int64_t>(take, std::ssize(old)));
    if (take == missing) follower->tokens.push_back(wish.token);
    left -= take;
    round.read += static_cast<int32_t>(take);
    const bool caught_up = take == missing;
    rows_.push_back(
        {.session = follower->cache.get(), .tokens = follower->tokens, .want = caught_up ? Want::kLast : Want::kNone});
    rows_wishes_.push_back(caught_up ? &wish : nullptr);
    drafting.push_back(follower);
  }
  while (!rows_.empty()) {
    engine_->Run(rows_);
    size_t going_on = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      Wish* const wish = rows_wishes_[i];
      if (wish == nullptr) continue;
      const std::span<const float> logits = rows_[i].logits;
      const auto best = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
      wish->draft.push_back(best);
      ++round.drafted;
      if (static_cast<int32_t>(wish->draft.size()) == wish->most || engine_->tokenizer().IsStop(best)) continue;
      Follower* const follower = drafting[i];
      if (!follower->cache->CanAppend(1).ok()) continue;
      follower->tokens.assign(1, best);
      rows_wishes_[going_on] = wish;
      drafting[going_on] = follower;
      ++going_on;
    }
    rows_.clear();
    for (size_t i = 0; i < going_on; ++i) {
      rows_.push_back({.session = drafting[i]->cache.get(), .tokens = drafting[i]->tokens, .want = Want::kLast});
    }
  }
  return round;
}

void ModelDrafter::End(SessionId session) {
  if (followers_.erase(session) > 0) Count();
}

ModelDrafter::Follower* ModelDrafter::Follow(const Wish& wish) {
  EBB_CHECK(!wish.log.empty());
  EBB_CHECK(wish.most >= 1);
  const auto found = followers_.find(wish.session);
  if (found != followers_.end() && IsFollowing(found->second, wish)) {
    found->second.used = round_;
    return &found->second;
  }
  if (found != followers_.end()) {
    metrics_.drops_length.Add();
    End(wish.session);
  }
  std::unique_ptr<Session> cache = Open();
  while (cache == nullptr && DropIdle()) cache = Open();
  if (cache == nullptr) {
    metrics_.drafts_no_room.Add();
    return nullptr;
  }
  const int64_t length = std::ssize(wish.log);
  Follower& follower = followers_[wish.session];
  follower = {
      .cache = std::move(cache), .begin = std::max<int64_t>(0, length + 1 - policy_.trigger.budget), .used = round_};
  Count();
  return &follower;
}

// False where it is so far behind that what it holds would leave before it caught up.
bool ModelDrafter::IsFollowing(Follower& follower, const Wish& wish) {
  const std::span<const int32_t> own = follower.cache->log();
  if (wish.log.size() < static_cast<size_t>(follower.begin) + follower.agreed) return false;
  const std::span<const int32_t> log = wish.log.subspan(static_cast<size_t>(follower.begin));
  while (follower.agreed < std::min(own.size(), log.size()) && own[follower.agreed] == log[follower.agreed]) {
    ++follower.agreed;
  }
  if (std::ssize(log) + 1 - static_cast<int64_t>(follower.agreed) > policy_.trigger.budget) return false;
  if (own.size() == follower.agreed) return true;
  if (follower.agreed == 0) return false;
  engine_->Rewind(*follower.cache, static_cast<int32_t>(follower.agreed));
  return true;
}

std::unique_ptr<Session> ModelDrafter::Open() {
  try {
    auto cache = engine_->OpenSession({.policy = policy_, .block_size_max = block_});
    return cache.ok() ? *std::move(cache) : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// The one that was not used for longest.
bool ModelDrafter::DropIdle() {
  const auto oldest =
      std::ranges::min_element(followers_, [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  if (oldest == followers_.end() || round_ - oldest->second.used < kIdleRounds) return false;
  metrics_.drops_pages.Add();
  End(oldest->first);
  return true;
}

void ModelDrafter::Count() {
  const EngineMemory memory = engine_->memory();
  metrics_.caches.Set(static_cast<double>(followers_.size()));
  metrics_.reserved_pages.Set(static_cast<double>(memory.pages_reserved));
  metrics_.free_pages.Set(static_cast<double>(memory.pages_total - memory.pages_reserved));
}

}  // namespace ebb
