// What a model takes of memory, told before it is loaded: from its shapes alone, without reading its weights.

#ifndef EBB_ENGINE_MEMORY_PLAN_H_
#define EBB_ENGINE_MEMORY_PLAN_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf.h"

namespace ebb {

struct MemoryQuestion {
  int32_t sessions = 1;  // of `session`, at once
  SessionOptions session = {};
  int32_t step_tokens_max = 512;  // as EngineOptions'
  int32_t rows_max = 64;          // sessions of one step whose logits are wanted
};

// Bytes.
struct MemoryPlan {
  int64_t weights = 0;     // packed: what an engine tells as EngineMemory::weight_bytes
  int64_t copied = 0;      // of a folder's tensors, laid out as ours: given back when all are packed, before there are
                           // caches
  int64_t mapped = 0;      // of the file, that steps read in place: the embedding, of which the rows that are asked for
                           // are in memory; the system takes it back where it is short
  int64_t page_bytes = 0;  // of K and V
  int64_t session_pages = 0;  // that one session reserves: Engine::PagesFor
  int64_t caches = 0;         // pages of all sessions: the smallest arena that holds them
  int64_t scratch = 0;        // of the largest step: activations and logits, what attention reports not counted

  int64_t total() const { return weights + std::max(copied, caches + scratch); }
};

// INVALID_ARGUMENT as Engine::PagesFor. `config` and `weights` are the file's own.
absl::StatusOr<MemoryPlan> PlanMemory(const GgufFile& file, const ModelConfig& config, const Weights& weights,
                                      const MemoryQuestion& question);

}  // namespace ebb

#endif  // EBB_ENGINE_MEMORY_PLAN_H_
