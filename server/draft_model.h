// The model that drafts for another: opened beside it, and held to its vocabulary.

#ifndef EBB_SERVER_DRAFT_MODEL_H_
#define EBB_SERVER_DRAFT_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "policies/spec.h"

namespace ebb {

struct DraftModelOptions {
  std::string path = {};            // of its file; empty: there is none
  int32_t budget = 1024;            // tokens of a session that it sees, >= 16
  int64_t arena_bytes = 256 << 20;  // of its caches
};

struct DraftModel {
  std::unique_ptr<Engine> engine = {};  // null: there is none
  ValidSpec policy = {};                // of its caches: whatever a session's log comes to, they stay within the budget
  std::string name = {};                // what clients call it
};

// Tokens that one step of the draft model takes of a session.
inline constexpr int32_t kDraftBlock = 128;

// `like` is how the model was opened that it drafts for. Errors of Engine::Open, naming model.draft;
// FAILED_PRECONDITION DRAFT_VOCABULARY, naming the first token that differs; INVALID_ARGUMENT ARENA_TOO_SMALL where not
// one cache fits the arena.
absl::StatusOr<DraftModel> OpenDraftModel(const DraftModelOptions& options, const EngineOptions& like,
                                          const Tokenizer& tokenizer);

// The file's general.name, else its file name.
std::string NameOfModel(const ModelConfig& config, const std::string& path);

}  // namespace ebb

#endif  // EBB_SERVER_DRAFT_MODEL_H_
