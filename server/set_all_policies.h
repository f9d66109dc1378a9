// One policy for all sessions of a tenant, one session between two steps: each is asked for when the one before has
// answered.

#ifndef EBB_SERVER_SET_ALL_POLICIES_H_
#define EBB_SERVER_SET_ALL_POLICIES_H_

#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "ebb/v1/eviction.pb.h"
#include "server/dispatcher.h"
#include "server/worker.h"

namespace ebb {

// Any thread. `response` gets a change, or a refusal, for each session that is there; then `done` gets OK or why it is
// not all of them, on the worker's thread: CANCELLED CALL_CANCELLED once `is_cancelled`, which is asked before each
// session; INVALID_ARGUMENT ANSWER_TOO_LARGE, and nothing changed; UNAVAILABLE QUEUE_FULL, on whichever thread found it
// so. What was changed until then stays changed. `worker` and `response` outlive that.
void SetAllPolicies(Worker& worker, std::string tenant, PolicyRequest change, absl::AnyInvocable<bool()> is_cancelled,
                    v1::SetPolicyResponse& response, absl::AnyInvocable<void(const absl::Status&)> done);

}  // namespace ebb

#endif  // EBB_SERVER_SET_ALL_POLICIES_H_
