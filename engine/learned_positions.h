// Models that learned their positions (GPT-2, OPT) have no further ones, wherever a session is computed.

#ifndef EBB_ENGINE_LEARNED_POSITIONS_H_
#define EBB_ENGINE_LEARNED_POSITIONS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "policies/spec.h"
#include "policies/status.h"

namespace ebb {

// RESOURCE_EXHAUSTED LENGTH_LIMIT where `count` tokens from position `next` on would exceed those of
// policy.learned_positions.
inline absl::Status CheckLearnedPositions(const ValidSpec& policy, int32_t next, int32_t count) {
  const int32_t learned = policy.learned_positions;
  if (learned == 0 || count <= learned - next) return absl::OkStatus();
  return Refuse(
      absl::StatusCode::kResourceExhausted,
      absl::StrFormat("%d tokens more would exceed the %d positions that the model learned; the next is %d", count,
                      learned, next),
      {.reason = "LENGTH_LIMIT",
       .quota = "session",
       .metadata = {{"length_limit", absl::StrFormat("%d", learned)}, {"length", absl::StrFormat("%d", next)}}});
}

}  // namespace ebb

#endif  // EBB_ENGINE_LEARNED_POSITIONS_H_
