// What a device says of a row of logits that it keeps, for who draws from it (Sampler::DrawTokenFrom).

#ifndef EBB_ENGINE_ROW_FACTS_H_
#define EBB_ENGINE_ROW_FACTS_H_

#include <span>

#include "engine/ops/gpu/draw_needs.h"

namespace ebb {

struct RowFacts {
  gpu::DrawNeeds asked = {};  // what it answers
  std::span<const gpu::TokenLogit> largest =
      {};                  // [asked.largest] as gpu::LargestArgs: best first, of equals the lower
  gpu::RowMass mass = {};  // at asked.temperature, where that is above 0

  bool empty() const { return largest.empty(); }
};

}  // namespace ebb

#endif  // EBB_ENGINE_ROW_FACTS_H_
