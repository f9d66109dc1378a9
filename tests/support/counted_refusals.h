// Connections that a port refused, for tests that need no page of metrics.

#ifndef EBB_TESTS_SUPPORT_COUNTED_REFUSALS_H_
#define EBB_TESTS_SUPPORT_COUNTED_REFUSALS_H_

#include "server/metric_family.h"
#include "server/refused_connections.h"

namespace ebb {

// Outlives the port.
class CountedRefusals {
 public:
  RefusedConnections all() { return {.files = files_, .at_once = at_once_, .begun = begun_}; }

 private:
  Counter files_, at_once_, begun_;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_COUNTED_REFUSALS_H_
