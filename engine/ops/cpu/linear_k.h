// Weights of the K types as they lie packed (kernels.h): what exact and fast arithmetic read of them.

#ifndef EBB_ENGINE_OPS_CPU_LINEAR_K_H_
#define EBB_ENGINE_OPS_CPU_LINEAR_K_H_

#include <cstddef>
#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/linear_tiles.h"
#include "engine/ops/cpu/vec.h"

namespace ebb::cpu::EBB_KERNEL_ISA {

inline constexpr int kSteps = kChunk / 4;

// Where a chunk and the head that it shares lie. A pass begins with a head.
struct KPlace {
  const std::byte* head = nullptr;
  const std::byte* chunk = nullptr;
};
static_assert(kPieceChunks % kSuperChunks == 0);

// How codes are read, as unsigned bytes: in eight steps of four neighbouring k to a lane.
struct CodesQ4K {
  static constexpr Element kType = Element::kQ4K;
  static constexpr int kBits = 4;
  static constexpr int kParts = 1;  // scales of a row in a chunk
  static constexpr bool kHasMinimum = true;
  static EBB_INLINE Ints Low(const std::byte* panel, int step) {
    const Ints eights = LoadBytes(panel + 64 * (step / 2));
    return (step % 2 == 0 ? eights : ShiftRight<4>(eights)) & Splat(0x0F0F0F0F);
  }
  static EBB_INLINE Ints Read(const std::byte* panel, int step) { return Low(panel, step); }
};

struct CodesQ5K : CodesQ4K {
  static constexpr Element kType = Element::kQ5K;
  static constexpr int kBits = 5;
  static EBB_INLINE Ints Read(const std::byte* panel, int step) {
    const Ints fifth = ShiftRight(LoadBytes(panel + 256), step) & Splat(0x01010101);
    return Low(panel, step) ^ ShiftLeft<4>(fifth);
  }
};

struct CodesQ6K : CodesQ4K {
  static constexpr Element kType = Element::kQ6K;
  static constexpr int kBits = 6;
  static constexpr int kParts = 2;
  static constexpr bool kHasMinimum = false;
  static EBB_INLINE Ints Read(const std::byte* panel, int step) {
    const Ints upper = ShiftRight(LoadBytes(panel + 256 + 64 * (step / 4)), 2 * (step % 4)) & Splat(0x03030303);
    return Low(panel, step) ^ ShiftLeft<4>(upper);
  }
};

template <typename Codes>
struct KWeights : Codes {
  static EBB_INLINE KPlace At(const std::byte* group, int32_t chunk) {
    const std::byte* head = group + chunk / kSuperChunks * (kSuperChunks * ChunkBytes(Codes::kType));
    return {head, head + KHeadBytes(Codes::kType) + chunk % kSuperChunks * KChunkBytes(Codes::kType)};
  }
  static EBB_INLINE const std::byte* Panel(const KPlace& at, int panel) {
    return at.chunk + 64 + panel * KPanelBytes(Codes::kType);
  }
  // A code at the top of its byte: 2^kShift (code - 2^(kBits - 1)) + 128, as a product of bytes takes it.
  static constexpr int kShift = 8 - Codes::kBits;
  static EBB_INLINE Ints Bytes(const KPlace& at, int panel, int step) {
    return ShiftLeft<kShift>(Codes::Read(Panel(at, panel), step));
  }
  static EBB_INLINE Floats Scale(const KPlace& at, int panel, int part) {
    return LoadF16(reinterpret_cast<const uint16_t*>(at.head) + 16 * panel) *
           LoadInt8(reinterpret_cast<const int8_t*>(at.chunk) + 32 * part + 16 * panel);
  }
  static EBB_INLINE Floats Minimum(const KPlace& at, int panel) {  // where it has one
    return LoadF16(reinterpret_cast<const uint16_t*>(at.head) + 32 + 16 * panel) *
           LoadInt8(reinterpret_cast<const int8_t*>(at.chunk) + 32 + 16 * panel);
  }
  // The scale of Bytes less 128, and what an offset (kernels.h, RoundedRows) is multiplied by where there is a minimum.
  static EBB_INLINE Floats Unit(const KPlace& at, int panel, int part) {
    return Scale(at, panel, part) * Splat(1.0F / (1 << kShift));
  }
  static EBB_INLINE Floats Middle(const KPlace& at, int panel) {
    const Floats half = Splat(static_cast<float>(1 << (Codes::kBits - 1)));
    return Fnma(Scale(at, panel, 0), half, Minimum(at, panel)) * Splat(1.0F / 128);
  }
};

}  // namespace ebb::cpu::EBB_KERNEL_ISA

#endif  // EBB_ENGINE_OPS_CPU_LINEAR_K_H_
