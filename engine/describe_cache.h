// Who sits where in a session's lanes, and how its policy ranks them.

#ifndef EBB_ENGINE_DESCRIBE_CACHE_H_
#define EBB_ENGINE_DESCRIBE_CACHE_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/cache_work.h"
#include "engine/policy_swap.h"
#include "engine/session_on_engine.h"

namespace ebb {

// As Engine::Describe states it. `session` and what `device` points to outlive the work.
absl::StatusOr<std::unique_ptr<DescribeWork>> BeginDescribeOf(const Device& device, const SessionOnEngine& session,
                                                              std::optional<int32_t> layer,
                                                              std::optional<int32_t> head);

}  // namespace ebb

#endif  // EBB_ENGINE_DESCRIBE_CACHE_H_
