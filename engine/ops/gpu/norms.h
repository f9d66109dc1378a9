// What kernels of norms are told.

#ifndef EBB_ENGINE_OPS_GPU_NORMS_H_
#define EBB_ENGINE_OPS_GPU_NORMS_H_

#include <cstdint>

namespace ebb::gpu {

// y = x / sqrt(mean(x^2) + eps) * weight, or y += , row by row; y may be x. n is a multiple of 4; all are 16-byte
// aligned.
struct RmsNormArgs {
  const float* x = nullptr;       // [rows][n]
  const float* weight = nullptr;  // [n]
  float* y = nullptr;             // [rows][n]
  int32_t n = 0;
  int32_t rows = 0;
  float eps = 0;
  int32_t add = 0;
};

// y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, row by row; as RmsNormArgs, y may be x.
struct LayerNormArgs {
  const float* x = nullptr;       // [rows][n]
  const float* weight = nullptr;  // [n]
  const float* bias = nullptr;    // [n]
  float* y = nullptr;             // [rows][n]
  int32_t n = 0;
  int32_t rows = 0;
  float eps = 0;
};

// The norm of every query head and KV head of a row by itself, in place. d is a multiple of 16 up to kHeadDimMax.
struct NormHeadsArgs {
  float* x = nullptr;                   // row t, head j at x + t * stride + j * d, the query heads first; aligned alike
  int64_t stride = 0;                   // a multiple of 4
  const float* query_weight = nullptr;  // [d]
  const float* kv_weight = nullptr;     // [d]
  int32_t head_dim = 0;
  int32_t query_heads = 0;
  int32_t kv_heads = 0;
  int32_t rows = 0;
  float eps = 0;
};

}  // namespace ebb::gpu

#endif  // EBB_ENGINE_OPS_GPU_NORMS_H_
