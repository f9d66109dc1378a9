#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/hash_random.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr uint64_t kSampling = 1;  // purpose of the hash
constexpr float kInfinity = std::numeric_limits<float>::infinity();

absl::Status OutOfRange(const char* field, double value, const char* range) {
  return RefuseField("SAMPLING_OUT_OF_RANGE", absl::StrFormat("sampling.%s", field),
                     absl::StrFormat("%g is not in %s", value, range));
}

// Written so that NaN is in no range.
bool In(double value, double low, double high) { return value >= low && value <= high; }
bool Above(double value, double low, double high) { return value > low && value <= high; }

float Clean(float logit) { return std::isnan(logit) ? -kInfinity : logit; }

// Total orders, the lower id first among equals: the same logits always give the same list.
constexpr auto LikelierLogit = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
};
constexpr auto Likelier = [](const auto& a, const auto& b) { return a.p != b.p ? a.p > b.p : a.token < b.token; };

double LogSumOfExp(std::span<const float> logits) {
  double best = -kInfinity;
  for (const float logit : logits) best = std::max<double>(best, Clean(logit));
  if (std::isinf(best)) return best;
  double sum = 0;
  for (const float logit : logits) sum += std::exp(Clean(logit) - best);
  return best + std::log(sum);
}

// The logarithm of a token's share. Where nothing has mass all have the same; an infinite logit takes all.
double LogShare(float logit, double normaliser, size_t vocab) {
  if (normaliser == -kInfinity) return -std::log(static_cast<double>(vocab));
  if (normaliser == kInfinity) return logit == kInfinity ? 0 : -kInfinity;
  return Clean(logit) - normaliser;
}

}  // namespace

absl::Status CheckSampling(const SamplingOptions& o, int32_t vocab) {
  if (!In(o.temperature, 0, 100)) return OutOfRange("temperature", o.temperature, "[0, 100]");
  if (o.top_k < 0) return OutOfRange("top_k", o.top_k, "[0, 2^31)");
  if (!Above(o.top_p, 0, 1)) return OutOfRange("top_p", o.top_p, "(0, 1]");
  if (!In(o.min_p, 0, 1)) return OutOfRange("min_p", o.min_p, "[0, 1]");
  if (!Above(o.typical_p, 0, 1)) return OutOfRange("typical_p", o.typical_p, "(0, 1]");
  if (!Above(o.repetition_penalty, 0, 10)) return OutOfRange("repetition_penalty", o.repetition_penalty, "(0, 10]");
  if (!In(o.presence_penalty, -2, 2)) return OutOfRange("presence_penalty", o.presence_penalty, "[-2, 2]");
  if (!In(o.frequency_penalty, -2, 2)) return OutOfRange("frequency_penalty", o.frequency_penalty, "[-2, 2]");
  if (o.penalty_window < -1) return OutOfRange("penalty_window", o.penalty_window, "[-1, 2^31)");
  if (o.logprobs < 0 || o.logprobs > 20) return OutOfRange("logprobs", o.logprobs, "[0, 20]");
  for (const auto& [token, bias] : o.logit_bias) {
    if (token < 0 || token >= vocab) {
      return RefuseField("TOKEN_OUT_OF_RANGE", "sampling.logit_bias",
                         absl::StrFormat("token %d is not in 0..%d", token, vocab - 1));
    }
    if (!In(bias, -100, 100)) return OutOfRange("logit_bias", bias, "[-100, 100]");
  }
  return absl::OkStatus();
}

Sampler::Sampler(int32_t vocab) : logits_(vocab), counts_(vocab, 0) { candidates_.reserve(vocab); }

Drawn Sampler::Draw(const SamplingOptions& options, std::span<const float> logits, std::span<const int32_t> log) {
  Adjust(options, logits, log);
  return Explained(options, logits, options.temperature == 0 ? Greediest() : Pick(options, log.size()));
}

void Sampler::Distribution(const SamplingOptions& options, std::span<const float> logits, std::span<const int32_t> log,
                           std::span<float> p) {
  Adjust(options, logits, log);
  std::ranges::fill(p, 0.0F);
  const double mass = options.temperature == 0 ? 0 : Weigh(options);
  if (mass == 0) {
    p[Greediest()] = 1;
    return;
  }
  for (const Candidate& c : candidates_) p[c.token] = static_cast<float>(c.p / mass);
}

Drawn Sampler::Explained(const SamplingOptions& options, std::span<const float> logits, int32_t token) {
  Drawn drawn = {.token = token};
  Explain(options, logits, drawn);
  return drawn;
}

void Sampler::Adjust(const SamplingOptions& options, std::span<const float> logits, std::span<const int32_t> log) {
  std::transform(logits.begin(), logits.end(), logits_.begin(), Clean);
  Bias(options);
  Penalise(options, log);
}

int32_t Sampler::Greediest() const {
  return static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
}

void Sampler::Bias(const SamplingOptions& options) {
  for (const auto& [token, bias] : options.logit_bias) logits_[token] += bias;
}

void Sampler::Penalise(const SamplingOptions& o, std::span<const int32_t> log) {
  if (o.repetition_penalty == 1 && o.presence_penalty == 0 && o.frequency_penalty == 0) return;
  const size_t window = o.penalty_window < 0 ? log.size() : std::min<size_t>(log.size(), o.penalty_window);
  const std::span<const int32_t> seen = log.last(window);
  for (const int32_t token : seen) ++counts_[token];
  for (const int32_t token : seen) {
    const auto count = static_cast<float>(std::exchange(counts_[token], 0));
    if (count == 0) continue;  // a repetition of one that was done
    float& logit = logits_[token];
    logit = logit > 0 ? logit / o.repetition_penalty : logit * o.repetition_penalty;
    logit -= o.presence_penalty + o.frequency_penalty * count;
  }
}

double Sampler::Weigh(const SamplingOptions& o) {
  // Distances from the best logit, so that no temperature makes two of them infinite and thereby equal.
  const float best = *std::max_element(logits_.begin(), logits_.end());
  candidates_.clear();
  if (best == -kInfinity) return 0;
  for (int32_t token = 0; token < static_cast<int32_t>(logits_.size()); ++token) {
    const float logit = logits_[token];
    candidates_.push_back({.token = token, .logit = logit == best ? 0 : (logit - best) / o.temperature});
  }
  if (o.top_k > 0 && o.top_k < static_cast<int32_t>(candidates_.size())) {
    std::nth_element(candidates_.begin(), candidates_.begin() + o.top_k, candidates_.end(), LikelierLogit);
    candidates_.resize(o.top_k);
  }
  Normalise();
  if (o.typical_p < 1) KeepTypical(o.typical_p);
  if (o.top_p < 1) KeepMass(o.top_p, Likelier);
  if (o.min_p > 0) KeepLikely(o.min_p);
  // One order whatever the filters left behind: the draw walks through the tokens by id.
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.token < b.token; };
  if (!std::is_sorted(candidates_.begin(), candidates_.end(), by_id)) {
    std::sort(candidates_.begin(), candidates_.end(), by_id);
  }
  double mass = 0;
  for (const Candidate& c : candidates_) mass += c.p;
  return mass;
}

int32_t Sampler::Pick(const SamplingOptions& o, uint64_t index) {
  double left = Weigh(o) * HashUniform(o.seed, kSampling, index);
  int32_t last = 0;
  for (const Candidate& c : candidates_) {
    left -= c.p;
    if (left < 0) return c.token;
    if (c.p > 0) last = c.token;
  }
  return last;  // rounding left a sliver: the last token that has any mass takes it
}

// Softmax over the candidates, whose best logit is 0.
void Sampler::Normalise() {
  double sum = 0;
  for (Candidate& c : candidates_) sum += c.p = std::exp(c.logit);
  for (Candidate& c : candidates_) c.p = static_cast<float>(c.p / sum);
}

// Locally typical sampling (Meister et al. 2022, arXiv:2202.00666): tokens whose surprise is nearest the entropy, until
// their mass reaches `mass`.
void Sampler::KeepTypical(float mass) {
  double entropy = 0;
  for (const Candidate& c : candidates_) entropy -= c.p > 0 ? c.p * std::log(static_cast<double>(c.p)) : 0;
  const auto distance = [entropy](const Candidate& c) {
    return c.p > 0 ? std::abs(-std::log(static_cast<double>(c.p)) - entropy) : std::numeric_limits<double>::infinity();
  };
  KeepMass(mass, [&](const Candidate& a, const Candidate& b) {
    const double da = distance(a);
    const double db = distance(b);
    return da != db ? da < db : a.token < b.token;
  });
  double sum = 0;
  for (const Candidate& c : candidates_) sum += c.p;
  for (Candidate& c : candidates_) c.p = static_cast<float>(c.p / sum);
}

// Keeps the shortest beginning of the candidates in the total order `before` whose mass reaches `mass`, at least one.
// Few of many are kept as a rule, so a heap beats sorting them all.
template <typename Before>
void Sampler::KeepMass(float mass, const Before& before) {
  const auto after = [&](const Candidate& a, const Candidate& b) { return before(b, a); };
  std::make_heap(candidates_.begin(), candidates_.end(), after);
  auto kept = candidates_.end();
  double sum = 0;
  do {
    std::pop_heap(candidates_.begin(), kept, after);
    --kept;
    sum += kept->p;
  } while (sum < mass && kept != candidates_.begin());
  candidates_.erase(candidates_.begin(), kept);
}

void Sampler::KeepLikely(float min_p) {
  float best = 0;
  for (const Candidate& c : candidates_) best = std::max(best, c.p);
  std::erase_if(candidates_, [floor = min_p * best](const Candidate& c) { return c.p < floor; });
}

void Sampler::Explain(const SamplingOptions& options, std::span<const float> logits, Drawn& drawn) {
  const double normaliser = LogSumOfExp(logits);
  drawn.logprob = static_cast<float>(LogShare(logits[drawn.token], normaliser, logits.size()));
  if (options.logprobs == 0) return;
  candidates_.clear();
  for (int32_t token = 0; token < static_cast<int32_t>(logits.size()); ++token) {
    candidates_.push_back({.token = token, .logit = Clean(logits[token])});
  }
  const auto count = std::min<std::ptrdiff_t>(options.logprobs, static_cast<std::ptrdiff_t>(candidates_.size()));
  std::partial_sort(candidates_.begin(), candidates_.begin() + count, candidates_.end(), LikelierLogit);
  candidates_.resize(static_cast<size_t>(count));
  for (const Candidate& c : candidates_) {
    drawn.top.push_back(
        {.token = c.token, .logprob = static_cast<float>(LogShare(c.logit, normaliser, logits.size()))});
  }
}

double LogProbability(std::span<const float> logits, int32_t token) {
  return LogShare(logits[token], LogSumOfExp(logits), logits.size());
}

}  // namespace ebb
