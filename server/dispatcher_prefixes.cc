// Prompts of a dispatcher's calls that begin as earlier ones did.

#include <algorithm>
#include <span>

#include "server/dispatcher.h"

namespace ebb {

// How many tokens the call's first row runs, of which `tokens` were planned: those behind what the session begins with.
int32_t Dispatcher::BeginPrompt(Call& call, int32_t tokens) {
  OpenSession& session = *call.session;
  if (call.prompt_done > 0 || !session.cache->log().empty()) return tokens;
  call.blocks_are_all = true;
  std::span<const int32_t> known = call.request.prompt;
  if (call.request.score_at) known = known.first(std::min<size_t>(known.size(), *call.request.score_at));
  const int32_t block = call.request.block_size;
  const int32_t reused = engine_.BeginWithPrefix(*session.cache, session.request.tenant, known, block);
  if (reused == 0) return tokens;
  call.prompt_done = call.reused = reused;
  call.evicted = session.cache->evicted();
  session.prompt_tokens += reused;
  call.prepaid -= reused;
  session.account->TakeTokens(-reused, clock_.Now());
  session.tenant_metrics->prefix_hits.Add();
  session.tenant_metrics->prefix_tokens.Add(reused);
  CountSlots(session, session.cache->live_slots());
  RecordReused(call);
  const int32_t left = static_cast<int32_t>(call.request.prompt.size()) - reused;
  const int32_t now = std::min(left, block);
  shortened_.push_back({.id = call.id, .prompt_left = left - now});
  return now;
}

// Whoever runs the session again runs these blocks.
void Dispatcher::RecordReused(Call& call) {
  OpenSession& session = *call.session;
  Raise(call);
  std::span<const int32_t> left = std::span<const int32_t>(call.request.prompt).first(call.reused);
  while (!left.empty()) {
    const auto block = left.first(std::min<size_t>(left.size(), call.request.block_size));
    Record(session, JournalRecord::Block{{block.begin(), block.end()}, false});
    left = left.subspan(block.size());
  }
}

// A block of the prompt has run, and is not the last.
void Dispatcher::KeepPrefix(const Call& call) {
  if (!call.blocks_are_all) return;
  const OpenSession& session = *call.session;
  engine_.KeepPrefix(*session.cache, session.request.tenant, call.request.block_size);
}

}  // namespace ebb
