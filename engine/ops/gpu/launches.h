// What the kernel files of a target define, for its table (table.cc) and for each other. Included by kernels.h where it
// is compiled for a target.

#ifndef EBB_ENGINE_OPS_GPU_LAUNCHES_H_
#define EBB_ENGINE_OPS_GPU_LAUNCHES_H_

#include "engine/ops/gpu/kernels.h"

namespace ebb::gpu {

namespace EBB_GPU_TARGET {
const Table& TableOfTarget();
void Rehearse();
Error Rehearsed(Shortage* shortage);
void LaunchEmbed(const EmbedArgs& args, Stream stream);
void LaunchEmbedPositions(const EmbedPositionsArgs& args, Stream stream);
void LaunchRmsNorm(const RmsNormArgs& args, Stream stream);
void LaunchLayerNorm(const LayerNormArgs& args, Stream stream);
void LaunchNormHeads(const NormHeadsArgs& args, Stream stream);
void LaunchLinearRows(const LinearArgs& args, Stream stream);
void LaunchLinearRowsTogether(const LinearsArgs& args, Stream stream);
void LaunchLinearTiles(const LinearArgs& args, Stream stream);
void LaunchRoute(const RouteArgs& args, Stream stream);
void LaunchLinearExperts(const LinearExpertsArgs& args, Stream stream);
void LaunchCombine(const CombineArgs& args, Stream stream);
// What those above and LaunchAttend leave to tensor cores. Those of rows REQUIRE: weights of one type; of BF16, Wide,
// and else Small.
void LaunchLinearRowsSmall(const LinearsArgs& args, Stream stream);
void LaunchLinearRowsWide(const LinearsArgs& args, Stream stream);
void LaunchLinearTilesTensor(const LinearArgs& args, Stream stream);
void LaunchLinearExpertsTensor(const LinearExpertsArgs& args, Stream stream);
void LaunchAttendTensor(const AttendArgs& args, Stream stream);
void LaunchRound(const RoundArgs& args, Stream stream);
void LaunchActivate(const ActivateArgs& args, Stream stream);
void LaunchFillHoles(const FillHolesArgs& args, Stream stream);
void LaunchPlace(const PlaceArgs& args, Stream stream);
void LaunchStore(const StoreArgs& args, Stream stream);
void LaunchAttend(const AttendArgs& args, Stream stream);
void LaunchAttendMerge(const AttendArgs& args, Stream stream);
void LaunchLay(const BlockArgs& args, Stream stream);
void LaunchAttendBlock(const BlockArgs& args, Stream stream);
void LaunchObserveBlock(const BlockArgs& args, Stream stream);
void LaunchCaote(const CaoteArgs& args, Stream stream);
void LaunchReduce(const ReduceArgs& args, Stream stream);
void LaunchLikeness(const LikenessArgs& args, Stream stream);
void LaunchChance(const ChanceArgs& args, Stream stream);
void LaunchLoss(const LossArgs& args, Stream stream);
void LaunchEvict(const EvictArgs& args, Stream stream);
void LaunchCap(const CapArgs& args, Stream stream);
void LaunchGreedy(const GreedyArgs& args, Stream stream);
void LaunchLargest(const LargestArgs& args, Stream stream);
void LaunchMass(const MassArgs& args, Stream stream);
void LaunchRandom(const RandomArgs& args, Stream stream);
}  // namespace EBB_GPU_TARGET

}  // namespace ebb::gpu

#endif  // EBB_ENGINE_OPS_GPU_LAUNCHES_H_
