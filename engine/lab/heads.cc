#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/lab.h"
#include "engine/lab/progress.h"
#include "engine/lab/table.h"
#include "engine/model/head_gates_file.h"
#include "engine/sampler.h"
#include "policies/hash_random.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct HeadsOptions {
  std::string model = {};
  std::string text = {};
  std::string out = {};
  int32_t samples = 16;
  int32_t length = 512;
  int32_t passage = 96;
  int32_t sinks = 4;
  int32_t recent = 64;
  uint64_t seed = 0;
  TableForm form = TableForm::kText;
};

constexpr int32_t kHeadsBlock = 128;
constexpr int32_t kLeadIn = 8;  // tokens of the repetition that nobody can know yet

// A passage, other text, and the passage again, which only who sees the first one can foretell.
std::vector<std::vector<int32_t>> HeadsSamples(const std::vector<int32_t>& text, const HeadsOptions& options) {
  std::vector<std::vector<int32_t>> samples;
  const int32_t between = options.length - 2 * options.passage;
  const auto last = static_cast<int32_t>(text.size());
  for (int32_t i = 0; i < options.samples; ++i) {
    HashRandom random(options.seed + static_cast<uint64_t>(i));
    const auto passage = text.begin() + random.Uniform(0, last - options.passage);
    const auto other = text.begin() + random.Uniform(0, last - between);
    std::vector<int32_t>& sample = samples.emplace_back(passage, passage + options.passage);
    sample.insert(sample.end(), other, other + between);
    sample.insert(sample.end(), passage, passage + options.passage);
  }
  return samples;
}

// `full` with the heads of gate 0 streaming.
absl::StatusOr<ValidSpec> Policy(const ModelConfig& model, const HeadsOptions& options, HeadGates gates) {
  SpecLimits limits = LimitsOf(model);
  limits.head_gates = std::make_shared<const HeadGates>(std::move(gates));
  return Resolve({.scorer = "full",
                  .budget = options.length,
                  .allocation = Allocation::kDuo,
                  .allocation_parameters = {{"sinks", options.sinks}, {"recent", options.recent}}},
                 limits);
}

// Nats per token of the repetition.
absl::StatusOr<double> Loss(Engine& engine, const ValidSpec& policy, const std::vector<int32_t>& sample,
                            const HeadsOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Session> session,
             engine.OpenSession({.policy = policy, .block_size_max = kHeadsBlock}));
  const auto vocab = static_cast<size_t>(engine.config().vocab);
  const size_t from = sample.size() - options.passage + kLeadIn;  // the first token that counts
  double loss = 0;
  for (size_t first = 0; first < sample.size(); first += kHeadsBlock) {
    const size_t count = std::min<size_t>(kHeadsBlock, sample.size() - first);
    BatchRow row = {.session = session.get(), .tokens = std::span(sample).subspan(first, count)};
    row.want = first + count >= from ? Want::kAll : Want::kNone;
    engine.Run({&row, 1});
    for (size_t next = std::max(first + 1, from); next <= first + count && next < sample.size(); ++next) {
      loss -= LogProbability(row.logits.subspan((next - 1 - first) * vocab, vocab), sample[next]);
    }
  }
  return loss / static_cast<double>(options.passage - kLeadIn);
}

absl::StatusOr<std::vector<double>> Losses(Engine& engine, const HeadsOptions& options, const HeadGates& gates,
                                           const std::vector<std::vector<int32_t>>& samples, Progress& progress) {
  EBB_ASSIGN(const ValidSpec policy, Policy(engine.config(), options, gates));
  std::vector<double> losses;
  for (const std::vector<int32_t>& sample : samples) {
    EBB_ASSIGN(losses.emplace_back(), Loss(engine, policy, sample, options));
    progress.Add(1, "heads");
  }
  return losses;
}

Mean Above(const std::vector<double>& losses, const std::vector<double>& base) {
  std::vector<double> above;
  for (size_t i = 0; i < losses.size(); ++i) above.push_back(losses[i] - base[i]);
  return MeanOf(above);
}

// The share of heads that lose no more than each, itself included.
HeadGates GatesOf(const std::vector<Mean>& lost) {
  std::vector<size_t> order(lost.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](size_t lane) { return lost[lane].value; });
  HeadGates gates(lost.size());
  for (size_t rank = 0; rank < order.size(); ++rank) {
    gates[order[rank]] = static_cast<double>(rank + 1) / static_cast<double>(order.size());
  }
  return gates;
}

absl::Status CheckOptions(const HeadsOptions& options, size_t text) {
  const int32_t between = options.length - 2 * options.passage;
  if (options.passage <= kLeadIn) {
    return absl::InvalidArgumentError(absl::StrFormat("--passage: %d; more than %d", options.passage, kLeadIn));
  }
  if (between < options.sinks + options.recent) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--length: %d leaves %d tokens between the passages, within sight of a streaming head; use at "
                        "least %d",
                        options.length, between, 2 * options.passage + options.sinks + options.recent));
  }
  if (text < static_cast<size_t>(options.length)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d tokens; at least --length %d", options.text, text, options.length));
  }
  return absl::OkStatus();
}

absl::Status RunHeads(const Lab& lab, const HeadsOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_TRY(RefuseWindows(*engine, "heads"));
  EBB_ASSIGN(const std::string text, ReadText(options.text));
  const std::vector<int32_t> tokens = engine->tokenizer().Encode(text);
  EBB_TRY(CheckOptions(options, tokens.size()));
  const ModelConfig& model = engine->config();
  const std::vector<std::vector<int32_t>> samples = HeadsSamples(tokens, options);
  const auto lanes = static_cast<size_t>(model.layers) * model.kv_heads;
  Progress progress(static_cast<int64_t>((lanes + 3) * samples.size()));
  const auto losses = [&](const HeadGates& gates) { return Losses(*engine, options, gates, samples, progress); };
  EBB_ASSIGN(const std::vector<double> full, losses(HeadGates(lanes, 1)));
  std::vector<Mean> lost;
  for (size_t lane = 0; lane < lanes; ++lane) {
    HeadGates gates(lanes, 1);
    gates[lane] = 0;
    EBB_ASSIGN(const std::vector<double> without, losses(gates));
    lost.push_back(Above(without, full));
  }
  const HeadGates gates = GatesOf(lost);
  EBB_ASSIGN(const std::vector<double> half, losses(gates));
  EBB_ASSIGN(const std::vector<double> none, losses(HeadGates(lanes, 0)));
  progress.Clear();
  const std::string out = options.out.empty() ? HeadGatesPath(options.model) : options.out;
  const std::string source = absl::StrFormat(
      "ebb-lab heads: %d repetitions of %d tokens after %d in all, sinks %d, recent %d, seed %d, %s", options.samples,
      options.passage, options.length, options.sinks, options.recent, options.seed, options.text);
  EBB_TRY(WriteHeadGates(out, model, source, gates));

  Table table = {.header = {"layer", "KV head", "nats lost", "gate"}};
  for (size_t lane = 0; lane < lanes; ++lane) {
    const auto layer = static_cast<int32_t>(lane) / model.kv_heads;
    const auto head = static_cast<int32_t>(lane) % model.kv_heads;
    if (lab.json) {
      const Json line = {{"layer", layer},
                         {"head", head},
                         {"lost", lost[lane].value},
                         {"lost_half", lost[lane].half_width},
                         {"gate", gates[lane]}};
      absl::PrintF("%s\n", line.dump());
    }
    table.rows.push_back({absl::StrFormat("%d", layer), absl::StrFormat("%d", head), PlusMinus(lost[lane], 4),
                          absl::StrFormat("%.3f", gates[lane])});
  }
  const Mean half_lost = Above(half, full);
  const Mean none_lost = Above(none, full);
  if (lab.json) {
    const Json line = {{"full", MeanOf(full).value},
                       {"half_lost", half_lost.value},
                       {"all_lost", none_lost.value},
                       {"file", out},
                       {"engine", engine->fingerprint()}};
    absl::PrintF("%s\n", line.dump());
    return absl::OkStatus();
  }
  absl::PrintF("%s", Format(table, options.form));
  absl::PrintF("\nfull: %s nats per token; lost with the lower half streaming: %s, with all: %s\n%s\n",
               PlusMinus(MeanOf(full), 4), PlusMinus(half_lost, 4), PlusMinus(none_lost, 4), out);
  return absl::OkStatus();
}

}  // namespace

void AddHeads(Command app, Lab& lab) {
  const Command command = app.add_subcommand("heads", "Which KV heads look far back, for the allocation duo");
  const auto options = std::make_shared<HeadsOptions>();
  command.add_option("FILE", options->model, "Model file (GGUF)").required();
  command.add_option("TEXT", options->text, "Text file that passages are cut from").required();
  command.add_option("--out", options->out, "File to write; default: the model's path with .heads.json");
  command.add_option("--samples", options->samples, "Repeated passages").range(2, 4096).capture_default_str();
  command.add_option("--length", options->length, "Tokens of a sample").range(32, 1 << 20).capture_default_str();
  command.add_option("--passage", options->passage, "Tokens of the passage that is repeated")
      .range(1, 1 << 18)
      .capture_default_str();
  command.add_option("--sinks", options->sinks, "First tokens that a streaming head keeps")
      .range(0, 1 << 18)
      .capture_default_str();
  command.add_option("--recent", options->recent, "Newest tokens that a streaming head keeps")
      .range(1, 1 << 18)
      .capture_default_str();
  command.add_option("--seed", options->seed, "Of the passages").capture_default_str();
  AddTableOptions(command, options->form);
  AddComputeOptions(command, lab);
  command.footer(
      "A passage of the text, other text, and the passage again: who cannot see the first cannot foretell the second.\n"
      "Lost is what the second costs more, in nats per token, when this head alone keeps the first and the newest\n"
      "tokens; Student's 95 % interval from the spread between samples, paired. The gate is the share of heads that\n"
      "lose no more, so that duo's threshold is the share of heads that stream. It makes one file in one go: what an\n"
      "interruption cuts begins anew.");
  command.callback([&lab, options] { lab.Check(RunHeads(lab, *options)); });
}

}  // namespace ebb::lab
