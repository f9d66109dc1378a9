#include "server/draft_model.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "engine/model/calibration_file.h"
#include "engine/model/head_gates_file.h"
#include "policies/status.h"

namespace ebb {
namespace {

// The engine speaks of keys of the model that is served.
absl::Status OfDraft(const absl::Status& status) {
  Refusal refusal = GetRefusal(status);
  const auto renamed = [](const std::string& text) {
    return absl::StrReplaceAll(text, {{"cache.arena", "model.draft_arena"}});
  };
  refusal.field = refusal.field.empty() ? "model.draft" : renamed(refusal.field);
  return Refuse(status.code(), "model.draft: " + renamed(std::string(status.message())), refusal);
}

absl::Status CheckVocabulary(const Tokenizer& draft, const Tokenizer& target, const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("model.draft: %s cannot draft for this model: %s", path, what),
                  {.reason = "DRAFT_VOCABULARY", .field = "model.draft"});
  };
  for (int32_t id = 0; id < std::min(draft.size(), target.size()); ++id) {
    if (draft.TokenText(id) != target.TokenText(id)) {
      return refuse(
          absl::StrFormat("token %d is '%s' there and '%s' here", id, draft.TokenText(id), target.TokenText(id)));
    }
    if (draft.IsStop(id) != target.IsStop(id)) {
      return refuse(absl::StrFormat("token %d, '%s', ends an answer %s only", id, draft.TokenText(id),
                                    draft.IsStop(id) ? "there" : "here"));
    }
  }
  if (draft.size() == target.size()) return absl::OkStatus();
  return refuse(absl::StrFormat("it has %d tokens, and %d are needed", draft.size(), target.size()));
}

}  // namespace

std::string NameOfModel(const ModelConfig& config, const std::string& path) {
  return config.name.empty() ? std::filesystem::path(path).stem().string() : config.name;
}

absl::StatusOr<DraftModel> OpenDraftModel(const DraftModelOptions& options, const EngineOptions& like,
                                          const Tokenizer& tokenizer) {
  EngineOptions opening = like;
  opening.model_path = options.path;
  opening.calibration_path = CalibrationPath(options.path);
  opening.head_gates_path = HeadGatesPath(options.path);
  opening.arena_bytes = options.arena_bytes;
  opening.prefix_share = 0;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Open(opening);
  if (!engine.ok()) return OfDraft(engine.status());
  DraftModel model = {.engine = *std::move(engine)};
  EBB_TRY(CheckVocabulary(model.engine->tokenizer(), tokenizer, options.path));
  const ModelConfig& config = model.engine->config();
  model.name = NameOfModel(config, options.path);
  // Where positions are learned a cache begins anew when they are used up, and should not have to at once.
  const int32_t most = config.positions == PositionKind::kLearned ? std::max(config.context / 2, 1) : config.context;
  const PolicySpec spec = {.budget = std::min(options.budget, most)};  // of the scorer that is the default: streaming
  absl::StatusOr<ValidSpec> policy = Resolve(spec, LimitsOf(config));
  if (!policy.ok()) return OfDraft(policy.status());
  model.policy = *std::move(policy);
  const int32_t block = std::min(kDraftBlock, model.engine->step_tokens_max());
  EBB_ASSIGN(const int64_t pages, model.engine->PagesFor({.policy = model.policy, .block_size_max = block}));
  const EngineMemory memory = model.engine->memory();
  if (pages > memory.pages_total) {
    return RefuseField(
        "ARENA_TOO_SMALL", "model.draft_arena",
        absl::StrFormat("a cache of %d tokens needs %d bytes, the arena has %d; use a larger one, or a "
                        "smaller model.draft_budget",
                        spec.budget.value_or(0), pages * memory.page_bytes, memory.pages_total * memory.page_bytes));
  }
  return model;
}

}  // namespace ebb
