// Learns what the scorer `calibrated` goes by (policies/calibrated.h): the model reads documents on a full cache, and
// at some moments, for each token of each lane, what is known of it then is set against what is still to come. The
// decision record says why so (docs/explanation/decisions/0006-a-calibrated-scorer.md).

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/calibration_texts.h"
#include "engine/lab/lab.h"
#include "engine/lab/progress.h"
#include "engine/lab/ridge.h"
#include "engine/model/calibration_file.h"
#include "policies/calibrated.h"
#include "policies/check.h"
#include "policies/geometry.h"
#include "policies/key_likeness.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

constexpr int32_t kBlock = 32;           // tokens of a step
constexpr int32_t kNewest = 32;          // tokens that a policy protects, and that are no candidates here
constexpr int32_t kFirstMoment = 96;     // tokens read
constexpr int32_t kBetweenMoments = 64;  // tokens
constexpr double kLambda = 1e-3;

struct CalibrateOptions {
  std::string model = {};
  std::string text = {};
  std::string output = {};
  std::vector<std::string> without = {};
  CalibrationTextOptions texts = {};
};

// What one lane saw of the document that is being read.
struct LaneRecord {
  // A decision that could have been taken: the candidates are the tokens 0, 1, ...
  struct Moment {
    std::vector<Features> features = {};
    std::vector<float> most = {};  // that one query paid since
  };

  std::vector<double> paid = {};  // by token, by all queries so far
  std::vector<Moment> moments = {};
};

// Sits where a policy's scorer does and writes down what passes. Lanes may observe at the same time: each has a record
// of its own.
class Recorder final : public Scorer {
 public:
  Recorder(int32_t kv_heads, std::vector<LaneRecord>& lanes) : kv_heads_(kv_heads), lanes_(lanes) {}

  Needs needs() const override { return {.window_rows = kBlock, .memory = true}; }

  void Observe(const LaneView& lane, const Observation& seen, const MutableScorerState& /*state*/) const override {
    LaneRecord& record = lanes_[static_cast<size_t>(lane.layer) * kv_heads_ + lane.head];
    const size_t n = lane.token.size();
    EBB_CHECK(seen.window.size() == n * seen.queries);
    record.paid.resize(static_cast<size_t>(lane.tokens));
    for (int32_t query = 0; query < seen.queries; ++query) {
      const std::span<const float> row = seen.window.subspan(query * n, n);
      for (LaneRecord::Moment& moment : record.moments) {
        for (size_t j = 0; j < moment.most.size(); ++j) moment.most[j] = std::max(moment.most[j], row[j]);
      }
      for (size_t j = 0; j < record.paid.size(); ++j) record.paid[j] += row[j];
    }
    if (lane.tokens >= kFirstMoment && (lane.tokens - kFirstMoment) % kBetweenMoments == 0) Snapshot(lane, record);
  }

  void Score(const LaneView& /*lane*/, const ScorerState& /*state*/, std::span<float> keep) const override {
    std::ranges::fill(keep, 0.0F);
  }

 private:
  static void Snapshot(const LaneView& lane, LaneRecord& record) {
    const auto candidates = static_cast<size_t>(lane.tokens - kNewest);
    LaneRecord::Moment& moment = record.moments.emplace_back();
    moment.most.assign(candidates, 0.0F);
    std::vector<float> likeness(lane.token.size());
    KeyLikeness(lane, likeness);
    for (size_t j = 0; j < candidates; ++j) {
      EBB_CHECK(lane.token[j] == static_cast<int32_t>(j));  // nobody left, so a token's slot is its number
      const auto slot = static_cast<int32_t>(j);
      const int32_t age = lane.tokens - slot;
      moment.features.push_back(TokenFeatures(Length(lane.memory->Keys(slot, 1)), likeness[j],
                                              Length(lane.memory->Values(slot, 1)), record.paid[j], age, age));
    }
  }

  int32_t kv_heads_;
  std::vector<LaneRecord>& lanes_;
};

// Lets the model read, and leaves in `lanes` what passed.
absl::Status Read(Engine& engine, const std::vector<int32_t>& document, std::vector<LaneRecord>& lanes) {
  EBB_ASSIGN(ValidSpec policy, Resolve({.scorer = "h2o",
                                        .budget = static_cast<int32_t>(document.size()),
                                        .positions = Positions::kOriginal,
                                        .kv_type = KvType::kF32},
                                       LimitsOf(engine.config())));
  policy.scorer = std::make_shared<const Recorder>(engine.config().kv_heads, lanes);
  EBB_ASSIGN(const auto session, engine.OpenSession({.policy = policy, .block_size_max = kBlock}));
  for (size_t first = 0; first < document.size(); first += kBlock) {
    const size_t count = std::min<size_t>(kBlock, document.size() - first);
    EBB_TRY(session->CanAppend(static_cast<int32_t>(count)));
    BatchRow row = {.session = session.get(), .tokens = std::span(document).subspan(first, count), .want = Want::kNone};
    engine.Run({&row, 1});
  }
  return absl::OkStatus();
}

void Learn(const std::vector<LaneRecord>& lanes, std::vector<Ridge>& ridges) {
  std::vector<double> targets;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    for (const LaneRecord::Moment& moment : lanes[lane].moments) {
      targets.clear();
      for (const float most : moment.most) targets.push_back(std::sqrt(most));
      ridges[lane].AddGroup(moment.features, targets);
    }
  }
}

absl::StatusOr<std::vector<Feature>> AllBut(const std::vector<std::string>& without) {
  std::vector<Feature> features;
  for (size_t i = 0; i < kFeatures; ++i) {
    if (std::ranges::find(without, FeatureNames()[i]) == without.end()) features.push_back(static_cast<Feature>(i));
  }
  if (features.empty()) return absl::InvalidArgumentError("--without: no feature is left to learn from");
  return features;
}

// How much of the target's variance the features tell, by layer; the mean over its heads.
void PrintExplained(const Lab& lab, const ModelConfig& config, const std::vector<Ridge>& ridges,
                    const Calibration& calibration) {
  if (!lab.json) absl::PrintF("explained  with attention  unseen\n");
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    double with = 0;
    double unseen = 0;
    for (int32_t head = 0; head < config.kv_heads; ++head) {
      const Ridge& ridge = ridges[static_cast<size_t>(layer) * config.kv_heads + head];
      with += ridge.Explained(calibration.lane(layer, head).with_attention) / config.kv_heads;
      unseen += ridge.Explained(calibration.lane(layer, head).unseen) / config.kv_heads;
    }
    if (lab.json) {
      absl::PrintF("{\"layer\":%d,\"with_attention\":%.4f,\"unseen\":%.4f}\n", layer, with, unseen);
    } else {
      absl::PrintF("layer %-3d  %14.3f  %6.3f\n", layer, with, unseen);
    }
  }
}

absl::Status RunCalibrate(const Lab& lab, const CalibrateOptions& options) {
  EBB_ASSIGN(const std::vector<Feature> features, AllBut(options.without));
  std::vector<Feature> unseen_features = features;
  std::erase(unseen_features, Feature::kAttention);
  EBB_ASSIGN(const std::string text, ReadText(options.text));
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  const ModelConfig& config = engine->config();
  EBB_ASSIGN(const auto documents, MakeCalibrationTexts(engine->tokenizer(), text, options.texts));
  std::vector<Ridge> ridges(static_cast<size_t>(config.layers) * config.kv_heads);
  Progress progress(static_cast<int64_t>(documents.size()));
  for (const std::vector<int32_t>& document : documents) {
    std::vector<LaneRecord> lanes(ridges.size());
    EBB_TRY(Read(*engine, document, lanes));
    Learn(lanes, ridges);
    progress.Add(1, "read");
  }
  progress.Clear();
  Calibration calibration = {.layers = config.layers, .kv_heads = config.kv_heads};
  for (const Ridge& ridge : ridges) {
    calibration.lanes.push_back(
        {.with_attention = ridge.Solve(features, kLambda), .unseen = ridge.Solve(unseen_features, kLambda)});
  }
  const std::string output = options.output.empty() ? CalibrationPath(options.model) : options.output;
  const std::string source =
      absl::StrFormat("%s, %d documents of %d tokens, seed %d", std::filesystem::path(options.text).filename().string(),
                      documents.size(), options.texts.window, options.texts.seed);
  EBB_TRY(WriteCalibration(output, config, features, source, calibration));
  PrintExplained(lab, config, ridges, calibration);
  if (!lab.json) absl::PrintF("wrote %s\n", output);
  return absl::OkStatus();
}

}  // namespace

void AddCalibrate(Command app, Lab& lab) {
  const Command command =
      app.add_subcommand("calibrate", "Learn which tokens a model's lanes will need, for the scorer `calibrated`");
  const auto options = std::make_shared<CalibrateOptions>();
  command.add_option("FILE", options->model, "Model file (GGUF)").required();
  command.add_option("TEXT", options->text, "Text to read (UTF-8); nothing may be evaluated on it later").required();
  command.add_option("-o,--output", options->output,
                     "File to write; default: the model's path with .calibration.json for its ending");
  command.add_option("--documents", options->texts.of_each, "Documents of each kind: passages, recall, recall twice")
      .range(1, 10000)
      .capture_default_str();
  command.add_option("--window", options->texts.window, "Tokens of a document")
      .range(256, 1 << 16)
      .capture_default_str();
  command.add_option("--seed", options->texts.seed, "Of passages and facts").capture_default_str();
  std::string known;
  for (const std::string_view name : FeatureNames()) known += absl::StrFormat("%s%s", known.empty() ? "" : ", ", name);
  command.add_option("--without", options->without, "Features to leave out, of " + known)
      .delimiter(',')
      .one_of(std::vector<std::string>(FeatureNames().begin(), FeatureNames().end()));
  AddComputeOptions(command, lab);
  command.footer(
      "Reads on a full F32 cache in blocks of 32. Ridge regression in closed form, for each layer and KV head; the "
      "same\n"
      "model, text, seed and flags write the same file. Printed is how much of the variance of the target the weights\n"
      "tell, by layer, with the attention so far and without. It makes one file in one go: what an interruption cuts\n"
      "begins anew.");
  command.callback([&lab, options] { lab.Check(RunCalibrate(lab, *options)); });
}

}  // namespace ebb::lab
