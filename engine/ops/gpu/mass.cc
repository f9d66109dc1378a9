// The mass of rows of logits, each at a temperature of its own, and the token in which a share of it ends. Weights
// (draw_weight.h) are relative to the row's largest logit.
//
//   logits [rows][vocab]   | 16 tokens: a thread | 16 | ... of 256 threads | part of 4096 | ...   a block for each part
//   parts  [rows][parts]   | the sum of its weights, in float64            |              |       and row
//   mass   [rows]          the sum of its parts in ascending order                                a block for each row
//
// A thread adds up sixteen weights in turn, as the host's sampler does with a block of tokens, a block its threads'
// sums as a tree. Where a share of the mass ends, that block walks to: past parts, then, of the part whose weights it
// makes again, past teams of threads, threads, and tokens.

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/draw_weight.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kTeams = kThreads / kTeam;
constexpr int32_t kOfThread = kMassPart / kThreads;
constexpr int32_t kRoom = kOfThread + 1;  // threads begin in different banks
static_assert(kOfThread == 16, "the sampler adds up as many");

struct Rows {
  MassArgs args = {};
  int32_t parts = 0;  // of each
};

// Of all threads of a block into shared memory, `weights` [kThreads][kRoom]; returns the sum of this thread's.
EBB_DEVICE double WeighPart(const MassArgs& a, int32_t part, float* weights) {
  const float* const logits = a.logits + int64_t{BlockX()} * a.vocab;
  const float best = logits[a.best[BlockX()]];
  const float temperature = a.needs[BlockX()].temperature;
  EBB_UNROLL
  for (int32_t j = 0; j < kOfThread; ++j) {
    const int32_t i = j * kThreads + ThreadIndex();
    const int32_t token = part * kMassPart + i;
    const float logit = token < a.vocab ? logits[token] : MinusInfinity();
    weights[i / kOfThread * kRoom + i % kOfThread] =
        logit > MinusInfinity() ? DrawWeight(logit, best, temperature) : 0.0F;
  }
  Barrier();
  double sum = 0;
  EBB_UNROLL
  for (int32_t j = 0; j < kOfThread; ++j) sum += weights[ThreadIndex() * kRoom + j];
  return sum;
}

// The first of n numbers, side by side from 0, that ends past `at`, which becomes what it is past its beginning; n
// where none does.
template <typename T>
EBB_DEVICE int32_t WalkTo(double& at, const T* numbers, int32_t n) {
  int32_t i = 0;
  for (; i < n && at >= numbers[i]; ++i) at -= numbers[i];
  return i;
}

EBB_KERNEL(kThreads) AddUpPart(Rows rows) {
  EBB_SHARED float weights[kThreads * kRoom];
  const MassArgs& a = rows.args;
  if (!(a.needs[BlockX()].temperature > 0)) return;
  const double sum = ReduceBlock<kThreads>(WeighPart(a, BlockY(), weights), Plus());
  if (ThreadIndex() == 0) a.parts[int64_t{BlockX()} * rows.parts + BlockY()] = sum;
}

EBB_KERNEL(kThreads) AddUpRow(Rows rows) {
  EBB_SHARED float weights[kThreads * kRoom];
  EBB_SHARED double of_thread[kThreads];
  EBB_SHARED double of_team[kTeams];
  EBB_SHARED double mass, at;
  EBB_SHARED int32_t part;
  const MassArgs& a = rows.args;
  const DrawNeeds needs = a.needs[BlockX()];
  if (!(needs.temperature > 0)) return;
  if (ThreadIndex() == 0) {
    const double* const parts = a.parts + int64_t{BlockX()} * rows.parts;
    double sum = 0;
    for (int32_t i = 0; i < rows.parts; ++i) sum += parts[i];
    double rest = needs.share * sum;
    part = needs.share >= 0 ? WalkTo(rest, parts, rows.parts) : rows.parts;
    mass = sum;
    at = rest;
    a.mass[BlockX()] = {.mass = sum};
  }
  Barrier();
  if (part == rows.parts) return;

  const double sum = WeighPart(a, part, weights);
  of_thread[ThreadIndex()] = sum;
  const double sum_of_team = ReduceTeam(sum, Plus());
  if (ThreadIndex() % kTeam == 0) of_team[ThreadIndex() / kTeam] = sum_of_team;
  Barrier();
  if (ThreadIndex() != 0) return;
  double rest = at;
  const int32_t team = WalkTo(rest, of_team, kTeams);
  if (team == kTeams) return;
  const int32_t thread = team * kTeam + WalkTo(rest, of_thread + team * kTeam, kTeam);
  if (thread == (team + 1) * kTeam) return;
  const float* const own = weights + thread * kRoom;
  const int32_t token = WalkTo(rest, own, kOfThread);
  if (token == kOfThread) return;
  a.mass[BlockX()] = {.mass = mass,
                      .margin = Smallest()(rest, own[token] - rest) / mass,
                      .token = int64_t{part} * kMassPart + thread * kOfThread + token};
}

}  // namespace

void LaunchMass(const MassArgs& args, Stream stream) {
  const Rows rows = {.args = args, .parts = MassParts(args.vocab)};
  Launch(AddUpPart, {args.rows, rows.parts}, kThreads, rows, stream);
  Launch(AddUpRow, {args.rows}, kThreads, rows, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
