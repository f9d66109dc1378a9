// The shim: what a kernel may say, for nvcc, for hipcc, and for the host's own compiler, which runs it in the
// emulation. A kernel file includes this, kernels.h and the headers beside them, and nothing else.
//
// Blocks are one-dimensional, of a multiple of 64 threads. Threads work together in two ways: Barrier, which every
// thread of a block reaches, and Shuffle within a team of 32 neighbours, which all threads of a warp execute. A warp
// of 64 is two teams. Since no sum depends on how wide a warp is, neither do the bits of any result.

#ifndef EBB_ENGINE_OPS_GPU_DEVICE_H_
#define EBB_ENGINE_OPS_GPU_DEVICE_H_

#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#elif defined(__HIPCC__)
#include <hip/hip_runtime.h>
#else
#include "engine/ops/gpu/emulation.h"
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)
#define EBB_DEVICE __device__ __forceinline__
#define EBB_KERNEL(threads) static __global__ void __launch_bounds__(threads)
// Registers are as many as let so many blocks be on a multiprocessor of NVIDIA's at once.
#if defined(__CUDACC__)
#define EBB_KERNEL_BESIDE(threads, blocks) static __global__ void __launch_bounds__(threads, blocks)
#else
#define EBB_KERNEL_BESIDE(threads, blocks) EBB_KERNEL(threads)
#endif
#define EBB_SHARED __shared__
#define EBB_UNROLL _Pragma("unroll")
#define EBB_ROLLED _Pragma("nounroll")  // for the compiler's sake: a loop within many that are unrolled
#else
// A kernel has its threads' shared memory to itself: blocks are emulated one at a time.
#define EBB_DEVICE inline __attribute__((always_inline))
#define EBB_KERNEL(threads) static void
#define EBB_KERNEL_BESIDE(threads, blocks) static void
#define EBB_SHARED static
#define EBB_UNROLL
#define EBB_ROLLED
#endif

namespace ebb::gpu::EBB_GPU_TARGET {

inline constexpr int32_t kTeam = 32;

// Bytes of shared memory that a block may have: of its own declarations and of what its launch asks for together. All
// of NVIDIA's devices from sm_80 on have 99 KB; AMD's have 64.
#if defined(__HIPCC__)
inline constexpr int32_t kSharedMax = 64 << 10;
#else
inline constexpr int32_t kSharedMax = 99 << 10;
#endif

// As a large device has them; by how many blocks there are for each, launches choose what bits do not depend on. The
// emulation has few, so that tests meet every choice.
#if defined(__CUDACC__) || defined(__HIPCC__)
inline constexpr int32_t kMultiprocessors = 132;
#else
inline constexpr int32_t kMultiprocessors = 4;
#endif

// Whether a kernel may begin before the one before it has ended (LaunchEarly).
bool MayBeginEarly(const void* kernel);

// Whether a launch is to be made, after what has to be asked of the device for it (launch.cc). `file` is the kernel's,
// `shared` what the launch asks for, bytes.
bool MayLaunch(const void* kernel, const char* file, int32_t shared);

// What a device says of a kernel: shared memory for a block, bytes, and what it was compiled for.
struct SharedRoom {
  int32_t declared = 0;  // by the kernel itself
  int32_t there = 0;     // on the device
  int32_t code = 0;      // of NVIDIA's, the capability that the kernel in use is made for, times ten
  const char* error = nullptr;
};

#if defined(__CUDACC__) || defined(__HIPCC__)

EBB_DEVICE int32_t ThreadIndex() { return static_cast<int32_t>(threadIdx.x); }
EBB_DEVICE int32_t BlockX() { return static_cast<int32_t>(blockIdx.x); }
EBB_DEVICE int32_t BlockY() { return static_cast<int32_t>(blockIdx.y); }
EBB_DEVICE int32_t BlockZ() { return static_cast<int32_t>(blockIdx.z); }
EBB_DEVICE void Barrier() { __syncthreads(); }
template <typename T>
EBB_DEVICE T ShuffleXor(T value, int32_t mask) {
#if defined(__CUDACC__)
  return __shfl_xor_sync(0xFFFFFFFFU, value, mask, kTeam);
#else
  return __shfl_xor(value, mask, kTeam);
#endif
}
// A team's threads come together again, which some of them left a branch or a loop early: tensor cores want all at
// once.
EBB_DEVICE void SyncTeam() {
#if defined(__CUDACC__)
  __syncwarp();
#endif
}
// `lane` 0 .. 31 of the team; each thread its own.
template <typename T>
EBB_DEVICE T Shuffle(T value, int32_t lane) {
#if defined(__CUDACC__)
  return __shfl_sync(0xFFFFFFFFU, value, lane, kTeam);
#else
  return __shfl(value, lane, kTeam);
#endif
}
// Words that each thread of a team made, for all of it to read, each the one it likes. The team reads at once, and
// before it meets again in any other way.
template <int32_t kCount>
class TeamWords {
  static_assert(kCount <= 8);

 public:
  EBB_DEVICE explicit TeamWords(const uint32_t (&words)[kCount]) {
    EBB_UNROLL
    for (int32_t i = 0; i < kCount; ++i) own_[i] = words[i];
  }
  // `word` is the same for all; `lane` 0 .. 31 is each thread's own.
  EBB_DEVICE uint32_t Of(int32_t word, int32_t lane) const { return Shuffle(own_[word], lane); }

 private:
  uint32_t own_[kCount];
};
// To a number in shared memory, by any thread at any time between two barriers.
EBB_DEVICE void AddShared(int32_t* to, int32_t value) { atomicAdd(to, value); }
EBB_DEVICE int32_t CountBits(uint32_t bits) { return __popc(bits); }
// To a number in the device's memory, by any thread of any block; what it was before.
EBB_DEVICE int32_t AddDevice(int32_t* to, int32_t value) { return atomicAdd(to, value); }
// What this thread wrote before it is there for whoever sees what it writes after it, in any block; who saw that calls
// it, too, before it reads.
EBB_DEVICE void FenceDevice() { __threadfence(); }
// What this thread wrote before it and a Barrier that follows is what a FenceDevice of any thread behind that passes
// on. NVIDIA's fences pass on whatever their thread may see; AMD's wait for their own wave alone.
EBB_DEVICE void FenceBlock() {
#if defined(__HIPCC__)
  __threadfence();
#endif
}
// Of memory that nobody writes meanwhile, and that is not read again soon: it need not push out what is. `T` is of 4, 8
// or 16 bytes and aligned so.
template <typename T>
EBB_DEVICE T ReadOnce(const T* from) {
#if defined(__CUDA_ARCH__)
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  union {
    uint32_t word[sizeof(T) / 4];
    T value;
  } to;
  if constexpr (sizeof(T) == 16) {
    asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
        : "l"(from));
  } else if constexpr (sizeof(T) == 8) {
    asm("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
        : "=r"(to.word[0]), "=r"(to.word[1])
        : "l"(from));
  } else {
    // Neighbours read the rest of the sector.
    asm("ld.global.nc.L2::128B.u32 %0, [%1];" : "=r"(to.word[0]) : "l"(from));
  }
  return to.value;
#else
  return *from;
#endif
}
// In a kernel that is launched by LaunchEarly, which may begin while the one before it still runs: here that one is
// over, and what it wrote is there. Until here
//
//   writes   nothing, but in shared memory; and what lies in EBB_SHARED is not read after it, as the emulation lends
//            that to the kernel before
//   reads    what the kernel before does not write: weights and tables, which no kernel writes; views of sessions,
//            copied in before a step; pages, positions and where tokens were placed: of a step only fill_holes and
//            place write those, before its layers, and evict, behind them, which are launched plainly
//
// What came before the one before is done: LetLaterBegin is called behind this, and in each launch one block at least
// waits, without which not all of its blocks have ended or called it. Blocks that have nothing to do may end at once.
EBB_DEVICE void WaitForEarlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}
// In such a kernel, behind its WaitForEarlier: the next launch, if it is such a one, may begin, when a thread of each
// block has called this or its block has ended; without it, when all have ended. Its blocks come up to their wait, and
// what they fetch (W, norms' weights, who sits where) is on its way while this launch ends.
//
// Those that stand there take no place from blocks of this launch, all of which have one by then, and from nobody else:
// what follows them begins behind their own call. They share the memory's bandwidth: attention, behind which W is
// fetched, calls it when K and V are there.
EBB_DEVICE void LetLaterBegin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}
EBB_DEVICE float MultiplyAdd(float a, float b, float c) { return fmaf(a, b, c); }
EBB_DEVICE float Exp(float x) { return expf(x); }
// The same pointer, of which the compiler then knows that it is not to shared memory: so reads may overtake what is
// done there.
template <typename T>
EBB_DEVICE T* NotShared(T* pointer) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(pointer));
#endif
  return pointer;
}
EBB_DEVICE float Log2(float x) { return log2f(x); }
// 2^x, but 0 where that is no normal number: one instruction of NVIDIA's devices. Exactly 1 of 0, and 0 of -inf.
EBB_DEVICE float Exp2Normal(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}
// The one that is a number, where one is not.
EBB_DEVICE float LargerNumber(float a, float b) { return fmaxf(a, b); }
// Sixteen bytes of the device's memory to shared memory, both aligned so (neighbours want the rest of the line), some
// time before this thread's CopiesArrived. Other threads have them after a Barrier that follows it. CloseCopies ends a
// group of them; CopiesArrived(later) waits for all but the `later` groups that were closed last, and with 0 for all
// copies, closed or not.
//
// SharedAt: where something lies in shared memory, to which bytes can be added; found once, it costs no more than that.
#if defined(__CUDACC__)
using SharedAt = uint32_t;
EBB_DEVICE SharedAt AtShared(void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }
#else
using SharedAt = uint8_t*;
EBB_DEVICE SharedAt AtShared(void* shared) { return static_cast<uint8_t*>(shared); }
#endif
EBB_DEVICE void CopyAhead(SharedAt to, const void* from) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
#elif defined(__HIPCC__)
  *reinterpret_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}
EBB_DEVICE void CopyAhead(void* to, const void* from) { CopyAhead(AtShared(to), from); }
EBB_DEVICE void CloseCopies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}
template <int32_t kLater = 0>
EBB_DEVICE void CopiesArrived() {
#if defined(__CUDA_ARCH__)
  if constexpr (kLater == 0) {
    asm volatile("cp.async.wait_all;" : : : "memory");
  } else {
    asm volatile("cp.async.wait_group %0;" : : "n"(kLater) : "memory");
  }
#endif
}
// Shared memory of as many bytes as the launch asked for, aligned to 16.
template <typename T>
EBB_DEVICE T* LaunchShared() {
#if defined(__CUDACC__)
  extern __shared__ __align__(16) unsigned char ebb_launch_shared[];
  return reinterpret_cast<T*>(ebb_launch_shared);
#else
  HIP_DYNAMIC_SHARED(unsigned char, ebb_launch_shared)
  return reinterpret_cast<T*>(ebb_launch_shared);
#endif
}
EBB_DEVICE float Sqrt(float x) { return sqrtf(x); }
EBB_DEVICE double Sqrt(double x) { return sqrt(x); }
EBB_DEVICE float InverseSqrt(float x) { return 1.0F / sqrtf(x); }
EBB_DEVICE uint32_t BitsOf(float x) { return __float_as_uint(x); }
EBB_DEVICE float FloatOf(uint32_t bits) { return __uint_as_float(bits); }

// grid: up to three numbers of blocks. shared: bytes of LaunchShared.
struct Grid {
  int64_t x = 1, y = 1, z = 1;
};
template <typename Args>
void Launch(void (*kernel)(Args), Grid grid, int32_t threads, const Args& args, void* stream, int32_t shared = 0,
            const char* file = __builtin_FILE(), bool early = false) {
  if (!MayLaunch(reinterpret_cast<const void*>(kernel), file, shared)) return;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const dim3 blocks(static_cast<uint32_t>(grid.x), static_cast<uint32_t>(grid.y), static_cast<uint32_t>(grid.z));
#if defined(__CUDACC__)
  if (early && MayBeginEarly(reinterpret_cast<const void*>(kernel))) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &attribute;
    config.numAttrs = 1;
    static_cast<void>(cudaLaunchKernelEx(&config, kernel, args));
    return;
  }
  kernel<<<blocks, dim3(threads), shared, static_cast<cudaStream_t>(stream)>>>(args);
#else
  kernel<<<blocks, dim3(threads), shared, static_cast<hipStream_t>(stream)>>>(args);
#endif
}
#else  // the emulation

EBB_DEVICE int32_t ThreadIndex() { return emulation::at.thread; }
EBB_DEVICE int32_t BlockX() { return emulation::at.block[0]; }
EBB_DEVICE int32_t BlockY() { return emulation::at.block[1]; }
EBB_DEVICE int32_t BlockZ() { return emulation::at.block[2]; }
EBB_DEVICE void Barrier(int32_t line = __builtin_LINE()) { emulation::Barrier(line); }
template <typename T>
EBB_DEVICE T ShuffleXor(T value, int32_t mask, int32_t line = __builtin_LINE()) {
  T received;
  emulation::Exchange(&value, &received, sizeof(T), mask, line);
  return received;
}
template <typename T>
EBB_DEVICE T Shuffle(T value, int32_t lane, int32_t line = __builtin_LINE()) {
  return ShuffleXor(value, emulation::at.thread % kTeam ^ lane, line);
}
EBB_DEVICE void SyncTeam() {}
// The team meets once, whatever is read.
template <int32_t kCount>
class TeamWords {
  static_assert(kCount <= 8);

 public:
  EBB_DEVICE explicit TeamWords(const uint32_t (&words)[kCount], int32_t line = __builtin_LINE())
      : published_(emulation::Publish(words, sizeof(words), line)) {}
  EBB_DEVICE uint32_t Of(int32_t word, int32_t lane) const { return emulation::Published(published_, lane)[word]; }

 private:
  int32_t published_;
};
EBB_DEVICE void AddShared(int32_t* to, int32_t value) { *to += value; }
EBB_DEVICE int32_t CountBits(uint32_t bits) { return __builtin_popcount(bits); }
EBB_DEVICE int32_t AddDevice(int32_t* to, int32_t value) {
  const int32_t before = *to;
  *to += value;
  return before;
}
EBB_DEVICE void FenceDevice() {}
EBB_DEVICE void FenceBlock() {}
template <typename T>
EBB_DEVICE T ReadOnce(const T* from) {
  return *from;
}
EBB_DEVICE void WaitForEarlier(int32_t line = __builtin_LINE()) { emulation::WaitForEarlier(line); }
EBB_DEVICE void LetLaterBegin() { emulation::LetLaterBegin(); }
EBB_DEVICE float MultiplyAdd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EBB_DEVICE float Exp(float x) { return __builtin_expf(x); }
template <typename T>
EBB_DEVICE T* NotShared(T* pointer) {
  return pointer;
}
EBB_DEVICE float Log2(float x) { return __builtin_log2f(x); }
EBB_DEVICE float Exp2Normal(float x) { return __builtin_exp2f(x); }
EBB_DEVICE float LargerNumber(float a, float b) { return __builtin_fmaxf(a, b); }
using SharedAt = uint8_t*;
EBB_DEVICE SharedAt AtShared(void* shared) { return static_cast<uint8_t*>(shared); }
EBB_DEVICE void CopyAhead(void* to, const void* from) { emulation::CopyLater(to, from); }
EBB_DEVICE void CloseCopies() { emulation::CloseCopies(); }
template <int32_t kLater = 0>
EBB_DEVICE void CopiesArrived() {
  emulation::CopiesArrived(kLater);
}
template <typename T>
EBB_DEVICE T* LaunchShared() {
  return static_cast<T*>(emulation::LaunchShared());
}
EBB_DEVICE float Sqrt(float x) { return __builtin_sqrtf(x); }
EBB_DEVICE double Sqrt(double x) { return __builtin_sqrt(x); }
EBB_DEVICE float InverseSqrt(float x) { return 1.0F / __builtin_sqrtf(x); }
EBB_DEVICE uint32_t BitsOf(float x) { return __builtin_bit_cast(uint32_t, x); }
EBB_DEVICE float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }

using emulation::Grid;
template <typename Args>
void Launch(void (*kernel)(Args), Grid grid, int32_t threads, const Args& args, void* stream, int32_t shared = 0,
            const char* file = __builtin_FILE(), bool early = false) {
  if (!MayLaunch(reinterpret_cast<const void*>(kernel), file, shared)) return;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  emulation::Enqueue(stream, emulation::Kernel{.grid = grid,
                                               .threads = threads,
                                               .warp = EBB_GPU_WARP,
                                               .shared = shared,
                                               .begins_early = early,
                                               .thread = [kernel, args] { kernel(args); }});
}

#endif

// The same, but that blocks may begin before the kernel before is over: see WaitForEarlier and LetLaterBegin.
template <typename Args>
void LaunchEarly(void (*kernel)(Args), Grid grid, int32_t threads, const Args& args, void* stream, int32_t shared = 0,
                 const char* file = __builtin_FILE()) {
  Launch(kernel, grid, threads, args, stream, shared, file, true);
}

// Of a team; every one of it gets the result.
EBB_DEVICE uint32_t SmallestOfTeam(uint32_t value) {
#if defined(__CUDACC__)
  return __reduce_min_sync(0xFFFFFFFFU, value);
#else
  for (int32_t mask = kTeam / 2; mask > 0; mask /= 2) {
    const uint32_t other = ShuffleXor(value, mask);
    value = other < value ? other : value;
  }
  return value;
#endif
}
EBB_DEVICE int32_t SumOfTeam(int32_t value) {
#if defined(__CUDACC__)
  return __reduce_add_sync(0xFFFFFFFFU, value);
#else
  for (int32_t mask = kTeam / 2; mask > 0; mask /= 2) value += ShuffleXor(value, mask);
  return value;
#endif
}

EBB_DEVICE float Infinity() { return FloatOf(0x7F800000U); }
EBB_DEVICE float MinusInfinity() { return FloatOf(0xFF800000U); }
EBB_DEVICE float Larger(float a, float b) { return a > b ? a : b; }

}  // namespace ebb::gpu::EBB_GPU_TARGET

#endif  // EBB_ENGINE_OPS_GPU_DEVICE_H_
