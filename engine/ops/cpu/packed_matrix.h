// A weight matrix repacked for the kernels; kernels.h says how it lies.

#ifndef EBB_ENGINE_OPS_CPU_PACKED_MATRIX_H_
#define EBB_ENGINE_OPS_CPU_PACKED_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/ops.h"
#include "engine/ops/cpu/kernels.h"
#include "engine/parallel.h"
#include "engine/tensor.h"

namespace ebb::cpu {

class PackFile;  // pack_file.h

// Memory aligned to a cache line, or to a huge page where it fills one. Not initialised.
class AlignedBytes {
 public:
  explicit AlignedBytes(int64_t size);
  std::byte* data() const { return data_.get(); }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t size_ = 0;
};

// What PackedPanels takes of a tensor of this type and shape.
int64_t PackedBytes(const TensorView& tensor);

class PackedPanels final : public PackedMatrix {
 public:
  // REQUIRES: cols is a multiple of 32 for the types with blocks of 32, of 256 for the K types. Reads the tensor once,
  // split over `parallel`, unless `file`, which may be null, has it packed. `bias` [rows], or empty.
  PackedPanels(const TensorView& tensor, std::span<const float> bias, Parallel& parallel, PackFile* file = nullptr);

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t bytes() const override { return memory_.size(); }
  std::span<std::byte> packed() const { return {memory_.data(), static_cast<size_t>(memory_.size())}; }

  Element type() const { return type_; }
  int64_t groups() const { return (rows_ + kGroupRows - 1) / kGroupRows; }
  // Fills in what of a call's arguments says which weights: type, weights, outputs, k.
  LinearArgs Group(int64_t group) const;
  // Adds the group's bias to `rows` rows of what its call wrote.
  void AddBias(int64_t group, int64_t rows, float* y, int64_t y_stride) const;

 private:
  int64_t chunks() const { return (cols_ + kChunk - 1) / kChunk; }
  std::byte* GroupAt(int64_t group) const { return memory_.data() + group * chunks() * ChunkBytes(type_); }
  // `rows` is those of one group, in a type that kernels know.
  void PackChunk(const TensorView& rows, int64_t chunk, std::byte* to) const;
  void PackKGroup(const TensorView& rows, std::byte* to) const;

  Element type_;
  int64_t rows_;
  int64_t cols_;
  AlignedBytes memory_;
  std::vector<float> bias_;  // [rows], or empty
};

}  // namespace ebb::cpu

#endif  // EBB_ENGINE_OPS_CPU_PACKED_MATRIX_H_
