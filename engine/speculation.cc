#include "engine/speculation.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/hash_random.h"
#include "policies/shortest.h"
#include "policies/status.h"

namespace ebb {
namespace {

// Purposes of the hash; 1 is the sampler's.
constexpr uint64_t kAccepting = 2;
constexpr uint64_t kRejected = 3;
constexpr double kSumTolerance = 1e-3;

double SumOf(std::span<const TokenProbability> q) {
  double sum = 0;
  for (const TokenProbability& each : q) sum += each.p;
  return sum;
}

absl::Status CheckProbabilities(const DraftProposal& draft, size_t i, int32_t vocab) {
  const std::vector<TokenProbability>& q = draft.q[i];
  const int32_t token = draft.tokens[i];
  const std::string field = absl::StrFormat("draft_probabilities[%d]", i);
  const auto refuse = [&field](const std::string& what) { return RefuseField("DRAFT_PROBABILITIES", field, what); };
  std::set<int32_t> named;
  bool own = false;
  for (size_t k = 0; k < q.size(); ++k) {
    const TokenProbability& each = q[k];
    if (each.token < 0 || each.token >= vocab) {
      return refuse(absl::StrFormat("token %d is not in 0..%d", each.token, vocab - 1));
    }
    if (!named.insert(each.token).second) return refuse(absl::StrFormat("token %d is named twice", each.token));
    if (!(each.p >= 0 && each.p <= 1)) {
      return RefuseField("DRAFT_PROBABILITIES", absl::StrFormat("%s.probabilities[%d]", field, k),
                         absl::StrFormat("%s is not in [0, 1]", Shortest(each.p)));
    }
    own = own || (each.token == token && each.p > 0);
  }
  if (!own) return refuse(absl::StrFormat("token %d of the draft has none; it cannot have been drawn", token));
  if (std::abs(SumOf(q) - 1) > kSumTolerance) return refuse(absl::StrFormat("they sum to %g, not to 1", SumOf(q)));
  return absl::OkStatus();
}

// What speculative sampling makes of one token.
class Rejection {
 public:
  // Leaves (p - q)+ in `p` [vocab].
  Rejection(std::span<const TokenProbability> q, int32_t token, std::span<float> p) : p_(p) {
    const double sum = SumOf(q);
    for (const TokenProbability& each : q) {
      const double share = each.p / sum;
      if (each.token == token) ratio_ = p[each.token] / share;
      p[each.token] = static_cast<float>(std::max(0.0, p[each.token] - share));
    }
  }

  bool Accepts(uint64_t seed, uint64_t index) const { return HashUniform(seed, kAccepting, index) < ratio_; }

  // Where it does not accept, p(token) < q(token), so elsewhere p exceeds q and something is left.
  int32_t Redraw(uint64_t seed, uint64_t index) const {
    double mass = 0;
    for (const float p : p_) mass += p;
    double left = HashUniform(seed, kRejected, index) * mass;
    int32_t last = 0;
    for (int32_t token = 0; token < static_cast<int32_t>(p_.size()); ++token) {
      left -= p_[token];
      if (left < 0) return token;
      if (p_[token] > 0) last = token;
    }
    return last;  // rounding left a sliver
  }

 private:
  std::span<float> p_;
  double ratio_ = 0;  // p(token) / q(token)
};

}  // namespace

absl::Status CheckDraft(const DraftProposal& draft, int32_t vocab) {
  if (draft.tokens.empty()) return RefuseField("DRAFT_EMPTY", "draft_tokens", "there is nothing to verify");
  if (draft.tokens.size() > kDraftTokensMax) {
    return RefuseField("DRAFT_TOO_LONG", "draft_tokens",
                       absl::StrFormat("%d tokens; at most %d", draft.tokens.size(), kDraftTokensMax));
  }
  for (const int32_t token : draft.tokens) {
    if (token < 0 || token >= vocab) {
      return RefuseField("TOKEN_OUT_OF_RANGE", "draft_tokens",
                         absl::StrFormat("token %d is not in 0..%d", token, vocab - 1));
    }
  }
  if (draft.q.empty()) return absl::OkStatus();
  if (draft.q.size() != draft.tokens.size()) {
    return RefuseField("DRAFT_PROBABILITIES", "draft_probabilities",
                       absl::StrFormat("%d distributions for %d tokens; give one for each, or none", draft.q.size(),
                                       draft.tokens.size()));
  }
  for (size_t i = 0; i < draft.q.size(); ++i) EBB_TRY(CheckProbabilities(draft, i, vocab));
  return absl::OkStatus();
}

DraftVerdict Judge(const DraftProposal& draft, const SamplingOptions& options, std::span<const float> before,
                   std::span<const float> logits, std::span<const int32_t> log, Sampler& sampler) {
  const size_t vocab = before.size();
  EBB_CHECK(logits.size() == draft.tokens.size() * vocab);
  std::vector<int32_t> so_far(log.begin(), log.end());
  std::vector<float> p(draft.q.empty() ? 0 : vocab);
  DraftVerdict verdict;
  for (const int32_t token : draft.tokens) {
    const auto i = static_cast<size_t>(verdict.accepted);
    const std::span<const float> at = i == 0 ? before : logits.subspan((i - 1) * vocab, vocab);
    if (draft.q.empty()) {
      verdict.next = sampler.DrawToken(options, at, so_far);
      if (verdict.next != token) return verdict;
    } else {
      sampler.Distribution(options, at, so_far, p);
      const Rejection rule(draft.q[i], token, p);
      if (!rule.Accepts(options.seed, so_far.size())) {
        verdict.next = rule.Redraw(options.seed, so_far.size());
        return verdict;
      }
    }
    so_far.push_back(token);
    ++verdict.accepted;
  }
  verdict.next = sampler.DrawToken(options, logits.last(vocab), so_far);
  return verdict;
}

}  // namespace ebb
