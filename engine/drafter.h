// Drafts made of what a log has said before, and how long they should be. Pure: the same log, the same draft.

#ifndef EBB_ENGINE_DRAFTER_H_
#define EBB_ENGINE_DRAFTER_H_

#include <cstdint>
#include <span>
#include <vector>

namespace ebb {

// Prompt lookup: where the last three tokens, or else two, stood before, newest place first, what followed there may
// follow again. Writes at most `most` tokens into `draft`, none where they never stood before; a repetition that is
// still going on is drafted on. Looks back over kLookBackTokens.
inline constexpr int32_t kLookBackTokens = 1 << 14;
void LookUp(std::span<const int32_t> log, int32_t most, std::vector<int32_t>& draft);

// What a drafted token costs beside a decoded one, from what steps took: a line through their tokens and seconds, of
// which older ones count less and less.
class DraftCost {
 public:
  // A step of `tokens` rows of the model took so long. REQUIRES: tokens >= 1.
  void StepTook(int32_t tokens, double seconds);
  // Drafting as many tokens took so long. REQUIRES: tokens >= 1.
  void DraftTook(int32_t tokens, double seconds);

  // Of drafted tokens the share that has to be accepted for a step with drafts to yield as many tokens per second as
  // one of `sessions` tokens without: what a drafted token adds to a step, by what a token of the step takes. 0 while
  // too little is known, above 1 where drafts cannot pay. REQUIRES: sessions >= 1.
  double BreakEven(int32_t sessions) const;

 private:
  double weight_ = 0, tokens_ = 0, seconds_ = 0, squares_ = 0, products_ = 0;  // sums over steps
  double drafted_ = 0, draft_seconds_ = 0;

  static constexpr double kKept = 0.98;  // of the sums, by each step
};

// How long one call's next draft should be, from how its last ones fared: twice as long after one that was accepted
// whole, one more than was accepted after another. Where less of what is drafted is accepted than pays, it pauses,
// longer each time, and then tries again. It begins short and sceptical: a text that repeats itself makes up for that
// within a few steps, and one that does not pays for each draft with all that share its step.
class DraftLength {
 public:
  // `most` >= 1.
  explicit DraftLength(int32_t most) : most_(most) {}

  // Tokens to draft in this step, 0 .. most. Counts the steps of a pause.
  int32_t Next();
  // `pays`: the share of accepted tokens below which drafts do not, >= 0. REQUIRES: 1 <= drafted, 0 <= accepted <=
  // drafted.
  void Settle(int32_t drafted, int32_t accepted, double pays = kPays);

 private:
  int32_t most_ = 1;
  int32_t length_ = 2;
  double rate_ = kBegin;  // of drafted tokens that are accepted, an exponential mean over drafts
  int32_t pause_ = 0;     // steps left
  int32_t pauses_ = 0;    // since a draft was last accepted whole

  static constexpr double kBegin = 0.6;  // so that one that is rejected whole is enough to pause
  static constexpr double kPays = 0.5;   // of drafts that cost nothing to make
  static constexpr double kNew = 0.25;   // weight of the newest draft
};

}  // namespace ebb

#endif  // EBB_ENGINE_DRAFTER_H_
