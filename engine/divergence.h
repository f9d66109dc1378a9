// How far one next-token distribution is from another.

#ifndef EBB_ENGINE_DIVERGENCE_H_
#define EBB_ENGINE_DIVERGENCE_H_

#include <span>

namespace ebb {

// KL(P || Q) = sum_x P(x) ln(P(x) / Q(x)) in nats, >= 0, of the softmax of two rows of finite logits; 0 where they are
// equal. REQUIRES: as many of p as of q, and at least one.
double KlDivergence(std::span<const float> p, std::span<const float> q);

}  // namespace ebb

#endif  // EBB_ENGINE_DIVERGENCE_H_
