// A model as hubs lay it out: a folder with config.json, generation_config.json, and safetensors files, several of them
// with model.safetensors.index.json. It becomes a GgufFile: the same keys, tensors by our names, in our layout, so that
// whatever reads GGUF reads it, and its tokenizer (hub_tokenizer.h).
//
// Matrices that lie as we want them stay mapped; those that other engines lay out otherwise (hub_table.h), the experts
// of a mixture, and vectors in F16 or BF16, which become F32, are copied to memory.

#ifndef EBB_ENGINE_MODEL_HUB_MODEL_H_
#define EBB_ENGINE_MODEL_HUB_MODEL_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/model/hub_tokenizer.h"

namespace ebb {

// `folder` stands for the model in messages. Errors name file and place:
//   NOT_FOUND            FILE_UNREADABLE: config.json or a file of tensors is missing
//   DATA_LOSS            MODEL_DAMAGED: safetensors.h; a value of another kind than it should be; a tensor that is
//                        missing, in two files, or not where the index says
//   FAILED_PRECONDITION  UNSUPPORTED_ARCHITECTURE: model_type is none of hub_table.h; UNSUPPORTED_MODEL_FEATURE: a
//                        value or a tensor that would make it another model; UNSUPPORTED_TENSOR_TYPE
absl::StatusOr<GgufFile> ReadHubModel(const std::string& folder, const ReadHubFile& read);

// A model by its path: a folder as above, else a GGUF file (GgufFile::Open).
absl::StatusOr<GgufFile> OpenModel(const std::string& path);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_HUB_MODEL_H_
