// StreamingLLM, attention sinks and a window (Xiao et al. 2023, arXiv:2309.17453); POLICIES 3.2.
//
//   keep[j] = t[j], the index of slot j's token in the session's log
//
// The sinks are the policy's protection, not part of the score; the newest tokens stay because they score highest. With
// recent = C - sinks protection leaves no choice; with fewer the tokens between leave oldest first, which is the same.
//
// Looks at positions alone, so all lanes of a session evict the same tokens.
//
// Invariant: after T tokens, pruned to C at each step, a lane holds {0 .. S-1} and {T-C+S .. T-1} (all T while T <= C).

#ifndef EBB_POLICIES_STREAMING_H_
#define EBB_POLICIES_STREAMING_H_

#include <memory>

#include "policies/registry_row.h"

namespace ebb {

std::unique_ptr<const Scorer> MakeStreaming();

extern const ScorerRow kStreamingRow;

}  // namespace ebb

#endif  // EBB_POLICIES_STREAMING_H_
