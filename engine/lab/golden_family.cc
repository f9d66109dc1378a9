#include "engine/lab/golden_family.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/lab/npy.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

// README, "Tolerances": what an engine that dequantises exactly may deviate with an F32 cache. One that rounds
// activations may deviate as the case's tolerance of `logits` says.
constexpr double kF32MaxAbs = 1e-4;
constexpr double kF32Rms = 2e-5;
constexpr double kExactMaxAbs = 2e-3;
constexpr double kExactRms = 2e-4;

GoldenOp ReadOp(const Json& json) {
  const auto kind = json.at(0).get<std::string>();
  if (kind == "A") return {.kind = 'A', .a = json.at(1), .b = json.at(3)};  // at(2) is -1: no upper end
  return {.kind = kind.at(0), .a = json.at(1), .b = json.at(2)};
}

const Json::json_pointer kRounded("/tolerance/logits");

GoldenCase ReadCase(const std::string& name, const Json& json, bool is_f32, Accuracy accuracy,
                    const std::filesystem::path& folder) {
  GoldenCase golden = {.name = name, .rows = json.at("rows")};
  golden.reference = is_f32 ? "logits" : "exact";
  golden.file = (folder / json.at(golden.reference).get<std::string>()).string();
  const bool rounds = !is_f32 && accuracy == Accuracy::kFast;
  golden.max_abs = is_f32 ? kF32MaxAbs : rounds ? json.at(kRounded).at("max_abs").get<double>() : kExactMaxAbs;
  golden.rms = is_f32 ? kF32Rms : rounds ? json.at(kRounded).at("rms").get<double>() : kExactRms;
  for (const Json& step : json.at("steps")) {
    golden.steps.emplace_back();
    for (const Json& op : step) golden.steps.back().push_back(ReadOp(op));
  }
  // Greedy tokens are the public engine's: binding where its best token is the exact one in every row.
  const Json measured = json.value("measured", Json::object());
  if (!rounds && json.contains("greedy") && measured.value("best_token_differs_in_rows", 1) == 0) {
    golden.prompt = json.at("prompt");
    golden.greedy = json.at("greedy").get<std::vector<int32_t>>();
  }
  return golden;
}

// The rows of logits that a case gives, in order, held against the stored ones as they come.
class Comparison {
 public:
  Comparison(const GoldenCase& golden, Matrix stored) : golden_(golden), stored_(std::move(stored)) {}

  void Add(std::span<const float> logits) {
    const std::span<const float> expected = stored_.row(row_);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double deviation = std::abs(static_cast<double>(logits[i]) - expected[i]);
      max_abs_ = std::isnan(deviation) ? std::numeric_limits<double>::infinity() : std::max(max_abs_, deviation);
      squares_ += deviation * deviation;
    }
    const int64_t step = row_ - (golden_.prompt - 1);
    if (step >= 0 && step < static_cast<int64_t>(golden_.greedy.size()) && wrong_token_ < 0) {
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      if (best != golden_.greedy[static_cast<size_t>(step)]) wrong_token_ = step;
    }
    ++row_;
  }

  GoldenResult Result() const {
    GoldenResult result = {.max_abs = max_abs_,
                           .rms = std::sqrt(squares_ / static_cast<double>(stored_.values.size()))};
    if (row_ != stored_.rows) {
      result.error = absl::StrFormat("%d rows of logits, %d are stored", row_, stored_.rows);
    } else if (!(result.max_abs <= golden_.max_abs) || !(result.rms <= golden_.rms)) {
      result.error = "outside the tolerance";
    } else if (wrong_token_ >= 0) {
      result.error = absl::StrFormat("greedy token %d is not the stored one", wrong_token_);
    }
    return result;
  }

 private:
  const GoldenCase& golden_;
  Matrix stored_;
  int64_t row_ = 0;
  int64_t wrong_token_ = -1;
  double max_abs_ = 0;
  double squares_ = 0;
};

// Runs ops on one session; consecutive D's of a step are one block.
class Player {
 public:
  Player(Engine& engine, std::unique_ptr<Session> session) : engine_(engine), session_(std::move(session)) {}

  absl::Status Play(const std::vector<GoldenOp>& step, Comparison& comparison) {
    for (const GoldenOp& op : step) {
      if (op.kind == 'D') {
        block_.push_back(op.a);
        position_ = op.b;
        continue;
      }
      EBB_TRY(Flush(comparison));
      if (op.kind == 'R') {
        EBB_TRY(engine_.RemovePositions(*session_, op.a, op.b).status());
      } else {
        EBB_TRY(engine_.ShiftPositions(*session_, op.a, op.b));
      }
    }
    return Flush(comparison);
  }

 private:
  absl::Status Flush(Comparison& comparison) {
    if (block_.empty()) return absl::OkStatus();
    EBB_TRY(session_->CanAppend(static_cast<int32_t>(block_.size())));
    BatchRow row = {.session = session_.get(), .tokens = block_, .want = Want::kAll};
    engine_.Run({&row, 1});
    if (session_->position_max() != position_) {
      return absl::InternalError(
          absl::StrFormat("a token went to position %d instead of %d", session_->position_max(), position_));
    }
    const auto vocab = static_cast<size_t>(engine_.config().vocab);
    for (size_t i = 0; i < block_.size(); ++i) comparison.Add(row.logits.subspan(i * vocab, vocab));
    block_.clear();
    return absl::OkStatus();
  }

  Engine& engine_;
  std::unique_ptr<Session> session_;
  std::vector<int32_t> block_ = {};
  int32_t position_ = 0;
};

absl::StatusOr<GoldenResult> Compare(Engine& engine, const GoldenCase& golden) {
  EBB_ASSIGN(Matrix stored, ReadNpy(golden.file));
  if (stored.rows != golden.rows || stored.cols != engine.config().vocab) {
    return absl::DataLossError(absl::StrFormat("%s: %d x %d, expected %d x %d", golden.file, stored.rows, stored.cols,
                                               golden.rows, engine.config().vocab));
  }
  EBB_ASSIGN(const ValidSpec policy,
             Resolve({.scorer = "full", .budget = golden.rows, .kv_type = KvType::kF32}, LimitsOf(engine.config())));
  EBB_ASSIGN(std::unique_ptr<Session> session,
             engine.OpenSession({.policy = policy, .block_size_max = engine.step_tokens_max()}));
  Player player(engine, std::move(session));
  Comparison comparison(golden, std::move(stored));
  for (const std::vector<GoldenOp>& step : golden.steps) EBB_TRY(player.Play(step, comparison));
  return comparison.Result();
}

}  // namespace

absl::StatusOr<GoldenFamily> ReadGoldenFamily(const std::string& path, Accuracy accuracy) {
  std::ifstream file(path);
  if (!file.is_open()) return absl::NotFoundError(absl::StrFormat("%s: cannot be read", path));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  GoldenFamily family = {.name = std::filesystem::path(path).stem().string()};
  try {
    const Json json = Json::parse(file);
    if (json.at("format") != 1) return absl::DataLossError(absl::StrFormat("%s: format is not 1", path));
    family.model = (folder / json.at("model").get<std::string>()).string();
    const bool is_f32 = json.at("tensor_types") == Json::array({"F32"});
    for (const auto& [name, golden] : json.at("cases").items()) {
      if (!is_f32 && accuracy == Accuracy::kFast && !golden.contains(kRounded)) continue;
      family.cases.push_back(ReadCase(name, golden, is_f32, accuracy, folder));
    }
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrFormat("%s: not a family file: %s", path, error.what()));
  }
  return family;
}

absl::StatusOr<std::vector<GoldenFamily>> ReadGoldenFolder(const std::string& folder, Accuracy accuracy) {
  std::vector<GoldenFamily> families;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".json") continue;
    EBB_ASSIGN(GoldenFamily family, ReadGoldenFamily(entry.path().string(), accuracy));
    families.push_back(std::move(family));
  }
  if (error) return absl::NotFoundError(absl::StrFormat("%s: %s", folder, error.message()));
  if (families.empty()) return absl::NotFoundError(absl::StrFormat("%s: no family (*.json)", folder));
  std::ranges::sort(families, {}, &GoldenFamily::name);
  return families;
}

GoldenResult RunGoldenCase(Engine& engine, const GoldenCase& golden) {
  const absl::StatusOr<GoldenResult> result = Compare(engine, golden);
  return result.ok() ? *result : GoldenResult{.error = std::string(result.status().message())};
}

bool IsUnsupported(const absl::Status& status) {
  const std::string reason = GetRefusal(status).reason;
  return reason == "UNSUPPORTED_ARCHITECTURE" || reason == "UNSUPPORTED_TENSOR_TYPE" ||
         reason == "UNSUPPORTED_MODEL_FEATURE";
}

}  // namespace ebb::lab
