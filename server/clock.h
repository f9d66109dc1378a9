// The server's clock: the time of day when it was made, and from then on a time that never goes back, whatever happens
// to the machine's own.

#ifndef EBB_SERVER_CLOCK_H_
#define EBB_SERVER_CLOCK_H_

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ebb {

class Clock {
 public:
  absl::Time Now() const { return start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_start_); }

 private:
  std::chrono::steady_clock::time_point steady_start_ = std::chrono::steady_clock::now();
  absl::Time start_ = absl::Now();
};

}  // namespace ebb

#endif  // EBB_SERVER_CLOCK_H_
