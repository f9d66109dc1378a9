// Writes a model as a GGUF file, or as several: the same keys, matrices in another type.

#ifndef EBB_ENGINE_MODEL_CONVERT_MODEL_H_
#define EBB_ENGINE_MODEL_CONVERT_MODEL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/tensor.h"

namespace ebb {

struct ConvertOptions {
  std::string output = {};              // with part_bytes the first part's name without its "-00001-of-0000N"
  DType type = DType::kF32;             // of matrices, one of EncodableTypes (encode.h)
  int64_t part_bytes = 0;               // files of about this much data, and one tensor at least; 0: one file
  const GgufFile* tokenizer = nullptr;  // whose keys tokenizer.* take the place of the model's; null: its own. To
                                        // its ends of texts the model's are added, as far as there are keys.
};

struct Converted {
  std::vector<std::string> files = {};
  std::vector<std::string> kept = {};  // matrices whose rows are no whole blocks of the type: F16
  int64_t bytes = 0;
};

// `progress` is told, as it goes, of so many more bytes of the source and the tensor that is written.
using ConvertProgress = std::function<void(int64_t bytes, std::string_view tensor)>;

// A tensor that has the type already is copied as it is; others are made of its numbers, which a quantised source has
// rounded before. Vectors, RoPE factors, a router of experts and learned positions stay or become F32. Files are
// written beside their names and renamed when all are whole and on the disk, the first of several last: an error leaves
// nothing that could be opened. Errors: what GetTensor refuses; DATA_LOSS MODEL_DAMAGED, by tensor, for a number that
// is none; INVALID_ARGUMENT for more parts than can be counted, and for a tokenizer that has not as many tokens as the
// model's embedding has rows; what the system says of the files, without a reason.
absl::StatusOr<Converted> ConvertModel(const GgufFile& model, const ConvertOptions& options,
                                       const ConvertProgress& progress);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_CONVERT_MODEL_H_
