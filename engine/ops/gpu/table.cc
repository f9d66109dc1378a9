// The table of one target.

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#if defined(__CUDACC__) || defined(__HIPCC__)
#include "engine/ops/gpu/runtime_cuda_hip.h"
#else
#include "engine/ops/gpu/runtime_emulated.h"
#endif

#define EBB_STRING(name) #name
#define EBB_STRING_OF(name) EBB_STRING(name)

namespace ebb::gpu {
namespace EBB_GPU_TARGET {
// Within a function: as a constant of the namespace hipcc would give the device a copy, whose functions it has not.
const Table& TableOfTarget() {
  static const Table table = {.version = kTableVersion,
                              .warp = EBB_GPU_WARP,
                              .name = EBB_STRING_OF(EBB_GPU_TARGET),
                              .no_memory = kNoMemory,
                              .devices = Devices,
                              .describe = Describe,
                              .code = Code,
                              .open = Open,
                              .use = Use,
                              .close = Close,
                              .memory = Memory,
                              .allocate = Allocate,
                              .release = Release,
                              .allocate_host = AllocateHost,
                              .release_host = ReleaseHost,
                              .copy_in = CopyIn,
                              .copy_out = CopyOut,
                              .copy_within = CopyWithin,
                              .wait = Wait,
                              .record = Record,
                              .recorded = Recorded,
                              .replay = Replay,
                              .drop = Drop,
                              .rehearse = Rehearse,
                              .rehearsed = Rehearsed,
                              .make_moment = MakeMoment,
                              .drop_moment = DropMoment,
                              .mark = Mark,
                              .between = Between,
                              .embed = LaunchEmbed,
                              .embed_positions = LaunchEmbedPositions,
                              .rms_norm = LaunchRmsNorm,
                              .layer_norm = LaunchLayerNorm,
                              .norm_heads = LaunchNormHeads,
                              .linear_rows = LaunchLinearRows,
                              .linear_rows_together = LaunchLinearRowsTogether,
                              .linear_tiles = LaunchLinearTiles,
                              .route = LaunchRoute,
                              .linear_experts = LaunchLinearExperts,
                              .combine = LaunchCombine,
                              .round = LaunchRound,
                              .activate = LaunchActivate,
                              .fill_holes = LaunchFillHoles,
                              .place = LaunchPlace,
                              .store = LaunchStore,
                              .attend = LaunchAttend,
                              .attend_merge = LaunchAttendMerge,
                              .lay = LaunchLay,
                              .attend_block = LaunchAttendBlock,
                              .observe_block = LaunchObserveBlock,
                              .caote = LaunchCaote,
                              .reduce = LaunchReduce,
                              .likeness = LaunchLikeness,
                              .chance = LaunchChance,
                              .loss = LaunchLoss,
                              .evict = LaunchEvict,
                              .cap = LaunchCap,
                              .greedy = LaunchGreedy,
                              .largest = LaunchLargest,
                              .mass = LaunchMass,
                              .random = LaunchRandom};
  return table;
}
}  // namespace EBB_GPU_TARGET
}  // namespace ebb::gpu

#if defined(__CUDACC__) || defined(__HIPCC__)
extern "C" __attribute__((visibility("default"))) const ebb::gpu::Table* ebb_gpu_table() {
  return &ebb::gpu::EBB_GPU_TARGET::TableOfTarget();
}
#endif
