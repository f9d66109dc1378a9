// What a session shows of itself while its cache is in a file (server/dispatcher_swap.cc).

#ifndef EBB_SERVER_SWAPPED_SESSION_H_
#define EBB_SERVER_SWAPPED_SESSION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "policies/spec.h"

namespace ebb {

struct SwappedSession {
  uint64_t file = 0;  // its number in the swap folder
  int64_t bytes = 0;  // of the file
  int64_t pages = 0;  // that it needs to come back
  ValidSpec policy = {};
  int64_t tokens = 0;  // of its log
  int32_t cache_length = 0;
  int32_t cache_capacity = 0;
  int64_t live_slots = 0;
  int64_t evicted = 0;
  absl::Status damage = {};  // why it can never come back: DATA_LOSS SWAP_DAMAGED
};

}  // namespace ebb

#endif  // EBB_SERVER_SWAPPED_SESSION_H_
