#include "policies/streaming.h"

#include <algorithm>

#include "policies/check.h"

namespace ebb {
namespace {

class Streaming final : public Scorer {
 public:
  Needs needs() const override { return {}; }

  // Past 2^24 neighbours round to the same float, never to the wrong order; selection breaks such ties by age, exactly.
  void Score(const LaneView& lane, const ScorerState& /*state*/, std::span<float> keep) const override {
    EBB_CHECK(keep.size() == lane.token.size());
    for (size_t slot = 0; slot < keep.size(); ++slot) keep[slot] = static_cast<float>(lane.token[slot]);
  }
};

}  // namespace

std::unique_ptr<const Scorer> MakeStreaming() { return std::make_unique<Streaming>(); }

constinit const ScorerRow kStreamingRow = {
    .name = "streaming",
    .about = {.summary = "Keeps the first tokens (attention sinks) and the newest.",
              .when = "For an endless stream that needs its recent past alone: a story, a log, an assistant. Not where "
                      "something said long ago is asked for.",
              .equation = "keep[j] = t[j], the index of slot j's token in the session's log",
              .origin = "Efficient Streaming Language Models with Attention Sinks",
              .paper = "arXiv:2309.17453",
              .cost = "O(n) a decision over the tokens' indices. Attention reports nothing, and one choice serves all "
                      "lanes.",
              .turns = "It goes by age alone: what is older than the window is gone, whoever asks."},
    .lockstep = true,
    .scored = false,
    .sinks = [](int32_t /*budget*/) { return 4; },
    .recent = [](int32_t budget, int32_t sinks, int32_t /*query_heads*/) { return std::max(budget - sinks, 1); },
    .positions = Positions::kCompacted,
    .make = [](const ScorerParameters&) { return MakeStreaming(); }};

}  // namespace ebb
