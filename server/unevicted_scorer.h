// The scorer that never evicts: what policies are measured against.

#ifndef EBB_SERVER_UNEVICTED_SCORER_H_
#define EBB_SERVER_UNEVICTED_SCORER_H_

#include <string>

#include "policies/check.h"
#include "policies/registry.h"

namespace ebb {

inline std::string UnevictedScorer() {
  for (const ScorerRow& row : ScorerRegistry()) {
    if (!row.evicts) return std::string(row.name);
  }
  EBB_CHECK(false);
}

}  // namespace ebb

#endif  // EBB_SERVER_UNEVICTED_SCORER_H_
