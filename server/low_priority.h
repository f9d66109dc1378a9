// Threads that come after the engine's where cores are short.
//
// gRPC parses, answers and throws away whatever is sent to it on threads of its own. Whoever floods the port would take
// the cores from those that compute everybody's next token: as many threads want them, and each gets its share. A
// thread inherits the priority of the one that begins it, so gRPC's are begun by one that has given up some of its own.
//
// So are the acceptors, of the HTTP ports, too: whoever opens connections has each of them taken or closed, which is
// all that an acceptor does. What an HTTP port then reads and answers it does on threads of the engine's priority, of
// which there is a fixed number. A probe waits for its acceptor as a call waits for gRPC.

#ifndef EBB_SERVER_LOW_PRIORITY_H_
#define EBB_SERVER_LOW_PRIORITY_H_

#include <sys/resource.h>

#include <thread>

namespace ebb {

// Steps of nice: about a third of the time that a thread of the engine has, while both want the same core. With 10, a
// tenth, what is written to streams waited longer than floods had cost (docs/benchmarks/runtime.md).
inline constexpr int kNicer = 5;

// Calls `work` on a thread of that priority, and returns when it has. REQUIRES: threads that are begun in it have
// nothing to do with a step, since no thread may raise itself again. Throws std::system_error where there is no thread.
template <typename Work>
void AtLowPriority(const Work& work) {
  std::thread([&work] {
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNicer);  // on Linux, of this thread alone
    work();
  }).join();
}

}  // namespace ebb

#endif  // EBB_SERVER_LOW_PRIORITY_H_
