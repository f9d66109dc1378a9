// Weights of Q8_0 and Q4_0 as they lie packed (kernels.h): what fast arithmetic reads of them.

#ifndef EBB_ENGINE_OPS_CPU_LINEAR_BYTES_H_
#define EBB_ENGINE_OPS_CPU_LINEAR_BYTES_H_

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

// How one chunk of a panel is read: in eight steps of four k, as bytes of value + 128 in units of its scale.
struct BytesQ8 {
  static constexpr Element kType = Element::kQ8;
  static EBB_INLINE Ints Read(const std::byte* panel, int step) { return LoadBytes(panel + 64 * step); }
  static EBB_INLINE Floats Scale(const std::byte* chunk, int panel) {
    return LoadF16(reinterpret_cast<const uint16_t*>(chunk) + 16 * panel);
  }
};

// Nibbles in the upper half of a byte: sixteen times (value + 8) is 16 value + 128, in units of a sixteenth.
struct BytesQ4 : BytesQ8 {
  static constexpr Element kType = Element::kQ4;
  static EBB_INLINE Ints Read(const std::byte* panel, int step) {
    const Ints eights = LoadBytes(panel + 64 * (step / 2));
    return (step % 2 == 0 ? ShiftLeft<4>(eights) : eights) & Splat(static_cast<int32_t>(0xF0F0F0F0U));
  }
  static EBB_INLINE Floats Scale(const std::byte* chunk, int panel) {
    return BytesQ8::Scale(chunk, panel) * Splat(0x1p-4F);
  }
};

}  // namespace ebb::cpu::EBB_KERNEL_ISA

#endif  // EBB_ENGINE_OPS_CPU_LINEAR_BYTES_H_
