// The file beside a model in which `ebb-lab heads` keeps what the allocation `duo` goes by (policies/allocation.h).
// JSON:
//
//   {"format": "ebb head gates", "version": 1,
//    "model": "9f3c...",                       fingerprint of the model they were found in
//    "source": "...",                          by what, for people
//    "gates": [[gate of each KV head]...]}     a row for each layer; in [0, 1]

#ifndef EBB_ENGINE_MODEL_HEAD_GATES_FILE_H_
#define EBB_ENGINE_MODEL_HEAD_GATES_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "engine/model/architecture.h"
#include "policies/head_gates.h"

namespace ebb {

// models/a.gguf -> models/a.heads.json.
std::string HeadGatesPath(const std::string& model_path);

// The file's gates if they are this model's. FAILED_PRECONDITION HEAD_GATES_MISSING where there is no such file,
// HEAD_GATES_FOREIGN naming both models, both with the file's name and not its folder; DATA_LOSS HEAD_GATES_DAMAGED
// naming file, place and what was expected.
HeadGatesOr ReadHeadGates(const std::string& path, const ModelConfig& model);

// The same of a text that stands in such a file.
HeadGatesOr ParseHeadGates(const std::string& path, const std::string& text, const ModelConfig& model);

// UNAVAILABLE when the file cannot be written. REQUIRES: the gates are the model's.
absl::Status WriteHeadGates(const std::string& path, const ModelConfig& model, const std::string& source,
                            const HeadGates& gates);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_HEAD_GATES_FILE_H_
