// What tells two models apart without reading gigabytes.

#ifndef EBB_ENGINE_MODEL_FINGERPRINT_H_
#define EBB_ENGINE_MODEL_FINGERPRINT_H_

#include <string>

#include "engine/model/architecture.h"
#include "engine/model/gguf.h"

namespace ebb {

// 16 hex digits: FNV-1a over what the forward pass reads of the metadata, and names, shapes and the first bytes of
// every tensor.
std::string ModelFingerprint(const GgufFile& file, const ModelConfig& config);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_FINGERPRINT_H_
