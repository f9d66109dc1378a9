// The tokenizer of a model file, as the file states it.

#ifndef EBB_ENGINE_TEXT_READ_VOCABULARY_H_
#define EBB_ENGINE_TEXT_READ_VOCABULARY_H_

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/text/vocabulary.h"

namespace ebb {

// DATA_LOSS, reason MODEL_DAMAGED, names the file and the key that is missing or of another type. Meaning is not
// checked here (Tokenizer::Make).
absl::StatusOr<Vocabulary> ReadVocabulary(const GgufFile& file);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_READ_VOCABULARY_H_
