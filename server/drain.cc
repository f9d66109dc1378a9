#include "server/drain.h"

#include <pthread.h>
#include <signal.h>

#include "policies/check.h"

namespace ebb {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

void HoldStopSignals() {
  const sigset_t signals = StopSignals();
  EBB_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
}

int WaitForStopSignal() {
  const sigset_t signals = StopSignals();
  int signal = 0;
  EBB_CHECK(sigwait(&signals, &signal) == 0);
  EBB_CHECK(pthread_sigmask(SIG_UNBLOCK, &signals, nullptr) == 0);
  return signal;
}

}  // namespace ebb
