// What a port counts of connections that it closed as they came.

#ifndef EBB_SERVER_REFUSED_CONNECTIONS_H_
#define EBB_SERVER_REFUSED_CONNECTIONS_H_

#include "server/metric_family.h"

namespace ebb {

// By why: too few files are left, or its address has, or has begun, as many as it may. The counters outlive the port.
struct RefusedConnections {
  Counter& files;
  Counter& at_once;
  Counter& begun;
};

}  // namespace ebb

#endif  // EBB_SERVER_REFUSED_CONNECTIONS_H_
