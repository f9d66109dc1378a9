#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/lab.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct LogitsOptions {
  std::string model = {};
  std::vector<int32_t> tokens = {};
  int32_t top = 5;
};

std::vector<int32_t> BestTokens(std::span<const float> logits, int32_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto last = ids.begin() + std::min<std::ptrdiff_t>(count, static_cast<std::ptrdiff_t>(ids.size()));
  std::partial_sort(ids.begin(), last, ids.end(),
                    [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  ids.erase(last, ids.end());
  return ids;
}

void PrintRow(const Lab& lab, int32_t token, std::span<const float> logits, int32_t top) {
  const std::vector<int32_t> best = BestTokens(logits, top);
  if (lab.json) {
    Json line = {{"token", token}};
    for (const int32_t id : best) line["best"].push_back({{"token", id}, {"logit", logits[id]}});
    absl::PrintF("%s\n", line.dump());
    return;
  }
  absl::PrintF("%6d ->", token);
  for (const int32_t id : best) absl::PrintF("  %d:%.5f", id, logits[id]);
  absl::PrintF("\n");
}

absl::Status RunLogits(const Lab& lab, const LogitsOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  const int32_t vocab = engine->config().vocab;
  for (const int32_t token : options.tokens) {
    if (token >= 0 && token < vocab) continue;
    return absl::InvalidArgumentError(absl::StrFormat("--tokens: %d is not in 0..%d", token, vocab - 1));
  }
  const auto count = static_cast<int32_t>(options.tokens.size());
  EBB_ASSIGN(const ValidSpec policy,
             Resolve({.scorer = "full", .budget = count, .kv_type = KvType::kF32}, LimitsOf(engine->config())));
  EBB_ASSIGN(const std::unique_ptr<Session> session,
             engine->OpenSession({.policy = policy, .block_size_max = engine->step_tokens_max()}));
  for (int32_t first = 0; first < count; first += engine->step_tokens_max()) {
    const int32_t tokens = std::min(engine->step_tokens_max(), count - first);
    BatchRow row = {
        .session = session.get(), .tokens = std::span(options.tokens).subspan(first, tokens), .want = Want::kAll};
    EBB_TRY(session->CanAppend(tokens));
    engine->Run({&row, 1});
    for (int32_t i = 0; i < tokens; ++i) {
      PrintRow(lab, row.tokens[i], row.logits.subspan(static_cast<size_t>(i) * vocab, vocab), options.top);
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AddLogits(Command app, Lab& lab) {
  const Command command = app.add_subcommand("logits", "Print the best next tokens after each token");
  const auto options = std::make_shared<LogitsOptions>();
  command.add_option("FILE", options->model, "Model file (GGUF)").required();
  command.add_option("--tokens", options->tokens, "Token ids, comma-separated").delimiter(',').required();
  command.add_option("--top", options->top, "How many of the best to print").range(1, 1000);
  AddComputeOptions(command, lab);
  command.callback([&lab, options] { lab.Check(RunLogits(lab, *options)); });
}

}  // namespace ebb::lab
