#include "policies/scissorhands.h"

#include <cmath>
#include <cstddef>

#include "policies/check.h"

namespace ebb {
namespace {

constexpr int32_t kBits = 24;  // that a float holds as a whole number

// A slot's floats.
enum : size_t { kCount = 0, kLast = 1, kWords = 2 };

class Scissorhands final : public Scorer {
 public:
  explicit Scissorhands(int32_t window) : window_(window) { EBB_CHECK(window >= 1); }

  Needs needs() const override { return {.window_rows = window_, .state_floats = static_cast<int32_t>(Floats())}; }

  int64_t lane_floats(const LaneShape& /*shape*/) const override { return 1; }  // which bit the next row sets

  void Observe(const LaneView& lane, const Observation& seen, const MutableScorerState& state) const override {
    const size_t slots = lane.token.size();
    EBB_CHECK(!seen.window.empty());
    EBB_CHECK(seen.window.size() % slots == 0);
    EBB_CHECK(state.slot.size() == slots * Floats());
    const auto rows = static_cast<int32_t>(seen.window.size() / slots);
    EBB_CHECK(static_cast<int32_t>(seen.slots.size()) >= rows);
    const auto first = static_cast<int32_t>(state.lane[0]);
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t after = rows - 1 - row;  // tokens of the step that come later; all others are older
      const float level = 1 / static_cast<float>(lane.live - after);
      const int32_t token = lane.token[seen.slots[seen.slots.size() - 1 - after]];
      const int32_t bit = (first + row) % window_;
      const float* p = seen.window.data() + row * slots;
      float* kept = state.slot.data();
      for (size_t slot = 0; slot < slots; ++slot, kept += Floats()) {
        const bool unimportant = lane.token[slot] <= token && p[slot] < level;
        kept[kCount] += static_cast<float>(Set(kept[kWords + bit / kBits], bit % kBits, unimportant));
        kept[kLast] = p[slot];
      }
    }
    state.lane[0] = static_cast<float>((first + rows) % window_);
  }

  void Score(const LaneView& /*lane*/, const ScorerState& state, std::span<float> keep) const override {
    EBB_CHECK(state.slot.size() == keep.size() * Floats());
    constexpr float kBelowOne = 31.0F / 32;
    const float* kept = state.slot.data();
    for (float& score : keep) {
      score = kBelowOne * std::sqrt(std::sqrt(kept[kLast])) - kept[kCount];
      kept += Floats();
    }
  }

 private:
  size_t Floats() const { return kWords + static_cast<size_t>((window_ + kBits - 1) / kBits); }

  // Sets one bit; returns by how much their number grew.
  static int32_t Set(float& word, int32_t bit, bool to) {
    const auto bits = static_cast<int32_t>(word);
    const int32_t was = bits >> bit & 1;
    word = static_cast<float>((bits & ~(1 << bit)) | int32_t{to} << bit);
    return int32_t{to} - was;
  }

  int32_t window_;
};

constexpr ParameterRow kScissorhandsParameters[] = {
    {.name = "window",
     .help = "newest query rows that are remembered (w)",
     .preset = 400,
     .min = 1,
     .max = 512,
     .whole = true},
};

}  // namespace

std::unique_ptr<const Scorer> MakeScissorhands(int32_t window) { return std::make_unique<Scissorhands>(window); }

constinit const ScorerRow kScissorhandsRow = {
    .name = "scissorhands",
    .about = {.summary = "Keeps the tokens that the newest queries found important most often.",
              .when = "For long generation, where what mattered keeps mattering: with a bit for each slot and query it "
                      "remembers many more queries than `snapkv` does in the same room.",
              .equation = "c[j]    = of the last w queries i that saw slot j, those with P[i, j] < 1 / t[i], t[i] = "
                          "tokens that i saw\n"
                          "keep[j] = -c[j]",
              .origin =
                  "Scissorhands: Exploiting the Persistence of Importance Hypothesis for LLM KV Cache Compression at "
                  "Test Time",
              .paper = "arXiv:2305.17118",
              .cost = "O(n) for each row of attention that enters the window, and O(n) a decision.",
              .turns = "It counts over the last `window` queries of whatever turn; one question seldom fills it."},
    .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 10; },
    .parameters = kScissorhandsParameters,
    .make = [](const ScorerParameters& given) { return MakeScissorhands(Whole(given, "window")); }};

}  // namespace ebb
