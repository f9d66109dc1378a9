// The `count` largest logits of each row, in order, as candidates (candidate.h). A row is cut into parts, and a block
// finds the largest of one; the next launch finds the largest of what was found, until a row is one part:
//
//   logits [rows][vocab]         | part of 4096 | part | part | ...          a block for each part and row
//                                     \           |     /
//   found [rows][count][parts]   | first of each part | second of each | ...        cut into parts of 4096 again
//                                                 |
//   largest [rows][count]        in order
//
// A block keeps its part in registers, sixteen candidates a thread, and sorts none of it. Of the threads' best, each is
// ranked by counting those that are larger. The one of rank count - 1 is a floor: at or above it are `count` bests, and
// nothing of the threads whose best is below. What the others have there, little more than `count` in all, goes to
// shared memory and is ranked in the same way: a rank is a place in the result. No candidate equals another, so ranks
// are the same in any order of threads and of what was gathered, and nothing is added up but counts.
//
// What was found lies with the largest of all parts side by side, which gives them to different threads of the next
// launch: in the parts' own order the largest would come to a few, whose other candidates would all be gathered.

#include <cstdint>

#include "engine/ops/gpu/candidate.h"
#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/reduce.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kOfThread = kLargestPart / kThreads;
static_assert(kOfThread * kThreads == kLargestPart);
static_assert(kLargestMax <= kThreads, "a floor is the best of a thread");

// One launch.
struct Choice {
  const float* logits = nullptr;    // [rows][n], or null behind the first launch:
  const uint64_t* found = nullptr;  // [rows][n] candidates, 0 where a part had fewer than `count`
  int32_t n = 0;
  int32_t count = 0;
  int32_t parts = 0;              // of n
  uint64_t* to = nullptr;         // [rows][count][parts], where there are several
  TokenLogit* largest = nullptr;  // [rows][count]
};

EBB_DEVICE int32_t RankOf(uint64_t candidate, const uint64_t* among, int32_t n) {
  int32_t rank = 0;
  for (int32_t i = 0; i < n; ++i) rank += among[i] > candidate ? 1 : 0;
  return rank;
}

EBB_DEVICE void Place(const Choice& a, int32_t place, uint64_t candidate) {
  const int64_t at = int64_t{BlockX()} * a.count + place;
  if (a.parts > 1) {
    a.to[at * a.parts + BlockY()] = candidate;
  } else {
    a.largest[at] = {LogitOf(candidate), TokenOf(candidate)};
  }
}

EBB_KERNEL(kThreads) ChooseOfPart(Choice a) {
  EBB_SHARED uint64_t bests[kThreads];
  EBB_SHARED uint64_t gathered[kLargestMax * kOfThread];
  EBB_SHARED uint64_t floor_of_part;
  EBB_SHARED int32_t gathered_count;
  const int64_t row = int64_t{BlockX()} * a.n;
  const int32_t first = BlockY() * kLargestPart + ThreadIndex();
  uint64_t own[kOfThread];
  uint64_t best = 0;
  EBB_UNROLL
  for (int32_t j = 0; j < kOfThread; ++j) {
    const int32_t i = first + j * kThreads;
    own[j] = 0;
    if (i < a.n) own[j] = a.logits != nullptr ? CandidateOf(a.logits[row + i], i) : a.found[row + i];
    best = Largest()(own[j], best);
  }
  bests[ThreadIndex()] = best;
  if (ThreadIndex() == 0) floor_of_part = 1;  // all there are, where fewer threads than `count` have any
  Barrier();
  if (best != 0 && RankOf(best, bests, kThreads) == a.count - 1) floor_of_part = best;
  Barrier();

  const uint64_t floor = floor_of_part;
  int32_t taken = 0;
  EBB_UNROLL
  for (int32_t j = 0; j < kOfThread; ++j) taken += own[j] >= floor ? 1 : 0;
  int32_t at = SumBefore<kThreads>(taken);
  if (ThreadIndex() == kThreads - 1) gathered_count = at + taken;
  EBB_UNROLL
  for (int32_t j = 0; j < kOfThread; ++j) {
    if (own[j] >= floor) gathered[at++] = own[j];
  }
  Barrier();
  for (int32_t i = ThreadIndex(); i < gathered_count; i += kThreads) {
    const int32_t place = RankOf(gathered[i], gathered, gathered_count);
    if (place < a.count) Place(a, place, gathered[i]);
  }
  for (int32_t i = gathered_count + ThreadIndex(); i < a.count; i += kThreads) Place(a, i, 0);
}

}  // namespace

void LaunchLargest(const LargestArgs& args, Stream stream) {
  Choice choice = {
      .logits = args.logits, .n = args.vocab, .count = args.count, .to = args.scratch, .largest = args.largest};
  for (;; choice.logits = nullptr) {
    choice.parts = LargestParts(choice.n);
    Launch(ChooseOfPart, {args.rows, choice.parts}, kThreads, choice, stream);
    if (choice.parts == 1) return;
    choice.found = choice.to;
    choice.n = choice.parts * args.count;
    choice.to += int64_t{args.rows} * choice.n;
  }
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
