// The window's sum without a subtraction, which would drift and go below 0, and without w additions a step. Rows go
// into a ring; whenever it is full, its entries become sums of themselves and all later ones, and `fresh` starts at 0.
// Then the sum of the last w rows is what is left of the old ring, ring[next], plus the rows since, `fresh`.

#include "policies/snapkv.h"

#include <algorithm>
#include <array>

#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int32_t kKernel = 7;  // preset
constexpr int32_t kKernelMax = 63;

class Snapkv final : public Scorer {
 public:
  explicit Snapkv(const SnapkvOptions& options) : options_(options) {
    EBB_CHECK(options.window >= 1);
    EBB_CHECK(options.kernel >= 1);
    EBB_CHECK(options.kernel <= kKernelMax);
    EBB_CHECK(options.kernel % 2 == 1);
  }

  Needs needs() const override {
    return {.window_rows = options_.window, .by_age = true, .state_floats = options_.window + 1};
  }

  int64_t lane_floats(const LaneShape& /*shape*/) const override { return 1; }  // where the next row goes

  void Observe(const LaneView& lane, const Observation& seen, const MutableScorerState& state) const override {
    const size_t slots = lane.token.size();
    EBB_CHECK(state.slot.size() == slots * Floats());
    EBB_CHECK(!seen.window.empty());
    EBB_CHECK(seen.window.size() % slots == 0);
    const size_t rows = seen.window.size() / slots;
    auto next = static_cast<size_t>(state.lane[0]);
    for (size_t slot = 0; slot < slots; ++slot) {
      next = static_cast<size_t>(state.lane[0]);
      const std::span<float> kept = state.slot.subspan(slot * Floats(), Floats());
      for (size_t row = 0; row < rows; ++row) next = Push(seen.window[row * slots + slot], next, kept);
    }
    state.lane[0] = static_cast<float>(next);
  }

  void Score(const LaneView& lane, const ScorerState& state, std::span<float> keep) const override {
    EBB_CHECK(static_cast<int32_t>(lane.by_age.size()) == lane.live);
    const int32_t pooled = options_.own_columns ? lane.live : std::max(lane.live - options_.window, 0);
    const int32_t half = options_.kernel / 2;
    std::array<float, kKernelMax> near = {};  // a ring: sums of the tokens around `rank`; 0 beyond the ends
    int32_t next = 0;
    for (int32_t rank = -half; rank < pooled; ++rank) {
      const int32_t ahead = rank + half;
      near[next] = ahead < pooled ? Sum(state, lane.by_age[ahead]) : 0.0F;
      next = Wrap(next + 1);
      if (rank >= 0) keep[lane.by_age[rank]] = Pool(near, next);
    }
    for (int32_t rank = pooled; rank < lane.live; ++rank) keep[lane.by_age[rank]] = Sum(state, lane.by_age[rank]);
  }

  // As one row older than all to come: it counts until the window is full.
  bool Seed(std::span<const float> keep, const MutableScorerState& state) const override {
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      std::ranges::fill(state.slot.subspan(slot * Floats(), options_.window), keep[slot]);
      state.slot[slot * Floats() + options_.window] = 0;
    }
    state.lane[0] = 0;
    return true;
  }

 private:
  // Of a slot: the ring, then `fresh`.
  size_t Floats() const { return static_cast<size_t>(options_.window) + 1; }

  // Adds a row's entry to a slot's floats; returns where the next goes.
  size_t Push(float p, size_t next, std::span<float> kept) const {
    kept[next] = p;
    kept.back() += p;
    if (++next < kept.size() - 1) return next;
    for (size_t i = kept.size() - 2; i-- > 0;) kept[i] += kept[i + 1];
    kept.back() = 0;
    return 0;
  }

  float Sum(const ScorerState& state, int32_t slot) const {
    const float* kept = state.slot.data() + slot * Floats();
    return kept[static_cast<size_t>(state.lane[0])] + kept[options_.window];
  }

  int32_t Wrap(int32_t at) const { return at < options_.kernel ? at : at - options_.kernel; }

  // `oldest`: where the ring begins, so that sums round by age alone.
  float Pool(const std::array<float, kKernelMax>& near, int32_t oldest) const {
    if (options_.pooling == Pooling::kNone) return near[Wrap(oldest + options_.kernel / 2)];
    float sum = 0;
    float max = 0;
    for (int32_t i = 0, at = oldest; i < options_.kernel; ++i, at = Wrap(at + 1)) {
      sum += near[at];
      max = std::max(max, near[at]);
    }
    return options_.pooling == Pooling::kMax ? max : sum / static_cast<float>(options_.kernel);
  }

  SnapkvOptions options_;
};

constexpr std::string_view kPoolings[] = {"none", "avg", "max"};  // in the order of Pooling
constexpr std::string_view kOwnColumns[] = {"drop", "keep"};
constexpr ParameterRow kSnapkvParameters[] = {
    {.name = "window", .help = "newest query rows that vote (w)", .preset = 32, .min = 1, .max = 512, .whole = true},
    {.name = "kernel",
     .help = "tokens that are pooled, an odd number (k)",
     .preset = kKernel,
     .min = 1,
     .max = kKernelMax,
     .whole = true,
     .odd = true},
    Choice("pooling", "what the kernel takes of its tokens", kPoolings, 2),
    Choice("own_columns", "whether the window's own tokens enter the pooling", kOwnColumns),
};

// The preset is no mistake: a spec with every default filled in names it. And of one token none and all are the same.
absl::Status CheckPooling(const ScorerParameters& parameters) {
  const bool pools = static_cast<Pooling>(Whole(parameters, "pooling")) != Pooling::kNone;
  const int32_t kernel = Whole(parameters, "kernel");
  if (pools || kernel == kKernel || kernel == 1) return absl::OkStatus();
  return RefuseField("MEANINGLESS_COMBINATION", "policy.snapkv.kernel",
                     "with pooling none nothing is pooled; leave it out, or pool by avg or max");
}

}  // namespace

std::unique_ptr<const Scorer> MakeSnapkv(const SnapkvOptions& options) { return std::make_unique<Snapkv>(options); }

constinit const ScorerRow kSnapkvRow = {
    .name = "snapkv",
    .about =
        {.summary = "Keeps what the newest queries attend to, with its neighbours, beside these queries' own tokens.",
         .when = "For a long prompt that ends with its question, and answers that quote it: the neighbours of a hit "
                 "stay too, so that it can be read. Not where the question comes after the eviction.",
         .equation = "a[j]    = sum over the last w queries i of P[i, j], as each was observed\n"
                     "keep[j] = pool(a)[j] over the k tokens around j by age",
         .origin = "SnapKV: LLM Knows What You are Looking for Before Generation",
         .paper = "arXiv:2404.14469",
         .cost = "O(n) for each row of attention that enters the window, O(n `kernel`) a decision. It remembers a "
                 "number for each slot and row: at the defaults a quarter of the KV bytes of head size 128 in BF16.",
         .turns = "The window's queries are those of the question at hand; what they pass over is gone when the next "
                  "one comes."},
    .safe_across_turns = false,
    .non_negative = true,
    .recent_parameter = "window",
    .parameters = kSnapkvParameters,
    .check = CheckPooling,
    .make = [](const ScorerParameters& given) {
      return MakeSnapkv({.window = Whole(given, "window"),
                         .kernel = Whole(given, "kernel"),
                         .pooling = static_cast<Pooling>(Whole(given, "pooling")),
                         .own_columns = Whole(given, "own_columns") == 1});
    }};

}  // namespace ebb
