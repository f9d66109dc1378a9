#include "bench/loops.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace ebb::bench {
namespace {

// 16: the longest latency here is 6 cycles, with two units at most, so 12 would do; AVX2 has 16 registers, and uses 12.
// Each starts from another number (its own index): equal ones would be one to the compiler, and the loop wait for it.
constexpr int kMany = 16;

// An empty instruction that is said to change `x`: the compiler must compute again what depends on it.
#define EBB_FORGET(constraint, x) asm volatile("" : "+" constraint(x))

double FmaScalar(int64_t rounds) {
  float a = 1, b = 1e-3F;
  float sum[kMany];
  for (int i = 0; i < kMany; ++i) sum[i] = static_cast<float>(i);
  for (int64_t r = 0; r < rounds; ++r) {
    EBB_FORGET("m", a);
    for (float& s : sum) s += a * b;
  }
  double all = 0;
  for (const float s : sum) all += static_cast<double>(s);
  return all;
}

double Int8Scalar(int64_t rounds) {
  int8_t a[kMany] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  uint32_t sum[kMany];
  for (uint32_t i = 0; i < kMany; ++i) sum[i] = i;
  for (int64_t r = 0; r < rounds; ++r) {
    EBB_FORGET("m", a);
    for (int i = 0; i < kMany; ++i) sum[i] += static_cast<uint32_t>(a[i] * a[kMany - 1 - i]);
  }
  double all = 0;
  for (const uint32_t s : sum) all += s;
  return all;
}

double ClockScalar(int64_t rounds) {
  uint64_t sum = 0, one = 1;
  for (int64_t r = 0; r < rounds; r += 32) {  // many between two jumps, of which two threads of a core share the rate
#pragma GCC unroll 32
    for (int i = 0; i < 32; ++i) {
#ifdef __x86_64__
      asm volatile("add %1, %0" : "+r"(sum) : "r"(one));  // a register: additions of constants may cost nothing
#else
      sum += one;
      EBB_FORGET("r", sum);
#endif
    }
  }
  return static_cast<double>(sum);
}

uint64_t ReadScalar(const std::byte* data, int64_t bytes) {
  const auto* from = reinterpret_cast<const uint64_t*>(data);
  uint64_t sum[8] = {};
  for (int64_t i = 0; i < bytes / 8; i += 8) {
    for (int j = 0; j < 8; ++j) sum[j] += from[i + j];
  }
  uint64_t all = 0;
  for (const uint64_t s : sum) all += s;
  return all;
}

#ifdef __x86_64__

__attribute__((target("avx512f"))) double FmaAvx512(int64_t rounds) {
  __m512 a = _mm512_set1_ps(1), b = _mm512_set1_ps(1e-3F);
  __m512 sum[kMany];
#pragma GCC unroll 16
  for (int i = 0; i < kMany; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
    EBB_FORGET("v", a);
    EBB_FORGET("v", b);
#pragma GCC unroll 16
    for (__m512& s : sum) s = _mm512_fmadd_ps(a, b, s);
  }
#pragma GCC unroll 16
  for (int i = 1; i < kMany; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  return static_cast<double>(sum[0][0]);
}

__attribute__((target("avx512f,avx512bf16"))) double Bf16Avx512(int64_t rounds) {
  auto a = (__m512bh)_mm512_set1_epi16(0x3F80), b = (__m512bh)_mm512_set1_epi16(0x3A80);  // 1, 2^-10
  __m512 sum[kMany];
#pragma GCC unroll 16
  for (int i = 0; i < kMany; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
    EBB_FORGET("v", a);
    EBB_FORGET("v", b);
#pragma GCC unroll 16
    for (__m512& s : sum) s = _mm512_dpbf16_ps(s, a, b);
  }
#pragma GCC unroll 16
  for (int i = 1; i < kMany; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  return static_cast<double>(sum[0][0]);
}

__attribute__((target("avx512f,avx512vnni"))) double Int8Avx512Vnni(int64_t rounds) {
  __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  __m512i sum[kMany];
#pragma GCC unroll 16
  for (int i = 0; i < kMany; ++i) sum[i] = _mm512_set1_epi32(i);
  for (int64_t r = 0; r < rounds; ++r) {
    EBB_FORGET("v", a);
    EBB_FORGET("v", b);
#pragma GCC unroll 16
    for (__m512i& s : sum) s = _mm512_dpbusd_epi32(s, a, b);
  }
#pragma GCC unroll 16
  for (int i = 1; i < kMany; ++i) sum[0] = _mm512_add_epi32(sum[0], sum[i]);
  return static_cast<double>(static_cast<int32_t>(sum[0][0]));
}

__attribute__((target("avx512f"))) uint64_t ReadAvx512(const std::byte* data, int64_t bytes) {
  __m512i sum[8];
#pragma GCC unroll 8
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  for (int64_t i = 0; i < bytes; i += 512) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sum[j] = _mm512_add_epi64(sum[j], _mm512_load_si512(data + i + 64 * j));
  }
#pragma GCC unroll 8
  for (int j = 1; j < 8; ++j) sum[0] = _mm512_add_epi64(sum[0], sum[j]);
  uint64_t all = 0;
  for (int i = 0; i < 8; ++i) all += static_cast<uint64_t>(sum[0][i]);
  return all;
}

constexpr int kFew = 12;

__attribute__((target("avx2,fma"))) double FmaAvx2(int64_t rounds) {
  __m256 a = _mm256_set1_ps(1), b = _mm256_set1_ps(1e-3F);
  __m256 sum[kFew];
#pragma GCC unroll 16
  for (int i = 0; i < kFew; ++i) sum[i] = _mm256_set1_ps(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
    EBB_FORGET("x", a);
    EBB_FORGET("x", b);
#pragma GCC unroll 16
    for (__m256& s : sum) s = _mm256_fmadd_ps(a, b, s);
  }
#pragma GCC unroll 16
  for (int i = 1; i < kFew; ++i) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  return static_cast<double>(sum[0][0]);
}

__attribute__((target("avx2,avxvnni"))) double Int8AvxVnni(int64_t rounds) {
  __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
  __m256i sum[kFew];
#pragma GCC unroll 16
  for (int i = 0; i < kFew; ++i) sum[i] = _mm256_set1_epi32(i);
  for (int64_t r = 0; r < rounds; ++r) {
    EBB_FORGET("x", a);
    EBB_FORGET("x", b);
#pragma GCC unroll 16
    for (__m256i& s : sum) s = _mm256_dpbusd_avx_epi32(s, a, b);
  }
#pragma GCC unroll 16
  for (int i = 1; i < kFew; ++i) sum[0] = _mm256_add_epi32(sum[0], sum[i]);
  return static_cast<double>(static_cast<int32_t>(sum[0][0]));
}

// Without dot products: bytes to 16 bits, 16 bits to 32, and added.
__attribute__((target("avx2"))) double Int8Avx2(int64_t rounds) {
  __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum[kFew];
#pragma GCC unroll 16
  for (int i = 0; i < kFew; ++i) sum[i] = _mm256_set1_epi32(i);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (__m256i& s : sum) {
      EBB_FORGET("x", a);
      EBB_FORGET("x", b);
      s = _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    }
  }
#pragma GCC unroll 16
  for (int i = 1; i < kFew; ++i) sum[0] = _mm256_add_epi32(sum[0], sum[i]);
  return static_cast<double>(static_cast<int32_t>(sum[0][0]));
}

__attribute__((target("avx2"))) uint64_t ReadAvx2(const std::byte* data, int64_t bytes) {
  __m256i sum[8];
#pragma GCC unroll 8
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (int64_t i = 0; i < bytes; i += 256) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      sum[j] = _mm256_add_epi64(sum[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
    }
  }
#pragma GCC unroll 8
  for (int j = 1; j < 8; ++j) sum[0] = _mm256_add_epi64(sum[0], sum[j]);
  uint64_t all = 0;
  for (int i = 0; i < 4; ++i) all += static_cast<uint64_t>(sum[0][i]);
  return all;
}

#endif

}  // namespace

ArithmeticLoop FmaLoop() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) {
    return {.instruction = "vfmadd zmm", .accumulators = kMany, .operations = kMany * 32, .run = FmaAvx512};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {.instruction = "vfmadd ymm", .accumulators = kFew, .operations = kFew * 16, .run = FmaAvx2};
  }
#endif
  return {.instruction = "as compiled", .accumulators = kMany, .operations = kMany * 2, .run = FmaScalar};
}

ArithmeticLoop Bf16Loop() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512bf16")) {
    return {.instruction = "vdpbf16ps zmm", .accumulators = kMany, .operations = kMany * 64, .run = Bf16Avx512};
  }
#endif
  return FmaLoop();  // what BF16 is computed with where there is no instruction for it
}

ArithmeticLoop Int8Loop() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512vnni")) {
    return {.instruction = "vpdpbusd zmm", .accumulators = kMany, .operations = kMany * 128, .run = Int8Avx512Vnni};
  }
  if (__builtin_cpu_supports("avxvnni")) {
    return {.instruction = "vpdpbusd ymm", .accumulators = kFew, .operations = kFew * 64, .run = Int8AvxVnni};
  }
  if (__builtin_cpu_supports("avx2")) {
    return {.instruction = "vpmaddubsw, vpmaddwd, vpaddd ymm",
            .accumulators = kFew,
            .operations = kFew * 64,
            .run = Int8Avx2};
  }
#endif
  return {.instruction = "as compiled", .accumulators = kMany, .operations = kMany * 2, .run = Int8Scalar};
}

ArithmeticLoop ClockLoop() { return {.instruction = "add", .accumulators = 1, .operations = 1, .run = ClockScalar}; }

ReadLoop BestReadLoop() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return {.instruction = "vpaddq zmm", .run = ReadAvx512};
  if (__builtin_cpu_supports("avx2")) return {.instruction = "vpaddq ymm", .run = ReadAvx2};
#endif
  return {.instruction = "as compiled", .run = ReadScalar};
}

}  // namespace ebb::bench
