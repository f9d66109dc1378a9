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

// How long one call's next draft should be, from how its last ones fared: twice as long after one that was accepted
// whole, one more than was accepted after another. Where less than half of what is drafted is accepted, drafts do not
// pay; it pauses, longer each time, and then tries again.
class DraftLength {
 public:
  // `most` >= 1.
  explicit DraftLength(int32_t most) : most_(most) {}

  // Tokens to draft in this step, 0 .. most. Counts the steps of a pause.
  int32_t Next();
  // REQUIRES: 1 <= drafted, 0 <= accepted <= drafted.
  void Settle(int32_t drafted, int32_t accepted);

 private:
  int32_t most_ = 1;
  int32_t length_ = 4;
  double rate_ = kBegin;  // of drafted tokens that are accepted, an exponential mean over drafts
  int32_t pause_ = 0;     // steps left
  int32_t pauses_ = 0;    // since a draft was last accepted whole

  static constexpr double kBegin = 0.75;
  static constexpr double kPays = 0.5;
  static constexpr double kNew = 0.25;  // weight of the newest draft
};

}  // namespace ebb

#endif  // EBB_ENGINE_DRAFTER_H_
