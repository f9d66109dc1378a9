#include "policies/head_gates.h"

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {

absl::Status HeadGatesMissing(const std::string& file) {
  const std::string where = file.empty() ? "" : absl::StrFormat("; there is no %s", file);
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("policy.duo: nobody knows which heads of the model look far back%s; find out with "
                                "`ebb-lab heads`, or use another allocation",
                                where),
                {.reason = "HEAD_GATES_MISSING", .field = "policy.duo"});
}

}  // namespace ebb
