// How many tokens steps of a device bring, where memory for more was lacking.
//
// A step without memory costs more than itself: all that was kept of the steps before is given back in the attempt
// (GpuEngine::LetGo). So what had memory is remembered, and the next step asks for no more. Not for good: after
// kPatience steps twice as much is tried, and so on, so that a shortage that is over is forgotten.

#ifndef EBB_ENGINE_GPU_STEP_BOUND_H_
#define EBB_ENGINE_GPU_STEP_BOUND_H_

#include <algorithm>
#include <cstdint>

namespace ebb {

class StepBound {
 public:
  static constexpr int32_t kPatience = 256;

  // Most tokens of a step; of a single session's none, which cannot be parted.
  int64_t tokens() const { return tokens_; }

  // A step of more tokens than so many found no memory.
  void Lower(int64_t tokens) {
    tokens_ = tokens;
    steps_ = 0;
  }

  // A step found memory.
  void CountStep() {
    if (tokens_ == kNone || ++steps_ < kPatience) return;
    tokens_ = std::min(2 * tokens_, kNone);
    steps_ = 0;
  }

 private:
  static constexpr int64_t kNone = int64_t{1} << 31;  // more than any step brings

  int64_t tokens_ = kNone;
  int32_t steps_ = 0;  // that found memory, since the bound last changed
};

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_STEP_BOUND_H_
