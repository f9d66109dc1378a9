// Work that may never come back, as where a file system is away: a thread of its own does it, and is waited for no
// longer than is said.

#ifndef EBB_SERVER_FINISHED_WITHIN_H_
#define EBB_SERVER_FINISHED_WITHIN_H_

#include <functional>
#include <string>

#include "absl/time/time.h"

namespace ebb {

// Has `work` done and waits for it. False where `patience` is over before: its thread is then left to itself, and also
// whoever asks for work of the same name is told so at once, until it has come back. Likewise false where the system
// has no thread. `work` has to own all that it uses: it may outlive everybody. Any thread.
bool FinishedWithin(const std::string& name, absl::Duration patience, std::function<void()> work);

// What is to be said of a file of which nothing came so.
std::string NothingCame(absl::Duration patience);

}  // namespace ebb

#endif  // EBB_SERVER_FINISHED_WITHIN_H_
