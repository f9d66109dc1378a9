// Where a session is computed, on a host whose model may have a device beside it (gpu/placed_engine.h).

#ifndef EBB_ENGINE_PLACEMENT_H_
#define EBB_ENGINE_PLACEMENT_H_

#include <array>
#include <string>
#include <string_view>

namespace ebb {

// Why the host computes a session of a model that has a device.
enum class WhyHost {
  kNone,     // it does not, or there is no device
  kPolicy,   // a device does not follow it
  kKvType,   // of K and V: another than the device's
  kSize,     // its cache does not fit the device's arena, were it empty
  kHistory,  // what was done to it left what a device cannot go on from
  kFailed,   // the device has
};
// How metrics name all but the first.
inline constexpr std::array<std::string_view, 5> kWhyHost = {"policy", "kv_type", "size", "history", "failed"};

struct Placement {
  std::string worker = "cpu";  // or a device's library and number: cuda:0
  WhyHost why = WhyHost::kNone;
  std::string reason = {};  // that, in words; empty with kNone
};

}  // namespace ebb

#endif  // EBB_ENGINE_PLACEMENT_H_
