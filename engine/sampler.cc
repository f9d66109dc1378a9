#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/ops/gpu/draw_weight.h"
#include "policies/check.h"
#include "policies/hash_random.h"
#include "policies/shortest.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr uint64_t kSampling = 1;  // purpose of the hash
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename Number>
absl::Status OutOfRange(const char* field, Number value, const char* range) {
  return RefuseField("SAMPLING_OUT_OF_RANGE", absl::StrFormat("sampling.%s", field),
                     absl::StrFormat("%s is not in %s", Shortest(value), range));
}

// Written so that NaN is in no range.
bool In(double value, double low, double high) { return value >= low && value <= high; }
bool Above(double value, double low, double high) { return value > low && value <= high; }

// The random number by which the token of this index in the log is drawn, 0 .. 1.
double ShareOf(const SamplingOptions& o, int64_t index) {
  return HashUniform(o.seed, kSampling, static_cast<uint64_t>(index));
}

float Clean(float logit) { return std::isnan(logit) ? -kInfinity : logit; }

// A total order, the lower id first among equals: the same logits always give the same list.
constexpr auto Likelier = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
};

constexpr size_t kBlock = 16;  // tokens that are looked at together

bool IsPenalised(const SamplingOptions& o) {
  return o.repetition_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0;
}

// The tokens of the log that penalties look at.
std::span<const int32_t> SeenIn(std::span<const int32_t> log, const SamplingOptions& o) {
  if (!IsPenalised(o)) return {};
  return log.last(o.penalty_window < 0 ? log.size() : std::min<size_t>(log.size(), o.penalty_window));
}

// What top_k leaves; 0: all.
int32_t TopCount(const SamplingOptions& o, int32_t vocab) { return o.top_k < vocab ? o.top_k : 0; }
// The same, of which greedy leaves one.
int32_t KeptCount(const SamplingOptions& o, int32_t vocab) { return o.temperature == 0 ? 1 : TopCount(o, vocab); }

// min_p alone says who is kept, where no count does.
bool IsFloored(const SamplingOptions& o) { return o.min_p > 0 && o.top_p == 1 && o.typical_p == 1; }

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

gpu::DrawNeeds NeedsOf(const SamplingOptions& o, int32_t vocab, int64_t index) {
  int64_t moved = std::ssize(o.logit_bias);
  bool rises = std::ranges::any_of(o.logit_bias, [](const auto& bias) { return bias.second > 0; });
  if (IsPenalised(o)) {
    moved += o.penalty_window < 0 ? vocab : o.penalty_window;
    rises = rises || o.repetition_penalty < 1 || o.presence_penalty < 0 || o.frequency_penalty < 0;
  }
  if (rises) return {};
  const int32_t most = std::min(vocab, gpu::kLargestMax);
  if (const int32_t kept = KeptCount(o, vocab); kept > 0) {
    const int64_t count = std::min<int64_t>(kept + moved, vocab);
    return {.largest = count > most ? 0 : static_cast<int32_t>(count)};
  }
  if (IsFloored(o)) return {.largest = most};
  if (o.typical_p < 1 || moved > 0) return {};
  if (o.top_p < 1) return {.largest = most, .temperature = o.temperature};
  return {.largest = 1, .temperature = o.temperature, .share = ShareOf(o, index)};
}

Sampler::Sampler(int32_t vocab)
    : changed_(vocab),
      counts_(vocab, 0),
      tail_(kBlock),
      bests_((vocab + kBlock - 1) / kBlock),
      order_(bests_.size()),
      weights_(bests_.size() * kBlock),
      masses_(bests_.size()) {
  candidates_.reserve(weights_.size());
}

Drawn Sampler::Draw(const SamplingOptions& options, std::span<const float> logits, std::span<const int32_t> log) {
  return Explained(options, logits, DrawToken(options, logits, log));
}

int32_t Sampler::DrawToken(const SamplingOptions& options, std::span<const float> logits,
                           std::span<const int32_t> log) {
  Adjust(options, logits, log);
  if (IsCertain(options)) return FirstBest();
  Narrow(options);
  const double share = ShareOf(options, std::ssize(log));
  return narrowed_ ? PickAmongCandidates(share) : PickAmongAll(share);
}

std::optional<int32_t> Sampler::DrawTokenFrom(const SamplingOptions& o, const RowFacts& facts,
                                              std::span<const int32_t> log) {
  const int64_t known = std::ssize(facts.largest);
  EBB_CHECK(known > 0 && known <= gpu::kLargestMax);
  const int32_t count = KeptCount(o, static_cast<int32_t>(changed_.size()));
  if (count == 0 && !IsFloored(o)) return DrawByMass(o, facts, log);
  if (count > known) return std::nullopt;
  AdjustLargest(o, facts.largest, log);
  const bool are_all = count > 0 ? AreTop(count, o, facts.largest, log) : AreLikely(o, facts.largest, log);
  if (!are_all) return std::nullopt;
  if (best_ == -kInfinity) return 0;
  if (IsCertain(o)) return candidates_.front().token;
  Filter(o, 0);
  return PickAmongCandidates(ShareOf(o, std::ssize(log)));
}

// Where it takes the mass of all tokens to know who may be drawn, which is that of the row as it was.
std::optional<int32_t> Sampler::DrawByMass(const SamplingOptions& o, const RowFacts& facts,
                                           std::span<const int32_t> log) {
  const bool is_moved = !o.logit_bias.empty() || !SeenIn(log, o).empty();
  if (is_moved || o.typical_p < 1 || facts.asked.temperature != o.temperature) return std::nullopt;
  best_ = facts.largest.front().logit;
  if (best_ == -kInfinity) return 0;
  const double share = ShareOf(o, std::ssize(log));
  if (o.top_p == 1) {
    const bool is_sure = facts.asked.share == share && facts.mass.margin > gpu::kMassError;
    return is_sure ? std::optional(static_cast<int32_t>(facts.mass.token)) : std::nullopt;
  }
  candidates_.clear();
  for (const gpu::TokenLogit& l : facts.largest) candidates_.push_back({.token = l.token, .logit = l.logit});
  WeighCandidates(o.temperature);
  if (!KeepNucleus(o.top_p, facts.mass.mass)) return std::nullopt;
  if (o.min_p > 0) KeepLikely(o.min_p);
  return PickAmongCandidates(share);
}

// Keeps the beginning of the candidates whose mass reaches `share` of that of the row, and tells whether that is the
// same by any mass within kMassError of `mass`. REQUIRES: candidates are the likeliest of the row, in order.
bool Sampler::KeepNucleus(float share, double mass) {
  const double wanted = share * mass;
  const double unsure = gpu::kMassError * mass;
  double before = 0;
  double sum = 0;
  size_t kept = 0;
  do {
    before = sum;
    sum += candidates_[kept++].weight;
  } while (sum < wanted && kept < candidates_.size());
  candidates_.resize(kept);
  return sum >= wanted + unsure && (kept == 1 || before <= wanted - unsure);
}

// Candidates: the largest logits, changed as a whole row is; and in changed_, bounds of the moved tokens behind them.
// Both penalties and bias are monotone, also after rounding, so a logit that is at most the last of the largest becomes
// at most what that becomes.
void Sampler::AdjustLargest(const SamplingOptions& o, std::span<const gpu::TokenLogit> largest,
                            std::span<const int32_t> log) {
  const gpu::TokenLogit last = largest.back();
  // An equal logit of a smaller token would be among the largest.
  const float below = std::nextafter(last.logit, -kInfinity);
  const std::span<const int32_t> seen = SeenIn(log, o);
  const auto bound = [&](int32_t token) { changed_[token] = token < last.token ? below : last.logit; };
  for (const auto& [token, bias] : o.logit_bias) bound(token);
  for (const int32_t token : seen) bound(token);
  for (const gpu::TokenLogit& l : largest) changed_[l.token] = l.logit;
  Change(o, seen);
  candidates_.clear();
  for (const gpu::TokenLogit& l : largest) candidates_.push_back({.token = l.token, .logit = changed_[l.token]});
}

// Whether no token but the candidates can be one of which might_stay(token, logit) is true. `last`: that of the largest
// logits. REQUIRES: AdjustLargest; might_stay is true of a larger logit where it is of a smaller one.
template <typename MightStay>
bool Sampler::AreAll(const SamplingOptions& o, std::span<const gpu::TokenLogit> largest, std::span<const int32_t> log,
                     const MightStay& might_stay) const {
  const auto is_open = [&](int32_t token) {
    return might_stay(token, changed_[token]) &&
           std::ranges::find(candidates_, token, &Candidate::token) == candidates_.end();
  };
  const gpu::TokenLogit last = largest.back();
  if (largest.size() < changed_.size() && might_stay(last.token, last.logit)) return false;
  return std::ranges::none_of(o.logit_bias, [&](const auto& bias) { return is_open(bias.first); }) &&
         std::ranges::none_of(SeenIn(log, o), is_open);
}

// Keeps `count` candidates and tells whether they are the likeliest of the row. REQUIRES: AdjustLargest.
bool Sampler::AreTop(int32_t count, const SamplingOptions& o, std::span<const gpu::TokenLogit> largest,
                     std::span<const int32_t> log) {
  KeepTop(count);
  best_ = candidates_.front().logit;
  return AreAll(o, largest, log, [worst = candidates_.back()](int32_t token, float logit) {
    return Likelier(Candidate{.token = token, .logit = logit}, worst);
  });
}

// Whether the candidates are all whom min_p keeps, and others. A weight that is a little below the floor is not trusted
// to be above that of a smaller logit: it rounds. REQUIRES: AdjustLargest.
bool Sampler::AreLikely(const SamplingOptions& o, std::span<const gpu::TokenLogit> largest,
                        std::span<const int32_t> log) {
  constexpr float kSurely = 1 - 0x1p-16F;
  best_ = std::ranges::max(candidates_, {}, &Candidate::logit).logit;
  return AreAll(o, largest, log, [&](int32_t /*token*/, float logit) {
    return logit >= best_ || gpu::DrawWeight(logit, best_, o.temperature) >= kSurely * o.min_p;
  });
}

void Sampler::Distribution(const SamplingOptions& options, std::span<const float> logits, std::span<const int32_t> log,
                           std::span<float> p) {
  Adjust(options, logits, log);
  std::fill(p.begin(), p.end(), 0.0F);
  if (IsCertain(options)) {
    p[FirstBest()] = 1;
    return;
  }
  Narrow(options);
  if (narrowed_) {
    const double mass = Mass();
    for (const Candidate& c : candidates_) p[c.token] = static_cast<float>(c.weight / mass);
  } else {
    for (size_t i = 0; i < p.size(); ++i) p[i] = static_cast<float>(weights_[i] / mass_);
  }
}

Drawn Sampler::Explained(const SamplingOptions& options, std::span<const float> logits, int32_t token) {
  Look(logits);  // as the model gave them
  const double normaliser = std::isinf(best_) ? best_ : best_ + std::log(Weigh(1));
  const auto log_share = [&](int32_t of) {
    return static_cast<float>(LogShare(logits[of], normaliser, logits.size()));
  };
  Drawn drawn = {.token = token, .logprob = log_share(token)};
  if (options.logprobs == 0) return drawn;
  GatherTop(std::min(options.logprobs, static_cast<int32_t>(logits.size())));
  for (const Candidate& c : candidates_) drawn.top.push_back({.token = c.token, .logprob = log_share(c.token)});
  return drawn;
}

// Bias and penalties; then looks at what has become of the logits.
void Sampler::Adjust(const SamplingOptions& o, std::span<const float> logits, std::span<const int32_t> log) {
  const std::span<const int32_t> seen = SeenIn(log, o);
  if (seen.empty() && o.logit_bias.empty()) return Look(logits);
  std::copy(logits.begin(), logits.end(), changed_.begin());
  Change(o, seen);
  Look(changed_);
}

// changed_, where bias and penalties move it; nothing else of it is read.
void Sampler::Change(const SamplingOptions& o, std::span<const int32_t> seen) {
  for (const auto& [token, bias] : o.logit_bias) changed_[token] += bias;
  for (const int32_t token : seen) ++counts_[token];
  for (const int32_t token : seen) {
    const auto count = static_cast<float>(std::exchange(counts_[token], 0));
    if (count == 0) continue;  // a repetition of one that was done
    float& logit = changed_[token];
    logit = logit > 0 ? logit / o.repetition_penalty : logit * o.repetition_penalty;
    logit -= o.presence_penalty + o.frequency_penalty * count;
  }
}

// Points at a row of logits and finds the best of each block and of all. Loops over a block have a fixed length, which
// compilers turn into vector instructions; NaN loses every comparison.
void Sampler::Look(std::span<const float> logits) {
  logits_ = logits;
  std::fill(tail_.begin(), tail_.end(), -kInfinity);
  std::copy(logits.end() - static_cast<std::ptrdiff_t>(logits.size() % kBlock), logits.end(), tail_.begin());
  best_ = -kInfinity;
  for (size_t block = 0; block < bests_.size(); ++block) {
    const float* const x = Block(block);
    float best[4] = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};
    for (size_t j = 0; j < kBlock; j += 4) {
      for (size_t i = 0; i < 4; ++i) best[i] = x[j + i] > best[i] ? x[j + i] : best[i];
    }
    bests_[block] = std::max(std::max(best[0], best[1]), std::max(best[2], best[3]));
    best_ = std::max(best_, bests_[block]);
  }
}

// REQUIRES: block < bests_.size().
const float* Sampler::Block(size_t block) const {
  return (block + 1) * kBlock <= logits_.size() ? logits_.data() + block * kBlock : tail_.data();
}

bool Sampler::IsCertain(const SamplingOptions& options) const {
  return options.temperature == 0 || best_ == -kInfinity;
}

// The filters: weighs what may be drawn. REQUIRES: not certain.
void Sampler::Narrow(const SamplingOptions& o) {
  narrowed_ = true;
  double mass = 0;  // of what top_p takes its share of; 0: the candidates'
  if (const int32_t count = TopCount(o, static_cast<int32_t>(logits_.size())); count > 0) {
    GatherTop(count);
  } else if (o.typical_p < 1) {
    Gather(-kInfinity);
  } else if (o.top_p < 1) {
    mass = Weigh(o.temperature);
    GatherMass(o.top_p * mass, o.temperature);
  } else if (o.min_p > 0) {
    // A little below what is kept, since exponentials round; KeepLikely decides.
    Gather(static_cast<float>(best_ + o.temperature * (std::log(double{o.min_p}) - 0.01)));
  } else {
    narrowed_ = false;
    Weigh(o.temperature);
    return;
  }
  Filter(o, mass);
}

// The filters behind top_k, which know of no token but the candidates. `mass` as in Narrow.
void Sampler::Filter(const SamplingOptions& o, double mass) {
  WeighCandidates(o.temperature);
  if (o.typical_p < 1) KeepTypical(o.typical_p, o.temperature);
  if (o.top_p < 1) KeepMass(o.top_p * (mass > 0 ? mass : Mass()), Likelier);
  if (o.min_p > 0) KeepLikely(o.min_p);
}

int32_t Sampler::FirstBest() const {
  if (best_ == -kInfinity) return 0;
  const auto block = static_cast<size_t>(std::find(bests_.begin(), bests_.end(), best_) - bests_.begin());
  const float* const x = Block(block);
  return static_cast<int32_t>(block * kBlock) + static_cast<int32_t>(std::find(x, x + kBlock, best_) - x);
}

// The weight of every token, into weights_, masses_ and mass_, which it returns. REQUIRES: the best logit is not
// -infinity.
double Sampler::Weigh(float temperature) {
  const float best = best_;
  mass_ = 0;
  for (size_t block = 0; block < bests_.size(); ++block) {
    const float* const x = Block(block);
    float weight[kBlock];
    for (size_t i = 0; i < kBlock; ++i) weight[i] = gpu::DrawWeight(x[i], best, temperature);
    double mass = 0;
    for (size_t i = 0; i < kBlock; ++i) mass += weight[i];
    std::copy_n(weight, kBlock, weights_.data() + block * kBlock);
    mass_ += masses_[block] = mass;
  }
  return mass_;
}

// Candidates: the tokens whose logit is not below `floor`, by id.
void Sampler::Gather(float floor) {
  candidates_.clear();
  for (size_t block = 0; block < bests_.size(); ++block) {
    if (bests_[block] < floor) continue;
    const float* const x = Block(block);
    const auto first = static_cast<int32_t>(block * kBlock);
    const auto count = std::min<int32_t>(kBlock, static_cast<int32_t>(logits_.size()) - first);
    for (int32_t i = 0; i < count; ++i) {
      const float logit = Clean(x[i]);
      if (logit >= floor) candidates_.push_back({.token = first + i, .logit = logit});
    }
  }
}

// Candidates: the `count` tokens of the largest logits, as KeepTop leaves them. As many blocks have a best that is not
// below the floor, so at least as many tokens are gathered, and not many more.
void Sampler::GatherTop(int32_t count) {
  float floor = -kInfinity;
  if (count < static_cast<int32_t>(bests_.size())) {
    std::copy(bests_.begin(), bests_.end(), order_.begin());
    std::nth_element(order_.begin(), order_.begin() + count - 1, order_.end(), std::greater<>());
    floor = order_[count - 1];
  }
  Gather(floor);
  KeepTop(count);
}

// The likeliest candidates. Few are in order: sums of weights round, and they are to be the same whatever else was
// gathered, in DrawTokenFrom, too.
void Sampler::KeepTop(int32_t count) {
  if (count < static_cast<int32_t>(candidates_.size())) {
    std::nth_element(candidates_.begin(), candidates_.begin() + count, candidates_.end(), Likelier);
    candidates_.resize(count);
  }
  if (count <= gpu::kLargestMax) std::sort(candidates_.begin(), candidates_.end(), Likelier);
}

// Candidates: all tokens above some logit, whose mass is at least `mass`. REQUIRES: Weigh, of which `mass` is a share.
void Sampler::GatherMass(double mass, float temperature) {
  for (float depth = 4;; depth *= 1.25F) {  // few steps even to the smallest weight, and little too far
    const bool all = depth > -gpu::kNoWeight;
    Gather(all ? -kInfinity : best_ - depth * temperature);
    double sum = 0;
    for (const Candidate& c : candidates_) sum += weights_[c.token];
    if (all || sum >= mass) return;
  }
}

void Sampler::WeighCandidates(float temperature) {
  for (Candidate& c : candidates_) c.weight = gpu::DrawWeight(c.logit, best_, temperature);
}

double Sampler::Mass() const {
  double mass = 0;
  for (const Candidate& c : candidates_) mass += c.weight;
  return mass;
}

// Locally typical sampling (Meister et al. 2022, arXiv:2202.00666): tokens whose surprise is nearest the entropy, until
// their share of the mass reaches `share`. Both are measured from the logarithm of the mass, which then drops out.
void Sampler::KeepTypical(float share, float temperature) {
  const auto level = [&](const Candidate& c) { return c.logit == best_ ? 0 : (double{c.logit} - best_) / temperature; };
  double mass = 0;
  double sum = 0;
  for (const Candidate& c : candidates_) {
    mass += c.weight;
    if (c.weight > 0) sum += c.weight * level(c);
  }
  for (Candidate& c : candidates_) {
    c.oddness = c.weight > 0 ? static_cast<float>(std::abs(level(c) - sum / mass)) : kInfinity;
  }
  KeepMass(share * mass, [](const Candidate& a, const Candidate& b) {
    return a.oddness != b.oddness ? a.oddness < b.oddness : a.token < b.token;
  });
}

// Keeps the shortest beginning of the candidates in the total order `before` whose mass reaches `mass`, at least one.
// Halves where the end may lie, so the work is that of selecting, not of sorting.
template <typename Before>
void Sampler::KeepMass(double mass, const Before& before) {
  auto first = candidates_.begin();  // what stands before it is kept, and `mass` is what is wanted beside that
  auto end = candidates_.end();      // nothing behind it is
  while (end - first > 1) {
    const auto middle = first + (end - first) / 2;
    std::nth_element(first, middle, end, before);
    double sum = 0;
    for (auto c = first; c != middle; ++c) sum += c->weight;
    if (sum < mass) {
      mass -= sum;
      first = middle;
    } else {
      end = middle;
    }
  }
  candidates_.erase(end, candidates_.end());
}

void Sampler::KeepLikely(float min_p) {
  float best = 0;
  for (const Candidate& c : candidates_) best = std::max(best, c.weight);
  std::erase_if(candidates_, [floor = min_p * best](const Candidate& c) { return c.weight < floor; });
}

// The token in which a share of the mass, 0 .. 1, ends when the weights of all lie side by side by id. REQUIRES: Weigh.
int32_t Sampler::PickAmongAll(double share) const {
  double at = share * mass_;
  size_t last = 0;
  for (size_t block = 0; block < masses_.size(); ++block) {
    if (masses_[block] > 0) last = block;
    if (at >= masses_[block]) {
      at -= masses_[block];
      continue;
    }
    for (size_t i = block * kBlock; i < (block + 1) * kBlock; ++i) {
      at -= weights_[i];
      if (at < 0) return static_cast<int32_t>(i);
    }
  }
  // Rounding left a sliver: the last token that has any mass takes it.
  size_t token = (last + 1) * kBlock - 1;
  while (token > 0 && weights_[token] == 0) --token;
  return static_cast<int32_t>(token);
}

// The same among the candidates, in whatever order they are. Many are not sorted but put in their places.
int32_t Sampler::PickAmongCandidates(double share) {
  if (candidates_.size() > bests_.size() / 4) {
    std::fill(weights_.begin(), weights_.end(), 0.0F);
    for (const Candidate& c : candidates_) weights_[c.token] = c.weight;
    mass_ = 0;
    for (size_t block = 0; block < masses_.size(); ++block) {
      masses_[block] = 0;
      for (size_t i = 0; i < kBlock; ++i) masses_[block] += weights_[block * kBlock + i];
      mass_ += masses_[block];
    }
    return PickAmongAll(share);
  }
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  double at = share * Mass();
  int32_t last = 0;
  for (const Candidate& c : candidates_) {
    at -= c.weight;
    if (at < 0) return c.token;
    if (c.weight > 0) last = c.token;
  }
  return last;
}

double LogProbability(std::span<const float> logits, int32_t token) {
  return LogShare(logits[token], LogSumOfExp(logits), logits.size());
}

}  // namespace ebb
