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

void HoldSignals() {
  sigset_t signals = StopSignals();
  sigaddset(&signals, SIGHUP);
  EBB_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
}

int WaitForStopSignal(const std::function<void()>& on_hangup) {
  const sigset_t stops = StopSignals();
  sigset_t signals = stops;
  sigaddset(&signals, SIGHUP);
  int signal = SIGHUP;
  while (signal == SIGHUP) {
    EBB_CHECK(sigwait(&signals, &signal) == 0);
    if (signal == SIGHUP) on_hangup();
  }
  EBB_CHECK(pthread_sigmask(SIG_UNBLOCK, &stops, nullptr) == 0);
  return signal;
}

}  // namespace ebb
