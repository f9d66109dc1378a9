// What scores are made into before anybody leaves: what the output loses, what query heads are together, likeness of
// keys, chance. Each beside the time that a copy would take for the bytes that its kernel has to read and write: all
// lanes of all sessions in one launch, more than any cache holds.

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "tests/gpu_check/bench.h"
#include "tests/gpu_check/lanes.h"

namespace ebb::gpu_check {
namespace {

// Numbers of four bytes.
constexpr double kNumber = 4;

struct ScoreCase {
  const char* name;
  const char* bytes;  // in words
  LaneShape shape;
  double rows;     // of K or V that are read for each slot
  double numbers;  // that are read and written for each slot
  void (*launch)(const gpu::Table& table, const LaneShape& shape, const gpu::CacheArgs& cache, gpu::Stream stream);
};

void LaunchCaote(const gpu::Table& table, const LaneShape& shape, const gpu::CacheArgs& cache, gpu::Stream stream) {
  table.caote({.cache = cache, .tracks = shape.tracks}, stream);
}
void LaunchReduce(const gpu::Table& table, const LaneShape&, const gpu::CacheArgs& cache, gpu::Stream stream) {
  table.reduce({.cache = cache}, stream);
}
void LaunchLikeness(const gpu::Table& table, const LaneShape&, const gpu::CacheArgs& cache, gpu::Stream stream) {
  table.likeness({.cache = cache}, stream);
}
void LaunchChance(const gpu::Table& table, const LaneShape&, const gpu::CacheArgs& cache, gpu::Stream stream) {
  table.chance({.cache = cache}, stream);
}

// INTERNAL where the last lane has nothing: a kernel that returns at once is no fast one.
absl::Status CheckWritten(const Bench& b, const Lanes& lanes, const char* name) {
  const LaneShape& shape = lanes.shape();
  std::vector<float> last(static_cast<size_t>(shape.slots));
  const int64_t lane = int64_t{shape.sessions} * shape.lanes() - 1;
  EBB_TRY(b.gpu->CopyOut(lanes.keep().as<float>() + lane * shape.tracks * shape.slots, std::span(last)));
  EBB_TRY(b.gpu->Wait());
  if (std::ranges::any_of(last, [](float number) { return number != 0; })) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%s: nothing was written", name));
}

}  // namespace

absl::Status MeasureScores(Bench& b) {
  // The second looks at neither K nor V, whose rows are narrow so that more slots fit.
  LaneShape of_rows = {.sessions = b.tiny() ? 1 : 16,
                       .layers = b.tiny() ? 1 : 32,
                       .kv_heads = b.tiny() ? 2 : 8,
                       .slots = b.tiny() ? 64 : 1024,
                       .rule = gpu::ScoreRule::kSum,
                       .drop = 1};
  LaneShape of_scores = of_rows;
  of_scores.head_dim = 16;
  of_scores.slots = b.tiny() ? 64 : 4096;

  std::vector<ScoreCase> cases;
  for (const auto modifier : {gpu::ScoreModifier::kCaote, gpu::ScoreModifier::kFastCaote}) {
    of_rows.modifier = modifier;
    const bool is_fast = modifier == gpu::ScoreModifier::kFastCaote;
    cases.push_back({.name = is_fast ? "what the output loses, fast_caote" : "what the output loses, caote",
                     .bytes = "V twice, tokens, scores and costs",
                     .shape = of_rows,
                     .rows = 2,
                     .numbers = 3,
                     .launch = LaunchCaote});
  }
  of_rows.modifier = gpu::ScoreModifier::kNone;
  of_rows.rule = gpu::ScoreRule::kKeyLikeness;
  cases.push_back({.name = "likeness of keys",
                   .bytes = "K twice, tokens and likeness",
                   .shape = of_rows,
                   .rows = 2,
                   .numbers = 2,
                   .launch = LaunchLikeness});
  of_scores.tracks = of_scores.group;
  struct Reduction {
    gpu::HeadReduction reduction;
    const char* name;
    bool reads_tokens;
  };
  constexpr Reduction kReductions[] = {{gpu::HeadReduction::kLargest, "query heads together, the largest", false},
                                       {gpu::HeadReduction::kL2, "query heads together, the L2 norm", false},
                                       {gpu::HeadReduction::kUnion, "query heads together, the union", true}};
  for (const Reduction& r : kReductions) {
    of_scores.reduction = r.reduction;
    cases.push_back({.name = r.name,
                     .bytes = r.reads_tokens ? "tokens, scores of all heads and of the lane"
                                             : "scores of all heads and of the lane",
                     .shape = of_scores,
                     .rows = 0,
                     .numbers = of_scores.tracks + 1.0 + (r.reads_tokens ? 1 : 0),
                     .launch = LaunchReduce});
  }
  of_scores.tracks = 1;
  of_scores.reduction = gpu::HeadReduction::kTogether;
  of_scores.rule = gpu::ScoreRule::kChance;
  cases.push_back({.name = "chance",
                   .bytes = "tokens and draws",
                   .shape = of_scores,
                   .rows = 0,
                   .numbers = 2,
                   .launch = LaunchChance});

  for (const ScoreCase& c : cases) {
    EBB_ASSIGN(const Lanes lanes, Lanes::Make(*b.gpu, c.shape));
    EBB_ASSIGN(const double seconds,
               SecondsOf(b, 1, [&](int) { c.launch(b.table, c.shape, lanes.cache(), b.gpu->stream()); }));
    EBB_TRY(CheckWritten(b, lanes, c.name));
    const double slots = static_cast<double>(c.shape.sessions) * c.shape.lanes() * c.shape.slots;
    const double row = static_cast<double>(gpu::KvBytes(c.shape.type)) * c.shape.head_dim;
    const double least = slots * (c.rows * row + c.numbers * kNumber) / b.copy_rate;
    b.report.rows.push_back({.what = absl::StrFormat("%s, %d sessions, %d lanes of %d slots", c.name, c.shape.sessions,
                                                     c.shape.lanes(), c.shape.slots),
                             .measured = Time(seconds),
                             .against = absl::StrFormat("%s at the copy rate: %s", c.bytes, Time(least)),
                             .ratio = least / seconds});
  }
  return absl::OkStatus();
}

}  // namespace ebb::gpu_check
