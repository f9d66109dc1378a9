// The order of stopping: a first signal asks for a drain, a second ends the process at once.

#ifndef EBB_SERVER_DRAIN_H_
#define EBB_SERVER_DRAIN_H_

namespace ebb {

// Keeps SIGTERM and SIGINT for WaitForStopSignal. Before any thread is started, since threads inherit it.
void HoldStopSignals();

// Waits for SIGTERM or SIGINT and returns which. From then on another one ends the process the way signals do.
int WaitForStopSignal();

}  // namespace ebb

#endif  // EBB_SERVER_DRAIN_H_
