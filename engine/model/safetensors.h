// Safetensors files: tensors by name, read in place.
//
//   8 bytes: the header's length, little-endian
//   the header, JSON: {"NAME": {"dtype": "F32", "shape": [rows, cols], "data_offsets": [begin, end]}, ...}, offsets
//     from where the header ends; "__metadata__" has texts, which say nothing that we need
//   the data, without holes
//
// Opening checks all of it, as gguf.h does: what comes back lies in the file, fits its shape, and overlaps nothing. A
// damaged file is DATA_LOSS, reason MODEL_DAMAGED, "FILE: byte N: expected ..., found ..." (in the header), or "FILE:
// tensor NAME: expected ..., found ...".
//
// Every view points into the bytes that were read.

#ifndef EBB_ENGINE_MODEL_SAFETENSORS_H_
#define EBB_ENGINE_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb {

// Of a header: the format allows 100 MB, and the largest that are around have two.
inline constexpr int64_t kSafetensorsHeaderMax = int64_t{16} << 20;

struct SafetensorsTensor {
  std::string name = {};
  std::string dtype = {};           // as the file spells it: "BF16"
  std::vector<int64_t> shape = {};  // slowest first; every extent >= 0, the product fits int64
  std::span<const std::byte> data = {};
};

// Tensors in the order of their data. `name` stands for the file in messages; `bytes` outlive the result.
absl::StatusOr<std::vector<SafetensorsTensor>> ReadSafetensors(const std::string& name,
                                                               std::span<const std::byte> bytes);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_SAFETENSORS_H_
