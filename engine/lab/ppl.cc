#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/lab.h"
#include "engine/sampler.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct Options {
  std::string model = {};
  std::string text = {};
  PolicySpec policy = {};
  int32_t block = 128;
  int32_t window = 1024;
  int32_t windows = 8;
};

struct Measured {
  double nll = 0;  // nats, sum over the counted tokens
  int64_t counted = 0;
  int64_t evicted = 0;             // tokens per lane, all windows
  std::vector<int32_t> best = {};  // most likely next token, by counted token
};

// The begin token, where the model has one, and what fits of the text, over and over. INVALID_ARGUMENT where the text
// is too short.
absl::StatusOr<std::vector<std::vector<int32_t>>> CutWindows(const Tokenizer& tokenizer, const Options& options) {
  EBB_ASSIGN(const std::string text, ReadText(options.text));
  const std::vector<int32_t> ids = tokenizer.Encode(text);
  std::vector<int32_t> begin;
  if (tokenizer.adds_bos() && tokenizer.bos()) begin.push_back(*tokenizer.bos());
  const size_t step = static_cast<size_t>(options.window) - begin.size();
  if (ids.size() < step * options.windows) {
    return absl::InvalidArgumentError(absl::StrFormat("%s has %d tokens, but %d windows of %d need %d", options.text,
                                                      ids.size(), options.windows, options.window,
                                                      step * options.windows));
  }
  std::vector<std::vector<int32_t>> windows;
  for (size_t first = 0; first < step * options.windows; first += step) {
    windows.push_back(begin);
    windows.back().insert(windows.back().end(), ids.begin() + static_cast<std::ptrdiff_t>(first),
                          ids.begin() + static_cast<std::ptrdiff_t>(first + step));
  }
  return windows;
}

// Streams the window through a session in blocks and adds what its second half costs.
absl::Status MeasureWindow(Engine& engine, const ValidSpec& policy, const std::vector<int32_t>& window, int32_t block,
                           Measured& measured) {
  EBB_ASSIGN(const std::unique_ptr<Session> session, engine.OpenSession({.policy = policy, .block_size_max = block}));
  const auto vocab = static_cast<size_t>(engine.config().vocab);
  const size_t half = window.size() / 2;
  for (size_t first = 0; first < window.size(); first += block) {
    const size_t count = std::min<size_t>(block, window.size() - first);
    EBB_TRY(session->CanAppend(static_cast<int32_t>(count)));
    BatchRow row = {.session = session.get(), .tokens = std::span(window).subspan(first, count), .want = Want::kAll};
    engine.Run({&row, 1});
    for (size_t next = std::max(first + 1, half); next <= first + count && next < window.size(); ++next) {
      const std::span<const float> logits = row.logits.subspan((next - 1 - first) * vocab, vocab);
      measured.nll -= LogProbability(logits, window[next]);
      measured.best.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
      ++measured.counted;
    }
  }
  measured.evicted += session->evicted();
  return absl::OkStatus();
}

absl::StatusOr<Measured> Measure(Engine& engine, const PolicySpec& spec, const Options& options,
                                 const std::vector<std::vector<int32_t>>& windows) {
  EBB_ASSIGN(const ValidSpec policy, Resolve(spec, LimitsOf(engine.config())));
  Measured measured;
  for (const std::vector<int32_t>& window : windows) {
    EBB_TRY(MeasureWindow(engine, policy, window, options.block, measured));
  }
  return measured;
}

absl::Status Run(const Lab& lab, const Options& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_ASSIGN(const auto windows, CutWindows(engine->tokenizer(), options));
  EBB_ASSIGN(const Measured measured, Measure(*engine, options.policy, options, windows));
  const PolicySpec full = {.scorer = "full",
                           .budget = options.window,
                           .kv_type = options.policy.kv_type,
                           .rope_cache = options.policy.rope_cache};
  EBB_ASSIGN(const Measured unevicted, Measure(*engine, full, options, windows));
  int64_t same = 0;
  for (size_t i = 0; i < measured.best.size(); ++i) same += measured.best[i] == unevicted.best[i] ? 1 : 0;
  const double nll = measured.nll / static_cast<double>(measured.counted);
  const double full_nll = unevicted.nll / static_cast<double>(unevicted.counted);
  const double agreement = static_cast<double>(same) / static_cast<double>(measured.counted);
  if (lab.json) {
    const Json line = {{"nll", nll},
                       {"ppl", std::exp(nll)},
                       {"full_nll", full_nll},
                       {"agreement", agreement},
                       {"evicted", measured.evicted},
                       {"tokens", measured.counted},
                       {"engine", engine->fingerprint()}};
    absl::PrintF("%s\n", line.dump());
    return absl::OkStatus();
  }
  absl::PrintF("nll        %.4f nats per token, unevicted %.4f\n", nll, full_nll);
  absl::PrintF("ppl        %.2f, unevicted %.2f\n", std::exp(nll), std::exp(full_nll));
  absl::PrintF("agreement  %.1f %% of best tokens as unevicted\n", 100 * agreement);
  absl::PrintF("evicted    %d tokens per lane\n", measured.evicted);
  absl::PrintF("counted    %d tokens, the second halves of %d windows of %d\n", measured.counted, options.windows,
               options.window);
  return absl::OkStatus();
}

std::string ScorerNames() {
  std::string names;
  for (const ScorerRow& row : ScorerRegistry()) names += absl::StrFormat("%s%s", names.empty() ? "" : ", ", row.name);
  return names;
}

void AddPolicyOptions(CLI::App& command, PolicySpec& policy) {
  static const std::map<std::string, Positions> kPositions = {{"original", Positions::kOriginal},
                                                              {"compacted", Positions::kCompacted}};
  static const std::map<std::string, KvType> kTypes = {
      {"f32", KvType::kF32}, {"bf16", KvType::kBf16}, {"f16", KvType::kF16}};
  static const std::map<std::string, RopeCache> kRopeCaches = {{"fused", RopeCache::kFused}, {"rk", RopeCache::kRk}};
  command.add_option("--policy", policy.scorer, "Scorer: " + ScorerNames())->default_val("streaming");
  command.add_option("--budget", policy.budget, "Tokens per lane; default: the model's trained context");
  command.add_option("--sinks", policy.sinks, "First tokens that stay; default by scorer");
  command.add_option("--recent", policy.recent, "Newest tokens that stay; default by scorer");
  command.add_option("--overflow", policy.overflow, "Tokens above the budget before a lane is pruned; default 1");
  command.add_option("--slack", policy.slack, "Tokens above the budget that pruning may leave, with --max-drop");
  command.add_option("--max-drop", policy.max_drop, "Most tokens dropped at one pruning; 0: no limit");
  command.add_option("--positions", policy.positions, "original or compacted; default by scorer")
      ->transform(CLI::CheckedTransformer(kPositions, CLI::ignore_case).description(""));
  command.add_option("--kv-dtype", policy.kv_type, "Type of K and V: f32, bf16 or f16")
      ->transform(CLI::CheckedTransformer(kTypes, CLI::ignore_case).description(""))
      ->default_str("bf16");
  command.add_option("--rope-cache", policy.rope_cache, "fused, or rk: keep the rotated half of K beside it")
      ->transform(CLI::CheckedTransformer(kRopeCaches, CLI::ignore_case).description(""))
      ->default_str("fused");
}

}  // namespace

void AddPpl(CLI::App& app, Lab& lab) {
  CLI::App* const command = app.add_subcommand("ppl", "Perplexity of a text under a policy, and unevicted");
  const auto options = std::make_shared<Options>();
  command->add_option("FILE", options->model, "Model file (GGUF)")->required();
  command->add_option("TEXT", options->text, "Text file")->required();
  AddPolicyOptions(*command, options->policy);
  command->add_option("--block", options->block, "Tokens per step; eviction follows each")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  command->add_option("--window", options->window, "Tokens of a window, its begin token included")
      ->check(CLI::Range(4, 1 << 20))
      ->capture_default_str();
  command->add_option("--windows", options->windows, "How many windows of the text")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  AddComputeOptions(*command, lab);
  command->footer(
      "The text is cut into windows, each streamed from an empty cache; what the second half of each costs is "
      "counted.");
  command->callback([&lab, options] { lab.Check(Run(lab, *options)); });
}

}  // namespace ebb::lab
