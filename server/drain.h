// Signals. The order of stopping: a first one asks for a drain, a second ends the process at once. SIGHUP asks for the
// configuration to be read again.

#ifndef EBB_SERVER_DRAIN_H_
#define EBB_SERVER_DRAIN_H_

#include <functional>

namespace ebb {

// Keeps SIGTERM, SIGINT and SIGHUP for WaitForStopSignal. Before any thread is started, since threads inherit it.
void HoldSignals();

// Waits for SIGTERM or SIGINT and returns which. From then on another one ends the process the way signals do. Calls
// `on_hangup` for each SIGHUP until then.
int WaitForStopSignal(const std::function<void()>& on_hangup);

}  // namespace ebb

#endif  // EBB_SERVER_DRAIN_H_
