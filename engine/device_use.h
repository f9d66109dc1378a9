// A device that computes sessions (gpu/placed_engine.h), and what it has done since it was opened.

#ifndef EBB_ENGINE_DEVICE_USE_H_
#define EBB_ENGINE_DEVICE_USE_H_

#include <cstdint>
#include <string_view>

namespace ebb {

// Steps that lacked memory, by what was done.
struct ShortSteps {
  int64_t halved = 0;      // made two of
  int64_t parted = 0;      // made smaller without an attempt, since a larger one had lacked memory not long before
  int64_t unpinned = 0;    // the host could not pin what they bring and take: copied from and to ordinary memory
  int64_t unrecorded = 0;  // had no room for a recording: launched, and for a while those after it
  int64_t unfit = 0;       // of one session alone: computed by the host

  int64_t all() const { return halved + parted + unpinned + unrecorded + unfit; }
  ShortSteps operator-(const ShortSteps& other) const {
    return {.halved = halved - other.halved,
            .parted = parted - other.parted,
            .unpinned = unpinned - other.unpinned,
            .unrecorded = unrecorded - other.unrecorded,
            .unfit = unfit - other.unfit};
  }
};

// Texts are valid as long as the engine.
struct DeviceUse {
  std::string_view name = {};         // of its kernels' library
  std::string_view description = {};  // its own name, and its driver's version
  std::string_view products = {};     // what multiplies prompts with BF16 weights there, how, and why not the other
  bool failed = false;
  int64_t weight_bytes = 0;
  int64_t page_bytes = 0;
  int64_t pages_total = 0, pages_free = 0;
  int64_t sessions = 0;       // whose caches are there now
  int64_t session_bytes = 0;  // their slot maps, scores and kept rows of logits
  int64_t working_bytes = 0;  // that steps work in
  int64_t brought = 0;        // caches, from the host
  int64_t fetched = 0;        // back to it
  // Steps that bring one token a session, and the others. Seconds are by the device's clock, from a step's first copy
  // in to its last copy out, gaps between launches among them.
  int64_t decode_steps = 0, prefill_steps = 0;
  double decode_seconds = 0, prefill_seconds = 0;
  int64_t replays = 0;       // decode steps from a recording
  int64_t decode_bytes = 0;  // weights, of experts those that rows can choose, K and V that decode steps read
  ShortSteps short_steps = {};
  std::string_view shortage = {};  // what the last of them lacked
  // Rows of logits: left there by their step, copied to the host by it, and fetched of those that were left.
  int64_t rows_kept = 0, rows_copied = 0, rows_fetched = 0;
};

}  // namespace ebb

#endif  // EBB_ENGINE_DEVICE_USE_H_
