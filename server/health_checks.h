// What whoever supervises the process may ask of it. /healthz and /readyz (http_port.h) and the gRPC health port
// (health_port.h) give the same answers.

#ifndef EBB_SERVER_HEALTH_CHECKS_H_
#define EBB_SERVER_HEALTH_CHECKS_H_

#include <functional>

#include "absl/status/status.h"

namespace ebb {

// Both are called by any thread, and wait for nothing; the message of what they refuse is for people.
struct HealthChecks {
  std::function<absl::Status()> alive = {};  // else it is to be restarted
  std::function<absl::Status()> ready = {};  // takes requests; else none is to be sent to it
};

}  // namespace ebb

#endif  // EBB_SERVER_HEALTH_CHECKS_H_
