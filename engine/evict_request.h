// Eviction on a caller's word: by token range, by keep scores, by age, by exact slots.

#ifndef EBB_ENGINE_EVICT_REQUEST_H_
#define EBB_ENGINE_EVICT_REQUEST_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/cache_work.h"
#include "engine/policy_swap.h"
#include "engine/session_on_engine.h"

namespace ebb {

// Errors as Engine::Evict states them. Nothing changes unless everything can be done. `calibration` is the model's;
// `session` and what `device` points to outlive the work.
absl::StatusOr<std::unique_ptr<EvictWork>> BeginEvictOf(const EvictRequest& request, const Device& device,
                                                        const CalibrationOr& calibration, SessionOnEngine& session);

}  // namespace ebb

#endif  // EBB_ENGINE_EVICT_REQUEST_H_
