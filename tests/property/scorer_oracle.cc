#include "tests/property/scorer_oracle.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "policies/hash_random.h"
#include "tests/support/random_calibration.h"

namespace ebb {
namespace {

using Scores = std::vector<double>;
using Heads = std::span<const HeadIndex>;

constexpr int32_t kDim = RandomAttention::kHeadDim;

double Parameter(const ValidSpec& spec, const char* name) { return spec.parameters.at(name); }

template <typename Row>
double Norm(const Row& row) {
  double square = 0;
  for (const double x : row) square += x * x;
  return std::sqrt(square);
}

int32_t Queries(const Past& past) { return static_cast<int32_t>(past.rows.size()); }

// Adds up the queries from `first` on.
Scores Sums(const Past& past, Heads heads, int32_t first) {
  Scores sums;
  for (const int32_t token : past.live) {
    double sum = 0;
    for (int32_t query = std::max(first, 0); query < Queries(past); ++query) sum += past.P(query, heads, token);
    sums.push_back(sum);
  }
  return sums;
}

// Candidates' indices into past.live, in the order in which they go: by score, then the oldest.
std::vector<size_t> Order(const Past& past, const ValidSpec& spec, const Scores& scores) {
  const auto n = static_cast<int32_t>(past.live.size());
  std::vector<size_t> order;
  for (int32_t i = spec.sinks; i < n - spec.recent; ++i) order.push_back(static_cast<size_t>(i));
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(scores[i], i); });
  return order;
}

// The token's own age.
Scores Streaming(const Past& past, Heads /*heads*/, const ValidSpec& /*spec*/) {
  return {past.live.begin(), past.live.end()};
}

// A[j] = sum over all queries of P[i, j].
Scores H2o(const Past& past, Heads heads, const ValidSpec& /*spec*/) { return Sums(past, heads, 0); }

// P[last, j].
Scores Tova(const Past& past, Heads heads, const ValidSpec& /*spec*/) { return Sums(past, heads, Queries(past) - 1); }

// The sum over the last w queries, pooled by age; the window's own columns apart unless asked for.
Scores Snapkv(const Past& past, Heads heads, const ValidSpec& spec) {
  const auto window = static_cast<int32_t>(Parameter(spec, "window"));
  const auto half = static_cast<int32_t>(Parameter(spec, "kernel")) / 2;
  const auto pooling = static_cast<int32_t>(Parameter(spec, "pooling"));
  const Scores sums = Sums(past, heads, Queries(past) - window);
  const auto n = static_cast<int32_t>(sums.size());
  const int32_t pooled = Parameter(spec, "own_columns") == 1 ? n : std::max(n - window, 0);
  Scores scores = sums;
  for (int32_t rank = 0; rank < pooled && pooling != 0; ++rank) {
    double sum = 0;
    double max = 0;
    for (int32_t at = std::max(rank - half, 0); at <= std::min(rank + half, pooled - 1); ++at) {
      sum += sums[at];
      max = std::max(max, sums[at]);
    }
    scores[rank] = pooling == 1 ? sum / (2 * half + 1) : max;
  }
  return scores;
}

// -cos(k[j], mean of k / |k|).
Scores Keydiff(const Past& past, Heads heads, const ValidSpec& /*spec*/) {
  std::vector<std::vector<double>> keys;
  std::vector<double> mean(kDim);
  for (const int32_t token : past.live) {
    const std::vector<float> key = past.attention->Key(heads[0].kv, token);
    keys.emplace_back(key.begin(), key.end());
    for (int32_t c = 0; c < kDim; ++c) mean[c] += key[c] / Norm(key) / static_cast<double>(past.live.size());
  }
  Scores scores;
  for (const std::vector<double>& key : keys) {
    double dot = 0;
    for (int32_t c = 0; c < kDim; ++c) dot += key[c] * mean[c];
    scores.push_back(-dot / Norm(key) / Norm(mean));
  }
  return scores;
}

// -|k[j]|, or |k[j]|.
Scores Knorm(const Past& past, Heads heads, const ValidSpec& spec) {
  Scores scores;
  for (const int32_t token : past.live) {
    const double length = Norm(past.attention->Key(heads[0].kv, token));
    scores.push_back(Parameter(spec, "keep") == 1 ? length : -length);
  }
  return scores;
}

// The prediction by the weights of the lane, where the query that brought a token is the first that saw it.
Scores Calibrated(const Past& past, Heads heads, const ValidSpec& spec) {
  const int32_t kv = heads[0].kv;
  const LaneWeights& lane = (*TestCalibration())->lane(past.attention->options().layer, kv);
  const bool ignores = Parameter(spec, "attention") == 1;
  const Features& w = ignores ? lane.unseen.weight : lane.with_attention.weight;
  const Scores likeness = Keydiff(past, heads, spec);
  const Scores paid = H2o(past, heads, spec);
  Scores scores;
  for (size_t j = 0; j < past.live.size(); ++j) {
    const double age = Queries(past) - past.live[j];
    const double attention = std::sqrt(paid[j] / age);
    scores.push_back((ignores ? lane.unseen : lane.with_attention).bias +
                     w[0] * Norm(past.attention->Key(kv, past.live[j])) - w[1] * likeness[j] +
                     w[2] * Norm(past.attention->Value(kv, past.live[j])) + (ignores ? 0 : w[3] * attention) +
                     w[4] * std::log(age));
  }
  return scores;
}

// What queries pay to the live tokens now, added up.
Scores PaidNow(const Past& past, HeadIndex head, const std::vector<int32_t>& queries) {
  const RandomAttention& attention = *past.attention;
  std::vector<double> by_slot(static_cast<size_t>(attention.options().slots));
  for (const int32_t query : queries) {
    attention.AddProbes(head.kv, std::vector{query}, attention.Query(head, query), 1.0, by_slot);
  }
  const LaneView view = attention.View(head.kv, 0, 0);
  Scores scores;
  for (const int32_t token : past.live) {
    scores.push_back(by_slot[std::ranges::find(view.token, token) - view.token.begin()]);
  }
  return scores;
}

// How many of all queries so far a share is.
int32_t Share(const Past& past, const ValidSpec& spec, const char* ratio) {
  const auto share = static_cast<int32_t>(std::ceil(Queries(past) * Parameter(spec, ratio) - 1e-9));
  return std::min(share, static_cast<int32_t>(Parameter(spec, "rows_max")));
}

// The sum over the queries of largest norm and the newest, each query head's own; mean over the heads.
Scores Semantic(const Past& past, Heads heads, const ValidSpec& spec) {
  Scores scores(past.live.size());
  for (const HeadIndex& head : heads) {
    std::vector<std::pair<double, int32_t>> norms;
    for (int32_t query = 0; query < Queries(past); ++query) {
      norms.emplace_back(Norm(past.attention->Query(head, query)), query);
    }
    std::ranges::sort(norms, std::greater());
    std::vector<int32_t> chosen;
    for (int32_t i = 0; i < Share(past, spec, "semantic_ratio"); ++i) chosen.push_back(norms[i].second);
    for (int32_t i = Queries(past) - Share(past, spec, "recent_ratio"); i < Queries(past); ++i) {
      if (std::ranges::find(chosen, i) == chosen.end()) chosen.push_back(i);
    }
    const Scores paid = PaidNow(past, head, chosen);
    for (size_t j = 0; j < scores.size(); ++j) scores[j] += paid[j] / static_cast<double>(heads.size());
  }
  return scores;
}

// The sum over the newest queries for the best by it; -E exp(-sum) for the others, E exponential and a hash.
Scores Nacl(const Past& past, Heads heads, const ValidSpec& spec) {
  std::vector<int32_t> proxies;
  for (int32_t back = std::max(Share(past, spec, "proxy_ratio"), 1); back > 0; --back) {
    proxies.push_back(Queries(past) - back);
  }
  Scores sums(past.live.size());
  for (const HeadIndex& head : heads) {
    const Scores paid = PaidNow(past, head, proxies);
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += paid[j] / static_cast<double>(heads.size());
  }
  const std::vector<size_t> order = Order(past, spec, sums);
  const int32_t room = spec.trigger.budget - spec.sinks - spec.recent;
  const auto best = static_cast<size_t>(room * Parameter(spec, "proxy_share") + 1e-9);
  const uint64_t seed =
      HashBits(static_cast<uint64_t>(Parameter(spec, "seed")), static_cast<uint64_t>(past.attention->options().layer),
               static_cast<uint64_t>(heads[0].kv));
  Scores scores = sums;
  for (size_t i = 0; i + best < order.size(); ++i) {
    const size_t j = order[i];
    const double uniform = HashUniform(seed, 0, static_cast<uint64_t>(past.live[j]));
    scores[j] = std::log(1 - uniform) * std::exp(-sums[j]);
  }
  return scores;
}

// Minus the number of the last w queries that paid less than an even share of what they saw; of equals, by what the
// last query paid.
Scores Scissorhands(const Past& past, Heads heads, const ValidSpec& spec) {
  Scores scores;
  const int32_t first = std::max(Queries(past) - static_cast<int32_t>(Parameter(spec, "window")), 0);
  for (const int32_t token : past.live) {
    double unimportant = 0;
    for (int32_t query = std::max(first, token); query < Queries(past); ++query) {
      int32_t seen = 0;
      for (int32_t other = 0; other <= query; ++other) seen += past.P(query, heads, other) > 0 ? 1 : 0;
      unimportant += past.P(query, heads, token) < 1.0 / seen ? 1 : 0;
    }
    scores.push_back(std::pow(past.P(Queries(past) - 1, heads, token), 0.25) * 0.9 - unimportant);
  }
  return scores;
}

// Deviations over channels of each row, each channel relative to its range in `reference`; softmax over the rows.
Scores LagWorth(const std::vector<std::vector<double>>& rows, const std::vector<std::vector<double>>& reference) {
  Scores worth;
  double total = 0;
  for (const std::vector<double>& row : rows) {
    std::vector<double> z;
    double mean = 0;
    for (int32_t c = 0; c < kDim && !reference.empty(); ++c) {
      double lo = reference[0][c];
      double hi = lo;
      for (const std::vector<double>& other : reference) {
        lo = std::min(lo, other[c]);
        hi = std::max(hi, other[c]);
      }
      z.push_back(std::clamp((row[c] - lo) / std::max(hi - lo, 1e-6), -1e4, 1e4));
      mean += z.back() / kDim;
    }
    double square = 0;
    for (const double x : z) square += (x - mean) * (x - mean);
    worth.push_back(std::sqrt(square / (kDim - 1)));
  }
  const double largest = *std::ranges::max_element(worth);
  for (double& w : worth) total += w = std::exp(w - largest);
  for (double& w : worth) w /= total;
  return worth;
}

// Partitions of `lag` tokens after the sinks, each scored when the next is whole: the place of a token's worth in its
// partition. Who has none stays longer, the newest longest.
Scores Lagkv(const Past& past, Heads heads, const ValidSpec& spec) {
  const auto lag = static_cast<int32_t>(Parameter(spec, "lag"));
  const RandomAttention& attention = *past.attention;
  std::map<int32_t, double> place;
  int32_t scored = 0;
  for (const std::vector<int32_t>& present : past.present) {
    for (; spec.sinks + (scored + 2) * lag <= present.back() + 1; ++scored) {
      const int32_t begin = spec.sinks + scored * lag;
      std::vector<int32_t> tokens;
      std::vector<std::vector<double>> rows[2][2];  // of keys and values, of the partition and its reference
      for (const int32_t token : present) {
        if (token < begin || token >= begin + 2 * lag) continue;
        const bool later = token >= begin + lag;
        if (!later) tokens.push_back(token);
        const std::vector<float> value = attention.Value(heads[0].kv, token);
        rows[0][later].push_back(Turned(attention.rope(), token, attention.Key(heads[0].kv, token)));
        rows[1][later].emplace_back(value.begin(), value.end());
      }
      if (tokens.empty()) continue;
      const Scores by_key = LagWorth(rows[0][0], rows[0][1]);
      const Scores by_value = LagWorth(rows[1][0], rows[1][1]);
      const auto worth = [&](size_t i) { return by_key[i] + Parameter(spec, "value_ratio") * by_value[i]; };
      for (size_t i = 0; i < tokens.size(); ++i) {
        double ahead_of = 0;
        for (size_t j = 0; j < tokens.size(); ++j) {
          ahead_of += std::pair(worth(j), tokens[j]) < std::pair(worth(i), tokens[i]) ? 1 : 0;
        }
        place[tokens[i]] = (ahead_of + 1) / static_cast<double>(tokens.size());
      }
    }
  }
  Scores scores;
  for (const int32_t token : past.live) scores.push_back(place.contains(token) ? place[token] : 2.0 + token);
  return scores;
}

// The attention that a Gaussian of queries like those so far, turned for the positions to come, is expected to pay,
// times the length of the value. Matrices in full.
Scores ExpectedAttention(const Past& past, Heads heads, const ValidSpec& spec) {
  const RandomAttention& attention = *past.attention;
  const auto future = static_cast<int32_t>(Parameter(spec, "future"));
  const bool original = attention.options().positions == Positions::kOriginal;
  const auto position = [&](size_t j) { return original ? past.live[j] : static_cast<int32_t>(j); };
  const int32_t next = position(past.live.size() - 1) + 1;
  double r[kDim][kDim] = {};  // the mean of the rotations, column by column
  for (int32_t c = 0; c < kDim; ++c) {
    std::vector<float> unit(kDim);
    unit[c] = 1;
    for (int32_t i = 0; i < future; ++i) {
      const std::vector<double> turned = Turned(attention.rope(), next + i, unit);
      for (int32_t row = 0; row < kDim; ++row) r[row][c] += turned[row] / future;
    }
  }
  Scores scores(past.live.size());
  for (const HeadIndex& head : heads) {
    double mean[kDim] = {};
    double covariance[kDim][kDim] = {};
    const double count = std::max(Queries(past) - 4, 1);
    for (int32_t query = 4; query < Queries(past); ++query) {
      const std::vector<float> q = attention.Query(head, query);
      for (int32_t a = 0; a < kDim; ++a) mean[a] += q[a] / count;
    }
    for (int32_t query = 4; query < Queries(past) && Parameter(spec, "covariance") > 0; ++query) {
      const std::vector<float> q = attention.Query(head, query);
      for (int32_t a = 0; a < kDim; ++a) {
        for (int32_t b = 0; b < kDim; ++b) {
          const bool asked = a == b || Parameter(spec, "covariance") == 2;
          covariance[a][b] += asked ? (q[a] - mean[a]) * (q[b] - mean[b]) / count : 0;
        }
      }
    }
    Scores weights;
    double total = 0;
    for (size_t j = 0; j < past.live.size(); ++j) {
      const std::vector<double> k = Turned(attention.rope(), position(j), attention.Key(head.kv, past.live[j]));
      double u[kDim] = {};  // R' k
      for (int32_t a = 0; a < kDim; ++a) {
        for (int32_t row = 0; row < kDim; ++row) u[a] += r[row][a] * k[row];
      }
      double x = 0;
      for (int32_t a = 0; a < kDim; ++a) {
        x += mean[a] * u[a] / std::sqrt(double{kDim});
        for (int32_t b = 0; b < kDim; ++b) x += u[a] * covariance[a][b] * u[b] / (2.0 * kDim);
      }
      weights.push_back(std::exp(x));
      total += weights.back();
    }
    for (size_t j = 0; j < weights.size(); ++j) scores[j] += weights[j] / total / static_cast<double>(heads.size());
  }
  for (size_t j = 0; j < scores.size(); ++j) {
    scores[j] += Parameter(spec, "epsilon");
    if (Parameter(spec, "values") == 1) scores[j] *= Norm(attention.Value(heads[0].kv, past.live[j]));
  }
  return scores;
}

// What one KV head, or one query head, says: the formula, and the modifier over it.
Scores Opinion(const Past& past, Heads heads, const ValidSpec& spec) {
  Scores base = FormulaOf(spec.scorer_name)(past, heads, spec);
  if (spec.modifier == Modifier::kNone) return base;
  const size_t n = base.size();
  std::vector<std::vector<float>> values;
  std::vector<double> mean(kDim);
  for (const int32_t token : past.live) {
    values.push_back(past.attention->Value(heads[0].kv, token));
    for (int32_t c = 0; c < kDim; ++c) mean[c] += values.back()[c] / static_cast<double>(n);
  }
  if (std::ranges::max(base) <= 0) base.assign(n, 1.0);
  double total = 0;
  for (const double b : base) total += b;
  Scores costs;
  for (size_t j = 0; j < n; ++j) {
    double rest = 0;
    std::vector<double> with(kDim);
    std::vector<double> without(kDim);
    for (size_t i = 0; i < n; ++i) {
      if (i != j) rest += base[i];
    }
    for (size_t i = 0; i < n; ++i) {
      for (int32_t c = 0; c < kDim; ++c) with[c] += base[i] / total * values[i][c];
      for (int32_t c = 0; c < kDim && i != j; ++c) without[c] += base[i] / rest * values[i][c];
    }
    std::vector<double> moved;
    for (int32_t c = 0; c < kDim; ++c) {
      moved.push_back(spec.modifier == Modifier::kCaote ? with[c] - without[c]
                                                        : base[j] / rest * (mean[c] - values[j][c]));
    }
    costs.push_back(Norm(moved));
  }
  return costs;
}

// Whom at least one head counts among its k best, k being its share of the room.
std::vector<bool> WantedBySome(const Past& past, const ValidSpec& spec, const std::vector<Scores>& opinions) {
  std::vector<bool> wanted(past.live.size());
  const auto k = static_cast<size_t>(spec.trigger.budget - spec.sinks - spec.recent) / opinions.size();
  for (const Scores& opinion : opinions) {
    const std::vector<size_t> order = Order(past, spec, opinion);
    for (size_t i = order.size() - std::min(order.size(), k); i < order.size(); ++i) wanted[order[i]] = true;
  }
  return wanted;
}

// Opinions that decide together, token by token.
template <typename Fold>
Scores Reduce(const std::vector<Scores>& opinions, const Fold& fold) {
  Scores reduced = opinions[0];
  for (size_t i = 1; i < opinions.size(); ++i) {
    for (size_t j = 0; j < reduced.size(); ++j) reduced[j] = fold(reduced[j], opinions[i][j]);
  }
  return reduced;
}

Scores Mean(const std::vector<Scores>& opinions) {
  Scores mean = Reduce(opinions, [](double a, double b) { return a + b; });
  for (double& x : mean) x /= static_cast<double>(opinions.size());
  return mean;
}

Scores L2(const std::vector<Scores>& opinions) {
  return Reduce(opinions, [](double a, double b) { return std::hypot(a, b); });
}

Scores Max(const std::vector<Scores>& opinions) {
  return Reduce(opinions, [](double a, double b) { return std::max(a, b); });
}

}  // namespace

void Past::Remember(const RandomAttention& from) {
  attention = &from;
  const RandomAttentionOptions& options = from.options();
  const LaneView view = from.View(0, 0, 0);
  const auto queries = static_cast<int32_t>(from.placed().size());
  present.push_back(from.LiveTokens());
  for (int32_t i = 0; i < queries; ++i) {
    auto& row = rows.emplace_back();
    for (int32_t kv = 0; kv < options.kv_heads; ++kv) {
      for (int32_t query = 0; query < options.query_heads; ++query) {
        std::vector<double>& by_token = row.emplace_back(static_cast<size_t>(from.tokens()));
        const std::span<const double> by_slot = from.Row({.kv = kv, .query = query}, i);
        for (size_t slot = 0; slot < by_slot.size(); ++slot) {
          if (view.token[slot] >= 0) by_token[view.token[slot]] = by_slot[slot];
        }
      }
    }
  }
}

void Past::LookAtTheLiving(const RandomAttention& from) { live = from.LiveTokens(); }

double Past::P(int32_t query, std::span<const HeadIndex> heads, int32_t token) const {
  double sum = 0;
  for (const HeadIndex& head : heads) {
    const std::vector<double>& row = rows[query][head.kv * attention->options().query_heads + head.query];
    if (token < static_cast<int32_t>(row.size())) sum += row[token];
  }
  return sum / static_cast<double>(heads.size());
}

Formula FormulaOf(const std::string& scorer) {
  static const std::map<std::string, Formula> formulas = {
      {"streaming", Streaming},
      {"h2o", H2o},
      {"tova", Tova},
      {"snapkv", Snapkv},
      {"sage", Tova},
      {"semantic", Semantic},
      {"lagkv", Lagkv},
      {"nacl", Nacl},
      {"scissorhands", Scissorhands},
      {"calibrated", Calibrated},
      {"keydiff", Keydiff},
      {"knorm", Knorm},
      {"expected_attention", ExpectedAttention},
  };
  const auto at = formulas.find(scorer);
  return at == formulas.end() ? nullptr : at->second;
}

OracleChoice ChooseByFormula(const Past& past, const ValidSpec& spec, int32_t count, double resolution) {
  const RandomAttentionOptions& options = past.attention->options();
  std::vector<Scores> all;      // of every query head that has an opinion, or KV head
  std::vector<Scores> by_lane;  // of every KV head
  for (int32_t kv = 0; kv < options.kv_heads; ++kv) {
    std::vector<HeadIndex> heads;
    for (int32_t query = 0; query < options.query_heads; ++query) heads.push_back({.kv = kv, .query = query});
    std::vector<Scores> opinions;
    if (spec.reduction == Reduction::kMean) opinions.push_back(Opinion(past, heads, spec));
    for (size_t h = 0; h < heads.size() && spec.reduction != Reduction::kMean; ++h) {
      opinions.push_back(Opinion(past, std::span(heads).subspan(h, 1), spec));
    }
    by_lane.push_back(spec.reduction == Reduction::kMax ? Max(opinions) : L2(opinions));
    if (spec.reduction == Reduction::kMean) by_lane.back() = opinions[0];
    all.insert(all.end(), opinions.begin(), opinions.end());
  }
  Scores scores = spec.modifier == Modifier::kNone ? Mean(by_lane) : L2(by_lane);
  std::vector<bool> wanted(past.live.size());
  if (spec.reduction == Reduction::kUnion) {
    scores = Mean(all);
    wanted = WantedBySome(past, spec, all);
  }
  std::vector<size_t> order = Order(past, spec, scores);
  std::ranges::stable_sort(order, {}, [&](size_t i) { return static_cast<bool>(wanted[i]); });
  OracleChoice choice;
  const size_t last = order[static_cast<size_t>(count) - 1];
  for (size_t i = 0; i < order.size(); ++i) {
    const double difference = std::abs(scores[order[i]] - scores[last]);
    const bool is_equal = difference == 0 && by_lane.size() == 1;  // then age decides, exactly
    const bool is_close = difference <= resolution * std::abs(scores[last]) && wanted[order[i]] == wanted[last];
    if (order[i] == last || (is_close && !is_equal)) choice.either.push_back(past.live[order[i]]);
    if (i < static_cast<size_t>(count)) choice.victims.push_back(past.live[order[i]]);
  }
  std::ranges::sort(choice.victims);
  return choice;
}

}  // namespace ebb
