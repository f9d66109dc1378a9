#include "policies/scissorhands.h"

#include <bit>
#include <cmath>
#include <cstddef>

#include "policies/check.h"

namespace ebb {
namespace {

constexpr int32_t kBits = 24;  // that a float holds as a whole number

class Scissorhands final : public Scorer {
 public:
  explicit Scissorhands(int32_t window) : window_(window) { EBB_CHECK(window >= 1); }

  Needs needs() const override { return {.window_rows = window_, .state_floats = static_cast<int32_t>(Words()) + 1}; }

  int64_t lane_floats(const LaneShape& /*shape*/) const override { return 1; }  // which bit the next row sets

  void Observe(const LaneView& lane, const Observation& seen, const MutableScorerState& state) const override {
    const size_t slots = lane.token.size();
    EBB_CHECK(!seen.window.empty());
    EBB_CHECK(seen.window.size() % slots == 0);
    EBB_CHECK(state.slot.size() == slots * (Words() + 1));
    const auto rows = static_cast<int32_t>(seen.window.size() / slots);
    EBB_CHECK(static_cast<int32_t>(seen.slots.size()) >= rows);
    const auto first = static_cast<int32_t>(state.lane[0]);
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t after = rows - 1 - row;  // tokens of the step that come later; all others are older
      const float level = 1 / static_cast<float>(lane.live - after);
      const int32_t token = lane.token[seen.slots[seen.slots.size() - 1 - after]];
      const int32_t bit = (first + row) % window_;
      const float* p = seen.window.data() + row * slots;
      for (size_t slot = 0; slot < slots; ++slot) {
        const bool unimportant = lane.token[slot] <= token && p[slot] < level;
        Set(state.slot[slot * (Words() + 1) + bit / kBits], bit % kBits, unimportant);
      }
    }
    for (size_t slot = 0; slot < slots; ++slot) {
      state.slot[slot * (Words() + 1) + Words()] = seen.window[(rows - 1) * slots + slot];
    }
    state.lane[0] = static_cast<float>((first + rows) % window_);
  }

  void Score(const LaneView& /*lane*/, const ScorerState& state, std::span<float> keep) const override {
    EBB_CHECK(state.slot.size() == keep.size() * (Words() + 1));
    const float* at = state.slot.data();
    for (float& score : keep) {
      int32_t unimportant = 0;
      for (size_t word = 0; word < Words(); ++word) unimportant += std::popcount(static_cast<uint32_t>(*at++));
      constexpr float kBelowOne = 31.0F / 32;
      score = kBelowOne * std::sqrt(std::sqrt(*at++)) - static_cast<float>(unimportant);
    }
  }

 private:
  size_t Words() const { return static_cast<size_t>((window_ + kBits - 1) / kBits); }

  static void Set(float& word, int32_t bit, bool to) {
    const uint32_t bits = static_cast<uint32_t>(word) & ~(uint32_t{1} << bit);
    word = static_cast<float>(bits | uint32_t{to} << bit);
  }

  int32_t window_;
};

}  // namespace

std::unique_ptr<const Scorer> MakeScissorhands(int32_t window) { return std::make_unique<Scissorhands>(window); }

}  // namespace ebb
