// How it stands with a model that the configuration names.

#ifndef EBB_SERVER_MODEL_STATE_H_
#define EBB_SERVER_MODEL_STATE_H_

#include <array>
#include <cstddef>

namespace ebb {

enum class ModelState { kLoading, kServing, kUnloading, kFailed };

// By ModelState.
inline constexpr std::array kModelStateNames = {"loading", "serving", "unloading", "failed"};
inline constexpr size_t kModelStates = kModelStateNames.size();

}  // namespace ebb

#endif  // EBB_SERVER_MODEL_STATE_H_
