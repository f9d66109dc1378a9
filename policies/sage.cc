#include "policies/sage.h"

#include <algorithm>
#include <bit>

#include "policies/tova.h"

namespace ebb {

std::unique_ptr<const Scorer> MakeSage() { return MakeTova(); }

int32_t SageSelectedPerHead(int32_t budget, int32_t query_heads) {
  return static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(budget) / (2 * static_cast<uint32_t>(query_heads))));
}

int32_t SageRecent(int32_t budget, int32_t sinks, int32_t query_heads) {
  return std::max(budget - sinks - query_heads * SageSelectedPerHead(budget, query_heads), 1);
}

constinit const ScorerRow kSageRow = {
    .name = "sage",
    .about = {.summary = "Keeps what each query head of the prompt's last token attends to, once, and then a sliding "
                         "window.",
              .when =
                  "For one question about a long prompt: each query head picks its own tokens, once, and decode only "
                  "slides the recent window. Not for a second question about the same prompt.",
              .equation = "keep[h, j] = P[h, last, j], what query head h of the prompt's last token paid to slot j\n"
                          "S = B / 4,   k = B / 2G rounded down to a power of two,   R = B - S - G k",
              .origin = "LLMs Know What to Drop: Self-Attention Guided KV Cache Eviction for Efficient Long-Context "
                        "Inference",
              .paper = "arXiv:2503.08879",
              .cost = "O(n) for each query head and step, and one choice; until the prompt ends the session holds the "
                      "whole of it.",
              .turns =
                  "Chosen for the prompt's last token, and what was selected stays for ever: a later question finds "
                  "what the first one needed."},
    .safe_across_turns = false,
    .non_negative = true,
    .sinks = [](int32_t budget) { return budget / 4; },
    .recent = SageRecent,
    .schedule = Schedule::kOncePrompt,
    .then = Then::kSlideRecent,
    .reduction = Reduction::kUnion,
    .make = [](const ScorerParameters&) { return MakeSage(); }};

}  // namespace ebb
