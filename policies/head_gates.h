// Which KV heads look far back: what the allocation `duo` goes by. Found by `ebb-lab heads` and kept in a file beside
// the model (engine/model/head_gates_file.h); here it is a value, so that a policy reads no file.

#ifndef EBB_POLICIES_HEAD_GATES_H_
#define EBB_POLICIES_HEAD_GATES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb {

// [layers * kv_heads] layer-major, each in [0, 1]: 1 where a head needs the whole cache, 0 where sinks and a window do.
using HeadGates = std::vector<double>;

// A model's gates, or why there are none: FAILED_PRECONDITION HEAD_GATES_MISSING or HEAD_GATES_FOREIGN.
using HeadGatesOr = absl::StatusOr<std::shared_ptr<const HeadGates>>;

// HEAD_GATES_MISSING, naming the file that is not there, if a name is known, and what would make one.
absl::Status HeadGatesMissing(const std::string& file);

}  // namespace ebb

#endif  // EBB_POLICIES_HEAD_GATES_H_
