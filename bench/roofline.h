// The roofline: a machine reads so many bytes and does so many operations in a second; what takes the longer decides.

#ifndef EBB_BENCH_ROOFLINE_H_
#define EBB_BENCH_ROOFLINE_H_

#include <algorithm>

namespace ebb::bench {

// What there is to do. An operation is a multiplication or an addition: a multiply-add counts two.
struct Work {
  double bytes = 0;  // read from memory
  double int8 = 0;   // operations of int8 dot products
  double bf16 = 0;   // of BF16 dot products
  double fma = 0;    // of float32 multiply-adds

  Work& operator+=(const Work& other) {
    bytes += other.bytes, int8 += other.int8, bf16 += other.bf16, fma += other.fma;
    return *this;
  }
  Work operator*(double times) const {
    return {.bytes = bytes * times, .int8 = int8 * times, .bf16 = bf16 * times, .fma = fma * times};
  }
  bool operator==(const Work&) const = default;
};

// What a machine was measured to do, per second, in the units of Work.
struct Rates {
  double read = 0;
  double int8 = 0;
  double bf16 = 0;
  double fma = 0;
};

// Reading goes on beside arithmetic; kinds of arithmetic share the cores, so their times add up. REQUIRES: rates > 0.
inline double RooflineSeconds(const Work& work, const Rates& rates) {
  return std::max(work.bytes / rates.read, work.int8 / rates.int8 + work.bf16 / rates.bf16 + work.fma / rates.fma);
}

}  // namespace ebb::bench

#endif  // EBB_BENCH_ROOFLINE_H_
