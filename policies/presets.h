// Policies with a name: all that PolicySpec can say but the budget, which the caller adds.
//
// `card/...` are those by which the model card of ebb-tiny measures (models/MODEL_CARD.md, "Eviction policies on this
// model"): F32 cache, original positions, every lane for itself. Two are variants under a name of their own: window is
// streaming without sinks, longkey is knorm with the longest keys.

#ifndef EBB_POLICIES_PRESETS_H_
#define EBB_POLICIES_PRESETS_H_

#include <span>
#include <string>
#include <string_view>

#include "policies/spec.h"

namespace ebb {

struct Preset {
  std::string name = {};  // "card/h2o"
  PolicySpec spec = {};   // without a budget
};

// In the order in which users see them. Names are unique.
std::span<const Preset> Presets();

// The preset by name, or null.
const Preset* FindPreset(std::string_view name);

}  // namespace ebb

#endif  // EBB_POLICIES_PRESETS_H_
