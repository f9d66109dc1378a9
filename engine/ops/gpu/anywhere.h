// What the host and a device's kernels both call.

#ifndef EBB_ENGINE_OPS_GPU_ANYWHERE_H_
#define EBB_ENGINE_OPS_GPU_ANYWHERE_H_

#if defined(__CUDACC__) || defined(__HIPCC__)
#define EBB_ANYWHERE __host__ __device__
#else
#define EBB_ANYWHERE
#endif

#endif  // EBB_ENGINE_OPS_GPU_ANYWHERE_H_
