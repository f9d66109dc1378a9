#include "policies/semantic.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "policies/check.h"
#include "policies/query_rows.h"
#include "policies/status.h"
#include "policies/wide.h"

namespace ebb {
namespace {

// One query head's part of the lane state.
template <typename Float>
struct HeadMemory {
  std::span<Float> norm;     // [rows_max] squared, of the largest
  QueryRows<Float> largest;  // in any order
  QueryRows<Float> newest;   // token t in row t % rows_max
};

float SquaredNorm(const float* q, size_t head_dim) {
  float sum = 0;
  for (size_t c = 0; c < head_dim; ++c) sum += q[c] * q[c];
  return sum;
}

EBB_WIDE float Smallest(const float* norms, int64_t n) {
  constexpr int kParts = 16;
  float least[kParts];
  std::fill_n(least, kParts, INFINITY);
  for (int64_t row = 0; row < n; row += kParts) {
    const int64_t end = std::min<int64_t>(n - row, kParts);
    for (int64_t i = 0; i < end; ++i) least[i] = norms[row + i] < least[i] ? norms[row + i] : least[i];
  }
  return *std::min_element(least, least + kParts);
}

class Semantic final : public Scorer {
 public:
  explicit Semantic(const SemanticOptions& options) : options_(options) { EBB_CHECK(options.rows_max >= 1); }

  Needs needs() const override { return {.queries = true, .probes = true}; }

  int64_t lane_floats(const LaneShape& shape) const override {
    return shape.query_heads * (options_.rows_max + 2 * QueryRows<float>::Floats(options_.rows_max, shape.head_dim));
  }

  void Observe(const LaneView& lane, const Observation& seen, const MutableScorerState& state) const override {
    EBB_CHECK(static_cast<int32_t>(seen.slots.size()) == seen.queries);
    for (int32_t head = 0; head < lane.query_heads; ++head) {
      const HeadMemory<float> memory = MemoryOf(state.lane, lane.query_heads, head);
      const size_t head_dim = memory.newest.Query(0).size();
      Forget(memory, lane.token[seen.slots.front()]);
      for (int32_t i = 0; i < seen.queries; ++i) {
        const float* q = seen.q + i * seen.q_stride + head * head_dim;
        const int32_t token = lane.token[seen.slots[i]];
        memory.newest.Put(token % options_.rows_max, token, q);
        PutIfLarge(memory, token, q, SquaredNorm(q, head_dim));
      }
    }
  }

  void Score(const LaneView& lane, const ScorerState& /*state*/, std::span<float> keep) const override {
    EBB_CHECK(lane.probed.size() == keep.size());
    std::ranges::copy(lane.probed, keep.begin());
  }

  void AppendProbes(const LaneView& lane, int32_t query_head, const ScorerState& state, std::vector<int32_t>& tokens,
                    std::vector<float>& queries) const override {
    const HeadMemory<const float> memory = MemoryOf(state.lane, lane.query_heads, query_head);
    const auto begin = static_cast<int64_t>(tokens.size());
    AppendLargest(memory, Rows(lane, options_.semantic_ratio), tokens);
    for (int32_t back = Rows(lane, options_.recent_ratio); back > 0; --back) {
      const int32_t token = lane.tokens - back;
      if (token >= 0 && memory.newest.Token(token % options_.rows_max) == token) tokens.push_back(token);
    }
    std::sort(tokens.begin() + begin, tokens.end());
    tokens.erase(std::unique(tokens.begin() + begin, tokens.end()), tokens.end());
    for (auto token = tokens.begin() + begin; token != tokens.end(); ++token) {
      const std::span<const float> q = QueryOf(memory, *token);
      queries.insert(queries.end(), q.begin(), q.end());
    }
  }

 private:
  template <typename Float>
  HeadMemory<Float> MemoryOf(std::span<Float> lane, int32_t heads, int32_t head) const {
    const size_t floats = lane.size() / static_cast<size_t>(heads);
    const auto rows = static_cast<size_t>(options_.rows_max);
    const std::span<Float> own = lane.subspan(head * floats, floats);
    const size_t half = (floats - rows) / 2;
    return {.norm = own.first(rows),
            .largest = {own.subspan(rows, half), options_.rows_max},
            .newest = {own.subspan(rows + half, half), options_.rows_max}};
  }

  int32_t Rows(const LaneView& lane, double ratio) const {
    return std::min(CeilShare(lane.tokens, ratio), options_.rows_max);
  }

  // What is kept of tokens from `token` on; an empty row's norm is 0.
  void Forget(const HeadMemory<float>& memory, int32_t token) const {
    memory.newest.ForgetFrom(token);
    memory.largest.ForgetFrom(token);
    for (int32_t row = 0; row < options_.rows_max; ++row) {
      if (memory.largest.Token(row) < 0) memory.norm[row] = 0;
    }
  }

  // In the place of an empty row, or of the smallest, the older of two.
  void PutIfLarge(const HeadMemory<float>& memory, int32_t token, const float* q, float norm) const {
    // Nearly always; an empty row's norm is 0, which no other is below.
    if (norm < Smallest(memory.norm.data(), options_.rows_max)) return;
    int32_t least = 0;
    for (int32_t row = 0; row < options_.rows_max; ++row) {
      if (memory.largest.Token(row) < 0) {
        least = row;
        break;
      }
      if (std::pair(memory.norm[row], memory.largest.Token(row)) <
          std::pair(memory.norm[least], memory.largest.Token(least))) {
        least = row;
      }
    }
    if (memory.largest.Token(least) >= 0 && !(norm >= memory.norm[least])) return;
    memory.norm[least] = norm;
    memory.largest.Put(least, token, q);
  }

  // The tokens of the `count` largest norms, of equal ones the newest.
  void AppendLargest(const HeadMemory<const float>& memory, int32_t count, std::vector<int32_t>& tokens) const {
    const auto begin = static_cast<int64_t>(tokens.size());
    for (int32_t row = 0; row < options_.rows_max; ++row) {
      if (memory.largest.Token(row) >= 0) tokens.push_back(row);
    }
    const auto last = tokens.begin() + std::min(begin + count, static_cast<int64_t>(tokens.size()));
    std::ranges::partial_sort(tokens.begin() + begin, last, tokens.end(), std::greater(),
                              [&](int32_t row) { return std::pair(memory.norm[row], memory.largest.Token(row)); });
    tokens.erase(last, tokens.end());
    for (auto row = tokens.begin() + begin; row != tokens.end(); ++row) *row = memory.largest.Token(*row);
  }

  std::span<const float> QueryOf(const HeadMemory<const float>& memory, int32_t token) const {
    if (memory.newest.Token(token % options_.rows_max) == token) {
      return memory.newest.Query(token % options_.rows_max);
    }
    int32_t row = 0;
    while (memory.largest.Token(row) != token) ++row;  // it is there: AppendLargest took it from there
    return memory.largest.Query(row);
  }

  SemanticOptions options_;
};

constexpr ParameterRow kSemanticParameters[] = {
    {.name = "semantic_ratio",
     .help = "share of all queries, those of largest norm (lambda)",
     .preset = 0.01,
     .max = 1},
    {.name = "recent_ratio", .help = "share of all queries, the newest (rho)", .preset = 0.01, .max = 1},
    {.name = "rows_max",
     .help = "most queries of a kind that are asked",
     .preset = 64,
     .min = 1,
     .max = 512,
     .whole = true},
};

absl::Status CheckRatios(const ScorerParameters& parameters) {
  if (parameters.at("semantic_ratio") > 0 || parameters.at("recent_ratio") > 0) return absl::OkStatus();
  return RefuseField("MEANINGLESS_COMBINATION", "policy.semantic.semantic_ratio",
                     "0, and recent_ratio is 0 too: no query is left to ask; use more than 0 for one of them");
}

}  // namespace

std::unique_ptr<const Scorer> MakeSemantic(const SemanticOptions& options) {
  return std::make_unique<Semantic>(options);
}

constinit const ScorerRow kSemanticRow = {
    .name = "semantic",
    .about =
        {.summary = "Keeps what the queries of largest norm and the newest attend to, once, and then lets the cache "
                    "grow.",
         .when = "For a long prompt of which the loudest queries say what it is about, and answers short enough for "
                 "the cache to grow by them. Not for an endless session.",
         .equation =
             "O       = the ceil(lambda T) queries of largest |q|, and the ceil(rho T) newest, of the T tokens so far\n"
             "keep[j] = sum over i in O of P[i, j]",
         .origin = "SemanticKV, a paper whose public identifier is not known here",
         .cost = "The attention of at most 2 `rows_max` queries a query head, O(n d) each, at a decision, and room "
                 "for these queries; until the prompt ends the session holds the whole of it.",
         .turns = "The first prompt's queries choose, and who left by then is missing for every later question."},
    .safe_across_turns = false,
    .non_negative = true,
    .sinks = [](int32_t budget) { return std::min(256, budget / 4); },
    .recent = [](int32_t budget, int32_t /*sinks*/, int32_t /*query_heads*/) { return std::max(budget / 20, 1); },
    .schedule = Schedule::kOncePrompt,
    .then = Then::kGrow,
    .parameters = kSemanticParameters,
    .check = CheckRatios,
    .make =
        [](const ScorerParameters& given) {
          return MakeSemantic({.semantic_ratio = given.at("semantic_ratio"),
                               .recent_ratio = given.at("recent_ratio"),
                               .rows_max = Whole(given, "rows_max")});
        }};

}  // namespace ebb
