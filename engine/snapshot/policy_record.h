// A policy in force as a record of a snapshot: what its caller chose, and what became of it since.

#ifndef EBB_ENGINE_SNAPSHOT_POLICY_RECORD_H_
#define EBB_ENGINE_SNAPSHOT_POLICY_RECORD_H_

#include "absl/status/statusor.h"
#include "engine/snapshot/snapshot_file.h"
#include "policies/spec.h"

namespace ebb {

// `limits` are those it was resolved with; of the calibration a hash is kept, where the scorer goes by one.
void WritePolicy(const ValidSpec& policy, const SpecLimits& limits, SnapshotWriter& to);

// Resolves the choices anew, so that none can be one that Resolve refuses, and puts the numbers that changed since in
// their place, each within its range. NOT_FOUND UNKNOWN_SCORER; FAILED_PRECONDITION SNAPSHOT_FOREIGN when the
// calibration is another, and what Resolve says where it or the head gates are missing; SNAPSHOT_DAMAGED.
absl::StatusOr<ValidSpec> ReadPolicy(const SnapshotRecord& record, const SpecLimits& limits);

}  // namespace ebb

#endif  // EBB_ENGINE_SNAPSHOT_POLICY_RECORD_H_
