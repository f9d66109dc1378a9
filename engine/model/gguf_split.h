// A model in several GGUF files, NAME-00001-of-00003.gguf to NAME-00003-of-00003.gguf. The first has the metadata; each
// says which it is (split.no, from 0), of how many (split.count), and how many tensors they have together
// (split.tensors.count).

#ifndef EBB_ENGINE_MODEL_GGUF_SPLIT_H_
#define EBB_ENGINE_MODEL_GGUF_SPLIT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"

namespace ebb {

inline constexpr int32_t kSplitPartsMax = 99999;  // what five digits can name

// "-00002-of-00003.gguf" for `part` 1 of 3. REQUIRES: 0 <= part < count <= kSplitPartsMax.
std::string SplitSuffix(int32_t part, int32_t count);

// Gives the parts of a model that are not its first, by their names.
using OpenPart = std::function<absl::StatusOr<GgufFile>(const std::string& name)>;

// `first` itself where it is a whole model; else the model of it and the other parts. Errors:
//   NOT_FOUND            FILE_UNREADABLE: a part is missing; names it
//   FAILED_PRECONDITION  UNSUPPORTED_MODEL_FORMAT: `first` is another part, or its name is not that of a first one
//   DATA_LOSS            MODEL_DAMAGED: a part is another model's, has a tensor or a key that does not fit the others;
//                        tensors are missing or too many; names part and byte
absl::StatusOr<GgufFile> JoinSplit(GgufFile first, const OpenPart& open);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_GGUF_SPLIT_H_
