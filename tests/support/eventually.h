// For what another thread or process does soon.

#ifndef EBB_TESTS_SUPPORT_EVENTUALLY_H_
#define EBB_TESTS_SUPPORT_EVENTUALLY_H_

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ebb {

// Whether it happened, within a minute.
inline bool Eventually(absl::FunctionRef<bool()> happened) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (!happened()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_EVENTUALLY_H_
