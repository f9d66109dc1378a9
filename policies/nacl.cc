#include "policies/nacl.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "policies/check.h"
#include "policies/hash_random.h"
#include "policies/query_rows.h"

namespace ebb {
namespace {

class Nacl final : public Scorer {
 public:
  explicit Nacl(const NaclOptions& options) : options_(options) { EBB_CHECK(options.rows_max >= 1); }

  Needs needs() const override { return {.queries = true, .probes = true, .by_age = true}; }

  int64_t lane_floats(const LaneShape& shape) const override {
    return shape.query_heads * QueryRows<float>::Floats(options_.rows_max, shape.head_dim);
  }

  void Observe(const LaneView& lane, const Observation& seen, const MutableScorerState& state) const override {
    EBB_CHECK(static_cast<int32_t>(seen.slots.size()) == seen.queries);
    for (int32_t head = 0; head < lane.query_heads; ++head) {
      const QueryRows<float> newest = RowsOf(state.lane, lane.query_heads, head);
      const size_t head_dim = newest.Query(0).size();
      newest.ForgetFrom(lane.token[seen.slots.front()]);
      for (int32_t i = std::max(seen.queries - options_.rows_max, 0); i < seen.queries; ++i) {
        const int32_t token = lane.token[seen.slots[i]];
        newest.Put(token % options_.rows_max, token, seen.q + i * seen.q_stride + head * head_dim);
      }
    }
  }

  void Score(const LaneView& lane, const ScorerState& /*state*/, std::span<float> keep) const override {
    EBB_CHECK(lane.probed.size() == keep.size());
    EBB_CHECK(static_cast<int32_t>(lane.by_age.size()) == lane.live);
    const int32_t sinks = std::min(lane.sinks, lane.live);
    const int32_t candidates = std::max(lane.live - sinks - lane.recent, 0);
    const int32_t room = std::clamp(lane.budget - lane.sinks - lane.recent, 0, candidates);
    const std::span<const int32_t> between = lane.by_age.subspan(sinks, candidates);
    // A whole product on paper stays whole.
    const Best best = FindBest(lane.probed, between, static_cast<int32_t>(room * options_.proxy_share + 1e-9), keep);
    const uint64_t seed = HashBits(options_.seed, static_cast<uint64_t>(lane.layer), static_cast<uint64_t>(lane.head));
    std::ranges::copy(lane.probed, keep.begin());
    int32_t ties = best.ties;
    for (auto slot = between.rbegin(); slot != between.rend(); ++slot) {
      const float sum = lane.probed[*slot];
      if (sum > best.least || (sum == best.least && ties-- > 0)) continue;
      keep[*slot] = Draw(seed, lane.token[*slot], sum);
    }
  }

  void AppendProbes(const LaneView& lane, int32_t query_head, const ScorerState& state, std::vector<int32_t>& tokens,
                    std::vector<float>& queries) const override {
    const QueryRows<const float> newest = RowsOf(state.lane, lane.query_heads, query_head);
    for (int32_t back = std::clamp(CeilShare(lane.tokens, options_.proxy_ratio), 1, options_.rows_max); back > 0;
         --back) {
      const int32_t token = lane.tokens - back;
      if (token < 0 || newest.Token(token % options_.rows_max) != token) continue;
      const std::span<const float> q = newest.Query(token % options_.rows_max);
      tokens.push_back(token);
      queries.insert(queries.end(), q.begin(), q.end());
    }
  }

 private:
  // The `count` best of some slots: those above `least`, and of those equal to it the newest `ties`.
  struct Best {
    float least = std::numeric_limits<float>::infinity();
    int32_t ties = 0;
  };

  // `room` [>= slots.size()] is overwritten.
  static Best FindBest(std::span<const float> sums, std::span<const int32_t> slots, int32_t count,
                       std::span<float> room) {
    if (count == 0) return {};
    const std::span<float> sorted = room.first(slots.size());
    std::ranges::transform(slots, sorted.begin(), [&](int32_t slot) { return sums[slot] >= 0 ? sums[slot] : -1.0F; });
    std::ranges::nth_element(sorted, sorted.begin() + (count - 1), std::greater());
    const float least = sorted[count - 1];
    const auto above = std::ranges::count_if(sorted, [&](float sum) { return sum > least; });
    return {.least = least, .ties = count - static_cast<int32_t>(above)};
  }

  // Below 0, nearer to it the likelier the token is drawn.
  static float Draw(uint64_t seed, int32_t token, float sum) {
    const double exponential = -std::log1p(-HashUniform(seed, 0, static_cast<uint64_t>(token)));
    return static_cast<float>(-exponential * std::exp(-double{sum}));
  }

  template <typename Float>
  QueryRows<Float> RowsOf(std::span<Float> lane, int32_t heads, int32_t head) const {
    const size_t floats = lane.size() / static_cast<size_t>(heads);
    return {lane.subspan(head * floats, floats), options_.rows_max};
  }

  NaclOptions options_;
};

constexpr ParameterRow kNaclParameters[] = {
    {.name = "proxy_ratio",
     .help = "share of all queries, the newest, that speak for the rest (rho)",
     .preset = 0.01,
     .max = 1},
    {.name = "proxy_share",
     .help = "share of the room that they fill; the rest is drawn",
     .preset = 12.0 / 19,
     .max = 1},
    {.name = "seed", .help = "of the draw", .max = 0x1p53, .whole = true},
    {.name = "rows_max", .help = "most queries that are asked", .preset = 64, .min = 1, .max = 512, .whole = true},
};

}  // namespace

std::unique_ptr<const Scorer> MakeNacl(const NaclOptions& options) { return std::make_unique<Nacl>(options); }

constinit const ScorerRow kNaclRow = {
    .name = "nacl",
    .about =
        {.summary = "Keeps what the newest queries attend to and a draw from the rest, once, and then lets the cache "
                    "grow.",
         .when = "For a long prompt that ends with its question, where a part of the room should not depend on it: "
                 "that part is drawn by chance. Answers must be short enough for the cache to grow by them.",
         .equation = "s[j] = sum over the ceil(rho T) newest queries i of P[i, j], of T tokens so far\n"
                     "keep[j] = s[j], for those chosen by s;   -E[j] exp(-s[j]), for the others",
         .origin = "NACL: A General and Effective KV Cache Eviction Framework for LLMs at Inference Time",
         .paper = "arXiv:2408.03675",
         .cost = "The attention of at most `rows_max` queries a query head, O(n d) each, at a decision, and room for "
                 "these queries; until the prompt ends the session holds the whole of it.",
         .turns = "The proxies are the first prompt's newest queries: a later question finds what those needed, and "
                  "what chance kept."},
    .safe_across_turns = false,
    .sinks = [](int32_t budget) { return std::min(256, budget / 40); },
    .recent = [](int32_t budget, int32_t sinks, int32_t /*query_heads*/) { return std::max(budget / 20 - sinks, 1); },
    .schedule = Schedule::kOncePrompt,
    .then = Then::kGrow,
    .parameters = kNaclParameters,
    .make =
        [](const ScorerParameters& given) {
          return MakeNacl({.proxy_ratio = given.at("proxy_ratio"),
                           .proxy_share = given.at("proxy_share"),
                           .seed = static_cast<uint64_t>(given.at("seed")),
                           .rows_max = Whole(given, "rows_max")});
        }};

}  // namespace ebb
