// Chance, the baseline that a policy has to beat.
//
//   keep[j] = hash(seed, layer, KV head, token j)             mode = reservoir
//   keep[j] = hash(seed, layer, KV head, token j, step)       mode = fresh; step = length of the log
//
// Two different baselines. Reservoir draws a token's worth once, so those kept are a uniform sample of everything that
// came, whatever the blocks. Fresh draws anew at each decision, so a token among c candidates survives one with
// probability 1 - 1/c, and the old have had more of them: it leans to the recent.
//
// Draws are hashes, not a stream: forks, replays, threads and slots cannot move them, and sessions of one seed draw the
// same. Needs nothing, keeps nothing, O(n). Scores are multiples of 2^-24; of two that collide the older leaves.

#ifndef EBB_POLICIES_RANDOM_H_
#define EBB_POLICIES_RANDOM_H_

#include <cstdint>
#include <memory>

#include "policies/registry_row.h"

namespace ebb {

enum class RandomMode { kReservoir, kFresh };

std::unique_ptr<const Scorer> MakeRandom(uint64_t seed, RandomMode mode);

extern const ScorerRow kRandomRow;

}  // namespace ebb

#endif  // EBB_POLICIES_RANDOM_H_
