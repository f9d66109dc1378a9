#include "policies/allocation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "policies/check.h"
#include "policies/registry.h"

namespace ebb {
namespace {

constexpr std::string_view kExactTotals[] = {"no", "yes"};
constexpr ParameterRow kPyramid[] = {
    {.name = "beta",
     .help = "how steep: the last layer gets this part of an equal share",
     .preset = 20,
     .min = 1,
     .max = 1000,
     .whole = true},
    {.name = "exact_total",
     .help = "whether what rounding adds to the layers' sum is taken off again",
     .max = 1,
     .whole = true,
     .choices = kExactTotals},
};

constexpr ParameterRow kAda[] = {
    {.name = "floor", .help = "share of an equal room that every head keeps", .preset = 0.2, .max = 1},
};
constexpr ParameterRow kDuo[] = {
    {.name = "threshold", .help = "heads whose gate is at or below it stream", .preset = 0.5, .max = 1},
    {.name = "sinks",
     .help = "first tokens that a streaming head keeps",
     .preset = 64,
     .max = kBudgetMax,
     .whole = true},
    {.name = "recent",
     .help = "newest tokens that a streaming head keeps",
     .preset = 256,
     .min = 1,
     .max = kBudgetMax,
     .whole = true},
};

// Whether `a` leaves before `b`.
bool LeavesBefore(const AdaCandidate& a, const AdaCandidate& b) {
  const bool is_nan[] = {std::isnan(a.keep), std::isnan(b.keep)};
  if (is_nan[0] != is_nan[1]) return is_nan[0];
  if (!is_nan[0] && a.keep != b.keep) return a.keep < b.keep;
  return a.token != b.token ? a.token < b.token : a.head > b.head;
}

}  // namespace

constinit const AllocationRow kUniformRow = {
    .name = "uniform",
    .allocation = Allocation::kUniform,
    .about = {.summary = "Gives every layer and KV head the whole budget, alike.",
              .when = "Unless you know that some layers or heads need less than others.",
              .equation = "budget[layer, head] = budget",
              .origin = "No paper: the budget as it was given.",
              .cost = "None.",
              .turns = "It depends on no question."}};

constinit const AllocationRow kPyramidRow = {
    .name = "pyramid",
    .allocation = Allocation::kPyramid,
    .about = {.summary = "Gives early layers more and late layers less, in equal steps.",
              .when = "Where attention is spread out in early layers and gathered in late ones. Not with scorers under "
                      "which all lanes keep the same tokens. What late layers let go is gone for later turns.",
              .equation =
                  "min = room / beta,  max = 2 room - min,  step = (max - min) / (layers - 1)  all rounded down\n"
                  "rooms[l] = max - l step",
              .origin = "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling",
              .paper = "arXiv:2406.02069",
              .cost = "None in time. The budget is the mean over the layers, but for what rounding adds unless "
                      "`exact_total`; a session reserves what each layer may need.",
              .turns = "As its scorer."},
    .parameters = kPyramid};

constinit const AllocationRow kAdaRow = {
    .name = "ada",
    .allocation = Allocation::kAda,
    .about = {.summary = "Lets the heads of a layer share by their scores, once, when the prompt ends.",
              .when = "For prompts that are asked about as they end. It takes the schedule that waits for the prompt's "
                      "end; where the prompt fits into the budget, heads stay alike.",
              .equation = "b*[h] = tokens of head h among the heads * room with the highest keep scores in the layer\n"
                          "rooms[h] = (1 - floor) b*[h] + floor room,  rounded by largest remainder, so that they sum "
                          "to heads * room",
              .origin =
                  "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM Inference",
              .paper = "arXiv:2407.11550",
              .cost = "O(heads n) once. A session reserves the trained context, as under any policy that waits for the "
                      "prompt; the sum over the heads of a layer is exactly the budget times their number.",
              .turns = "Shares are those of the first prompt, whatever is asked later."},
    .parameters = kAda};

constinit const AllocationRow kDuoRow = {
    .name = "duo",
    .allocation = Allocation::kDuo,
    .about = {.summary =
                  "Gives the budget to heads that look far back; the others keep the first and the newest tokens "
                  "alone.",
              .when =
                  "Where `ebb-lab heads` has found out which heads look back. Over `full` these forget nothing, and "
                  "the budget is a length limit.",
              .equation = "streams[h] = gate[h] <= threshold",
              .origin = "DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads",
              .paper = "arXiv:2410.10819",
              .cost = "None in time. A session reserves `sinks` + `recent` and a block for each head that streams.",
              .turns = "Which heads stream depends on the model, not on a question."},
    .parameters = kDuo};

const AllocationRow& RowOf(Allocation allocation) {
  const AllocationRow& row = AllocationRegistry()[static_cast<size_t>(allocation)];
  EBB_CHECK(row.allocation == allocation);
  return row;
}

const AllocationRow* FindAllocation(std::string_view name) {
  const std::span<const AllocationRow> rows = AllocationRegistry();
  const auto row = std::ranges::find(rows, name, &AllocationRow::name);
  return row == rows.end() ? nullptr : &*row;
}

std::vector<int32_t> PyramidRooms(const PyramidShape& shape, int32_t room, int32_t most) {
  EBB_CHECK(shape.layers >= 2);
  EBB_CHECK(shape.beta >= 1);
  EBB_CHECK(room >= 1);
  std::vector<int32_t> rooms(shape.layers, room);
  if (most <= room) return rooms;
  int32_t least = room / shape.beta;
  int32_t largest = 2 * room - least;
  if (largest >= most) {
    largest = most;
    least = 2 * room - most;
  }
  const int32_t step = (largest - least) / (shape.layers - 1);
  for (int32_t layer = 0; layer < shape.layers; ++layer) rooms[layer] = largest - layer * step;
  if (!shape.exact_total) return rooms;
  const auto excess =
      static_cast<int32_t>(std::accumulate(rooms.begin(), rooms.end(), int64_t{0}) - int64_t{shape.layers} * room);
  for (int32_t& each : rooms) each -= excess / shape.layers;
  // Where all are as large as each other, the last ones give, so that the order stays.
  const int32_t first = step > 0 ? 0 : shape.layers - excess % shape.layers;
  for (int32_t i = 0; i < excess % shape.layers; ++i) --rooms[first + i];
  return rooms;
}

std::vector<int32_t> AdaRooms(std::span<AdaCandidate> candidates, int32_t heads, int32_t room, double floor) {
  EBB_CHECK(heads >= 1);
  EBB_CHECK(room >= 0);
  EBB_CHECK(floor >= 0 && floor <= 1);
  const int64_t total = int64_t{heads} * room;
  std::vector<int32_t> rooms(heads, room);
  if (static_cast<int64_t>(candidates.size()) <= total) return rooms;
  const auto stays = candidates.end() - total;
  std::nth_element(candidates.begin(), stays, candidates.end(), LeavesBefore);
  std::vector<int32_t> best(heads, 0);
  for (auto at = stays; at != candidates.end(); ++at) ++best[at->head];
  // In millionths, so that equal remainders are equal.
  constexpr int64_t kOne = 1000000;
  const int64_t equal = std::llround(floor * kOne);
  std::vector<int64_t> rest(heads);
  int64_t left = total;
  for (int32_t h = 0; h < heads; ++h) {
    const int64_t share = (kOne - equal) * best[h] + equal * room;
    rooms[h] = static_cast<int32_t>(share / kOne);
    rest[h] = share % kOne;
    left -= rooms[h];
  }
  std::vector<int32_t> order(heads);
  std::iota(order.begin(), order.end(), 0);
  // Largest remainder first, of equal ones the earlier head.
  std::ranges::sort(order, {}, [&](int32_t h) { return std::pair(-rest[h], h); });
  for (int64_t i = 0; i < left; ++i) ++rooms[order[i]];
  return rooms;
}

void AppendCandidates(const LaneView& lane, std::span<const float> keep, std::vector<AdaCandidate>& candidates) {
  const auto from = static_cast<std::ptrdiff_t>(candidates.size());
  for (size_t slot = 0; slot < lane.token.size(); ++slot) {
    if (lane.token[slot] >= 0) candidates.push_back({.keep = keep[slot], .token = lane.token[slot], .head = lane.head});
  }
  std::ranges::sort(candidates.begin() + from, candidates.end(), {}, &AdaCandidate::token);
  candidates.resize(candidates.size() - std::min(lane.recent, lane.live));
  const auto live = static_cast<std::ptrdiff_t>(candidates.size()) - from;
  candidates.erase(candidates.begin() + from, candidates.begin() + from + std::min<std::ptrdiff_t>(lane.sinks, live));
}

std::vector<bool> StreamingHeads(std::span<const double> gates, double threshold) {
  std::vector<bool> streams;
  for (const double gate : gates) streams.push_back(gate <= threshold);
  return streams;
}

}  // namespace ebb
