// A token and its logit, as a device tells of the largest of a row (LargestArgs) and the sampler takes them. Plain data
// that crosses the border between compilers.

#ifndef EBB_ENGINE_OPS_GPU_TOKEN_LOGIT_H_
#define EBB_ENGINE_OPS_GPU_TOKEN_LOGIT_H_

#include <cstdint>

namespace ebb::gpu {

struct TokenLogit {
  float logit = 0;
  int32_t token = 0;
};

// The most that one launch yields of a row: room for a top_k of 64 behind a window of 64 penalised tokens.
inline constexpr int32_t kLargestMax = 128;

}  // namespace ebb::gpu

#endif  // EBB_ENGINE_OPS_GPU_TOKEN_LOGIT_H_
