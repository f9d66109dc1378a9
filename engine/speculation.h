// Which tokens of a draft the model agrees to, and which token follows them.
//
// Without the draft's probabilities a token is accepted if the sampler draws it at its place: what comes out is, token
// for token, what decoding yields; with temperature 0 that is greedy match.
//
// With them, speculative sampling (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318). Token
// x of the draft was drawn from q, and the sampler would draw from p:
//
//   accept x with probability min(1, p(x) / q(x)); where it is rejected, draw from (p - q)+ / sum (p - q)+
//
// and what comes out is distributed as p, whatever q is. Behind a draft that is accepted whole the sampler draws as
// ever. The random numbers are, as the sampler's, a hash of the seed and the token's index in the log.

#ifndef EBB_ENGINE_SPECULATION_H_
#define EBB_ENGINE_SPECULATION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/sampler.h"

namespace ebb {

inline constexpr int32_t kDraftTokensMax = 64;

struct TokenProbability {
  int32_t token = 0;
  float p = 0;
};

// Tokens proposed to follow a log, and, if they were drawn at random, what each was drawn from.
struct DraftProposal {
  std::vector<int32_t> tokens = {};
  std::vector<std::vector<TokenProbability>> q = {};  // one for each token, or none; tokens not named have 0
};

// INVALID_ARGUMENT: DRAFT_EMPTY or DRAFT_TOO_LONG (1 .. kDraftTokensMax), TOKEN_OUT_OF_RANGE, all with field
// `draft_tokens`; DRAFT_PROBABILITIES, field `draft_probabilities[i]`, unless each names distinct tokens of the
// vocabulary with probabilities that sum to 1 within 0.001, and its own token with more than 0.
absl::Status CheckDraft(const DraftProposal& draft, int32_t vocab);

struct DraftVerdict {
  int32_t accepted = 0;  // of the draft, from its start
  int32_t next = 0;      // the token behind them
};

// `before` [vocab]: the logits of the log's last token; `logits` [draft tokens, vocab]: those of the draft's. REQUIRES:
// CheckDraft, CheckSampling.
DraftVerdict Judge(const DraftProposal& draft, const SamplingOptions& options, std::span<const float> before,
                   std::span<const float> logits, std::span<const int32_t> log, Sampler& sampler);

}  // namespace ebb

#endif  // EBB_ENGINE_SPECULATION_H_
