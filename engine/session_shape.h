// How large a session's cache is: what its policy may ever need, lane by lane.

#ifndef EBB_ENGINE_SESSION_SHAPE_H_
#define EBB_ENGINE_SESSION_SHAPE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/cache/session_cache.h"
#include "engine/engine.h"
#include "engine/model/architecture.h"
#include "policies/spec.h"

namespace ebb {

enum class Prompt { kAhead, kEnded };  // a session's first

// What an engine says about its sessions.
struct EngineLimits {
  const ModelConfig* model = nullptr;
  int64_t page_bytes = 0;
  int32_t step_tokens_max = 0;
};

// Of an engine's page pool: the smallest power of two that holds one tile of the largest format (F32 with RK), so that
// every format fits a page.
int64_t PageBytes(int32_t head_dim);

// What a session may hold while its policy does not evict: `full`; one that waits for the first prompt's end; one that
// grows after it.
int32_t LengthLimit(const ValidSpec& policy, Prompt prompt, const EngineLimits& limits);

// How K and V lie in pages of this engine.
KvFormat FormatFor(const ValidSpec& policy, const EngineLimits& limits);

// INVALID_ARGUMENT BLOCK_SIZE_OUT_OF_RANGE.
absl::StatusOr<CacheShape> ShapeFor(const SessionOptions& options, Prompt prompt, const EngineLimits& limits);

}  // namespace ebb

#endif  // EBB_ENGINE_SESSION_SHAPE_H_
