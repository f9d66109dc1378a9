// Logits to token: penalties, bias, truncation, draw (API.md, Sampling).
//
// A draw is a function of (options, logits, log): random numbers are a hash of (seed, index of the token in the log),
// not a stream, so a session yields the same tokens alone, in company, or after a replay.

#ifndef EBB_ENGINE_SAMPLER_H_
#define EBB_ENGINE_SAMPLER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/row_facts.h"

namespace ebb {

// Defaults: the model's own distribution. Applied in this order: logit_bias, penalties, temperature, top_k, typical_p,
// top_p, min_p.
struct SamplingOptions {
  float temperature = 1;                     // >= 0; 0: greedy, the first of the largest logits
  int32_t top_k = 0;                         // >= 0; 0: off
  float top_p = 1;                           // (0, 1]
  float min_p = 0;                           // [0, 1]: keep p >= min_p * p_max
  float typical_p = 1;                       // (0, 1]
  float repetition_penalty = 1;              // > 0 (CTRL): seen logits are divided (if positive) or multiplied by it
  float presence_penalty = 0;                // [-2, 2], subtracted once for a token seen in the window
  float frequency_penalty = 0;               // [-2, 2], subtracted per occurrence in the window
  int32_t penalty_window = 64;               // last tokens of the log that penalties look at; 0: none, -1: all
  std::map<int32_t, float> logit_bias = {};  // [-100, 100] each
  uint64_t seed = 0;
  int32_t logprobs = 0;  // 0..20 alternatives to report beside the chosen token; chosen token's own always reported
};

// INVALID_ARGUMENT with the field path (sampling.top_p ...) and the allowed range.
absl::Status CheckSampling(const SamplingOptions& options, int32_t vocab);

// What of a row of logits says which token `index` of the log is drawn; nothing where it takes the row. Bias and
// penalties may move a bounded number of tokens, and none upwards: tokens behind the largest then stay there.
//
//   greedy, a top_k below vocab   as many of the largest logits, and one for each token that may move: they always do
//   min_p                         the most there may be: they do where it keeps no more than these
//   top_p, with min_p or without  these and the mass, if no token moves: likewise
//   none of them                  the token in which the draw's share of the mass ends, if no token moves
gpu::DrawNeeds NeedsOf(const SamplingOptions& options, int32_t vocab, int64_t index);

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // natural, under the model's own distribution: before bias, penalties and truncation
};

struct Drawn {
  int32_t token = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top = {};  // options.logprobs of them, best first
};

// Working memory of Draw; one per thread that draws. Nothing sorts the vocabulary: one pass finds the best logit of
// every block of 16 tokens, and what the filters may keep is then gathered from the few blocks whose best is above a
// bound; filters work on those candidates.
class Sampler {
 public:
  explicit Sampler(int32_t vocab);

  // REQUIRES: logits.size() == vocab, CheckSampling passed. NaN logits count as minus infinity; when all are, token 0.
  Drawn Draw(const SamplingOptions& options, std::span<const float> logits, std::span<const int32_t> log);

  // The token of Draw alone, which spares a pass over the vocabulary. Allocates nothing.
  int32_t DrawToken(const SamplingOptions& options, std::span<const float> logits, std::span<const int32_t> log);

  // The token of DrawToken, from what a device says of the row; nothing where that leaves another token possible, or
  // answers another draw's needs. Costs what the largest logits and the penalties' window are, not the vocabulary;
  // allocates nothing. REQUIRES: 1 .. gpu::kLargestMax of the largest; as Draw.
  std::optional<int32_t> DrawTokenFrom(const SamplingOptions& options, const RowFacts& facts,
                                       std::span<const int32_t> log);

  // What Draw draws from: `p` [vocab], which sums to 1; greedy has its one token. REQUIRES: as Draw.
  void Distribution(const SamplingOptions& options, std::span<const float> logits, std::span<const int32_t> log,
                    std::span<float> p);

  // A token that was chosen otherwise, with the log-probabilities that Draw would report.
  Drawn Explained(const SamplingOptions& options, std::span<const float> logits, int32_t token);

 private:
  struct Candidate {
    int32_t token = 0;
    float logit = 0;
    float weight = 0;   // exp((logit - best) / temperature)
    float oddness = 0;  // of typical sampling
  };
  void Change(const SamplingOptions& options, std::span<const int32_t> seen);
  void Adjust(const SamplingOptions& options, std::span<const float> logits, std::span<const int32_t> log);
  bool IsCertain(const SamplingOptions& options) const;
  void Narrow(const SamplingOptions& options);
  void Filter(const SamplingOptions& options, double mass);
  std::optional<int32_t> DrawByMass(const SamplingOptions& options, const RowFacts& facts,
                                    std::span<const int32_t> log);
  bool KeepNucleus(float share, double mass);
  void AdjustLargest(const SamplingOptions& options, std::span<const gpu::TokenLogit> largest,
                     std::span<const int32_t> log);
  template <typename MightStay>
  bool AreAll(const SamplingOptions& options, std::span<const gpu::TokenLogit> largest, std::span<const int32_t> log,
              const MightStay& might_stay) const;
  bool AreTop(int32_t count, const SamplingOptions& options, std::span<const gpu::TokenLogit> largest,
              std::span<const int32_t> log);
  bool AreLikely(const SamplingOptions& options, std::span<const gpu::TokenLogit> largest,
                 std::span<const int32_t> log);
  void Look(std::span<const float> logits);
  const float* Block(size_t block) const;
  int32_t FirstBest() const;
  double Weigh(float temperature);
  void Gather(float floor);
  void GatherTop(int32_t count);
  void KeepTop(int32_t count);
  void GatherMass(double mass, float temperature);
  void WeighCandidates(float temperature);
  double Mass() const;
  void KeepTypical(float share, float temperature);
  template <typename Before>
  void KeepMass(double mass, const Before& before);
  void KeepLikely(float min_p);
  int32_t PickAmongAll(double share) const;
  int32_t PickAmongCandidates(double share);

  std::vector<float> changed_ = {};  // [vocab] logits after bias and penalties; DrawTokenFrom's, of few tokens
  std::vector<int32_t> counts_ = {};
  std::span<const float> logits_ = {};  // what Look looked at, of which the next three are
  std::vector<float> tail_ = {};        // the last block, if it is short, filled up with minus infinity
  std::vector<float> bests_ = {};       // [blocks] the largest logit of each
  float best_ = 0;                      // the largest of all, minus infinity when none is a number
  std::vector<float> order_ = {};       // [blocks] scratch
  std::vector<float> weights_ = {};     // [blocks, 16] exp((logit - best) / temperature)
  std::vector<double> masses_ = {};     // [blocks] sums of them
  double mass_ = 0;                     // the sum of these
  bool narrowed_ = false;               // only candidates may be drawn, not all tokens
  std::vector<Candidate> candidates_ = {};
};

// log softmax(logits)[token], in float64.
double LogProbability(std::span<const float> logits, int32_t token);

}  // namespace ebb

#endif  // EBB_ENGINE_SAMPLER_H_
