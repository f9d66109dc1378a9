#include "engine/ops/cpu/attend_op.h"

#include <algorithm>
#include <utility>

#include "engine/ops/cpu/kernel_args.h"
#include "policies/check.h"

namespace ebb::cpu {
namespace {

// Rows (tokens x group) that one call of the attend kernel takes: enough to make rotating the keys cheap, few enough
// for its memory to stay in L2. Where rows are observed their logits are kept, and long lanes take fewer rows.
constexpr int32_t kAttendRows = 128;
constexpr int64_t kObservedLogits = int64_t{1} << 18;

int32_t RoundUp(int32_t value, int32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Lanes are cut into parts where that leaves a thread fewer items than this: as many as make uneven ones even, and let
// lanes take turns.
constexpr int64_t kItemsPerThread = 8;

// Lanes that share their positions and are attended in turns, at most: their angles are then computed once for all.
constexpr int32_t kLanesTogether = 4;

bool IsObserved(const AttendTask& task, const AttendItem& item) {
  const int32_t last = item.first + item.tokens;
  return task.column_sums != nullptr || (task.last_row != nullptr && last == task.tokens) ||
         (task.window != nullptr && last > task.tokens - task.window_rows);
}

// Whether the kernel may take turns between two tasks.
bool ShareAngles(const Rope& rope, const AttendTask& a, const AttendTask& b) {
  const KvFormat &x = a.lane.format, &y = b.lane.format;
  return a.lane.position == b.lane.position && a.lane.slots == b.lane.slots && a.lane.angles == b.lane.angles &&
         a.tokens == b.tokens && a.q_position == b.q_position && x.type == y.type && x.rope_cache == y.rope_cache &&
         x.head_dim == y.head_dim && SeeAlike(rope, a.lane.layer, b.lane.layer);
}

// The parts of AttendScratch for `rows` rows of one lane, in floats.
struct ScratchShape {
  ScratchShape(int64_t rows, bool observed, const LaneStorage& lane)
      : keys(int64_t{kBlockSlots} * lane.format.head_dim),
        peak(RoundUp(static_cast<int32_t>(rows), 16)),
        weight(rows * 16),
        q(rows * RoundUp(lane.format.head_dim, 16)),
        p(rows * kBlockSlots),
        logits(rows * (observed ? RoundUp(lane.slots, kBlockSlots) : kBlockSlots)) {}

  int64_t state() const { return q + peak + weight; }
  int64_t floats() const { return keys + q + 2 * state() + p + logits; }

  int64_t keys, peak, weight, q, p, logits;
};

AttendState StateAt(const ScratchShape& shape, float* at) {
  return {.sums = at, .peak = at + shape.q, .weight = at + shape.q + shape.peak};
}

int32_t PartsOf(const AttendTask& task) { return (task.lane.slots + kPartSlots - 1) / kPartSlots; }

bool IsObserved(const AttendTask& task) {
  return task.column_sums != nullptr || task.last_row != nullptr || (task.window != nullptr && task.window_rows > 0);
}

StoreTask StoreOf(const AttendTask& task) {
  return {
      .lane = task.lane, .k = task.k, .v = task.v, .stride = task.stride, .tokens = task.tokens, .slots = task.slots};
}

// Whether the item's task has others beside it, and whether it is the first of those.
bool IsCut(std::span<const AttendTask> tasks, const AttendItem& item) {
  return item.part >= 0 || item.tokens < tasks[static_cast<size_t>(item.task)].tokens;
}
bool IsFirst(const AttendItem& item) { return item.first == 0 && item.part <= 0; }

// Column sums of a task, from the first head's first to the last head's last.
int64_t SumFloats(const AttendTask& task, int32_t group) { return (group - 1) * task.head_stride + task.lane.slots; }

// Floats of an item's scratch memory: of each of its lanes, and of their angles.
int64_t ScratchOf(int32_t group, const Rope& rope, std::span<const AttendTask> tasks, const AttendItem& item) {
  int64_t floats = 0;
  for (const AttendTask& task : tasks.subspan(static_cast<size_t>(item.task), static_cast<size_t>(item.tasks))) {
    floats += ScratchShape(int64_t{item.tokens} * group, IsObserved(task, item), task.lane).floats();
  }
  return floats + int64_t{kBlockSlots} * rope.rotary_dims;
}

// One task's tokens of an item; its scratch memory begins at `next`, which moves past it.
AttendArgs ArgsOf(const Rope& rope, int32_t group, const AttendTask& task, const AttendItem& item, float*& next) {
  const bool observed = IsObserved(task, item);
  const int32_t last = item.first + item.tokens;
  const int64_t out_stride = task.out_stride == 0 ? task.stride : task.out_stride;
  AttendArgs args = {.kv = ToArgs(task.lane),
                     .position = task.lane.position,
                     .slots = task.lane.slots,
                     .part = item.part,
                     .angles = task.lane.angles,
                     .q = task.q + item.first * task.stride,
                     .out = task.out + item.first * out_stride,
                     .stride = task.stride,
                     .out_stride = out_stride,
                     .tokens = item.tokens,
                     .group = group,
                     .q_position = task.q_position + item.first,
                     .column_sums = item.tokens == task.tokens ? task.column_sums : item.column_sums,
                     .head_stride = task.head_stride};
  SetScores(rope, task.lane, args);
  if (task.last_row != nullptr && last == task.tokens) args.last_row = task.last_row;
  const int32_t window_first = task.tokens - task.window_rows;
  if (task.window != nullptr && last > window_first) {
    const int32_t row = std::max(item.first, window_first);
    args.window = task.window + int64_t{row - window_first} * task.lane.slots;
    args.window_rows = last - row;
  }
  const ScratchShape shape(int64_t{item.tokens} * group, observed, task.lane);
  args.scratch.keys = std::exchange(next, next + shape.keys);
  args.scratch.q = std::exchange(next, next + shape.q);
  args.scratch.part = StateAt(shape, std::exchange(next, next + shape.state()));
  args.scratch.all = StateAt(shape, std::exchange(next, next + shape.state()));
  args.scratch.p = std::exchange(next, next + shape.p);
  args.scratch.logits = std::exchange(next, next + shape.logits);
  return args;
}

}  // namespace

void AttendOp::Store(const Rope& rope, std::span<const StoreTask> tasks) {
  if (tasks.empty()) return;
  const int64_t work = int64_t{tasks[0].tokens} * tasks[0].lane.format.head_dim * 16;
  Split(parallel_, static_cast<int64_t>(tasks.size()), work,
        [&](int64_t i, int32_t /*thread*/) { StoreOne(rope, tasks[static_cast<size_t>(i)]); });
}

void AttendOp::Attend(const Rope& rope, int32_t group, std::span<const AttendTask> tasks, Ops::TaskDone done) {
  PlanItems(rope, group, tasks);
  int64_t work = 0;
  for (const AttendTask& task : tasks) {
    work += int64_t{task.tokens} * group * task.lane.slots * task.lane.format.head_dim * 2;
  }
  ReserveScratch(group, rope, tasks);
  StoreOfSeveralItems(rope, tasks);
  const auto items = static_cast<int64_t>(items_.size());
  Split(parallel_, items, items == 0 ? 0 : work / items, [&](int64_t i, int32_t thread) {
    AttendOne(rope, group, tasks, i, scratch_[static_cast<size_t>(thread)]);
    const AttendItem& item = items_[static_cast<size_t>(i)];
    if (IsCut(tasks, item)) return;
    for (int32_t lane = 0; lane < item.tasks; ++lane) done(static_cast<size_t>(item.task + lane), thread);
  });
  SumColumns(group, tasks);
  cut_.clear();
  for (const AttendItem& item : items_) {
    if (!IsFirst(item) || !IsCut(tasks, item)) continue;
    for (int32_t lane = 0; lane < item.tasks; ++lane) cut_.push_back(item.task + lane);
  }
  parallel_.For(static_cast<int64_t>(cut_.size()), [&](int64_t i, int32_t thread) {
    const int32_t task = cut_[static_cast<size_t>(i)];
    if (parts_at_[static_cast<size_t>(task)] != nullptr) {
      MergeParts(rope, group, tasks, task, scratch_[static_cast<size_t>(thread)]);
    }
    done(static_cast<size_t>(task), thread);
  });
}

void AttendOp::StoreOne(const Rope& rope, const StoreTask& task) const {
  kernels_.store({.rope = ToArgs(rope, task.lane.layer),
                  .kv = ToArgs(task.lane),
                  .k = task.k,
                  .v = task.v,
                  .stride = task.stride,
                  .tokens = task.tokens,
                  .slots = task.slots});
}

// K and V of tasks that were cut: nobody may attend before they are in their slots. Those of others are stored by who
// attends.
void AttendOp::StoreOfSeveralItems(const Rope& rope, std::span<const AttendTask> tasks) {
  stores_.clear();
  for (const AttendItem& item : items_) {
    if (!IsFirst(item) || !IsCut(tasks, item)) continue;
    for (const AttendTask& task : tasks.subspan(static_cast<size_t>(item.task), static_cast<size_t>(item.tasks))) {
      if (task.k != nullptr) stores_.push_back(StoreOf(task));
    }
  }
  Store(rope, stores_);
}

// Cuts tasks into items by rules that know nothing of threads, but for lanes, whose bits do not show who shared them.
void AttendOp::PlanItems(const Rope& rope, int32_t group, std::span<const AttendTask> tasks) {
  items_.clear();
  int64_t partial = 0;  // floats of column sums that wait to be added up
  for (size_t i = 0; i < tasks.size(); ++i) {
    const AttendTask& task = tasks[i];
    EBB_CHECK(task.lane.format.head_dim <= kMaxHeadDim);
    EBB_CHECK(task.tokens >= 1);
    int64_t rows = kAttendRows;
    if (IsObserved(task)) rows = std::min<int64_t>(rows, kObservedLogits / std::max(task.lane.slots, 1));
    const int32_t tokens = static_cast<int32_t>(std::max<int64_t>(1, rows / group));
    for (int32_t first = 0; first < task.tokens; first += tokens) {
      items_.push_back(
          {.task = static_cast<int32_t>(i), .first = first, .tokens = std::min(tokens, task.tokens - first)});
    }
    if (task.column_sums != nullptr && task.tokens > tokens) {
      partial += int64_t{(task.tokens + tokens - 1) / tokens} * SumFloats(task, group);
    }
  }
  CutLanes(tasks);
  JoinItems(rope, tasks);
  PlaceParts(group, tasks);
  float* next = partial_sums_.AtLeast(partial);
  for (AttendItem& item : items_) {
    const AttendTask& task = tasks[static_cast<size_t>(item.task)];
    if (task.column_sums == nullptr) continue;
    item.column_sums = item.tokens == task.tokens ? task.column_sums : next;
    if (item.tokens < task.tokens) next += SumFloats(task, group);
  }
}

// Where items are few, makes of each long lane of a whole task an item for each part, the parts of neighbouring lanes
// beside each other.
void AttendOp::CutLanes(std::span<const AttendTask> tasks) {
  if (static_cast<int64_t>(items_.size()) >= kItemsPerThread * parallel_.threads()) return;
  const auto parts = [&](const AttendItem& item) {
    const AttendTask& task = tasks[static_cast<size_t>(item.task)];
    // A lane that is little more than a part is not worth the meeting.
    return task.lane.slots >= 2 * kPartSlots && !IsCut(tasks, item) ? PartsOf(task) : 0;
  };
  int32_t most = 0;
  for (const AttendItem& item : items_) most = std::max(most, parts(item));
  if (most == 0) return;
  std::swap(items_, uncut_);
  items_.clear();
  for (const AttendItem& item : uncut_) {
    if (parts(item) == 0) items_.push_back(item);
  }
  for (int32_t part = 0; part < most; ++part) {
    for (AttendItem item : uncut_) {
      if (part >= parts(item)) continue;
      item.part = part;
      items_.push_back(item);
    }
  }
}

// Finds memory for what the parts of lanes come to: [parts] states, and the logits of observed rows.
void AttendOp::PlaceParts(int32_t group, std::span<const AttendTask> tasks) {
  parts_at_.assign(tasks.size(), nullptr);
  const auto floats = [&](int32_t i) {
    const AttendTask& task = tasks[static_cast<size_t>(i)];
    const ScratchShape shape(int64_t{task.tokens} * group, true, task.lane);
    return PartsOf(task) * shape.state() + (IsObserved(task) ? shape.logits : 0);
  };
  const auto each = [&](const auto& use) {
    for (const AttendItem& item : items_) {
      for (int32_t lane = 0; item.part == 0 && lane < item.tasks; ++lane) use(item.task + lane);
    }
  };
  int64_t sum = 0;
  each([&](int32_t task) { sum += floats(task); });
  float* next = parts_.AtLeast(sum);
  each([&](int32_t task) { parts_at_[static_cast<size_t>(task)] = std::exchange(next, next + floats(task)); });
}

// Of a task whose parts are folded.
void AttendOp::MergeParts(const Rope& rope, int32_t group, std::span<const AttendTask> tasks, int32_t task,
                          Scratch& scratch) {
  const AttendTask& whole = tasks[static_cast<size_t>(task)];
  const AttendItem item = {.task = task, .tokens = whole.tokens, .part = 0};
  const ScratchShape shape(int64_t{whole.tokens} * group, true, whole.lane);
  float* next = scratch.AtLeast(ScratchOf(group, rope, tasks, item));
  AttendArgs args = ArgsOf(rope, group, whole, item, next);
  float* const at = parts_at_[static_cast<size_t>(task)];
  if (IsObserved(whole)) args.scratch.logits = at + PartsOf(whole) * shape.state();
  kernels_.merge(args, StateAt(shape, at), shape.state(), PartsOf(whole));
}

// Puts neighbouring items that are whole tasks and share their angles together, as far as that leaves every thread
// several. Their bits do not show it.
void AttendOp::JoinItems(const Rope& rope, std::span<const AttendTask> tasks) {
  const auto most = static_cast<int64_t>(items_.size()) / (4 * parallel_.threads());
  if (most < 2) return;
  size_t last = 0;
  for (size_t i = 1; i < items_.size(); ++i) {
    const AttendTask& before = tasks[static_cast<size_t>(items_[last].task)];
    const AttendTask& task = tasks[static_cast<size_t>(items_[i].task)];
    const bool whole = items_[i].tokens == task.tokens && items_[last].tokens == before.tokens &&
                       items_[i].part == items_[last].part && items_[i].task == items_[last].task + items_[last].tasks;
    if (whole && items_[last].tasks < std::min<int64_t>(most, kLanesTogether) && ShareAngles(rope, before, task)) {
      ++items_[last].tasks;
    } else {
      items_[++last] = items_[i];
    }
  }
  items_.resize(last + 1);
}

// Room for the largest item on every thread: which thread takes which item is chance, and a thread that meets its
// first large one late must not allocate then.
void AttendOp::ReserveScratch(int32_t group, const Rope& rope, std::span<const AttendTask> tasks) {
  int64_t most = 0;
  for (const AttendItem& item : items_) most = std::max(most, ScratchOf(group, rope, tasks, item));
  for (Scratch& scratch : scratch_) scratch.AtLeast(most);
}

void AttendOp::AttendOne(const Rope& rope, int32_t group, std::span<const AttendTask> tasks, int64_t i,
                         Scratch& scratch) {
  const AttendItem& item = items_[static_cast<size_t>(i)];
  AttendArgs lanes[kLanesTogether];
  float* next = scratch.AtLeast(ScratchOf(group, rope, tasks, item));
  for (int32_t lane = 0; lane < item.tasks; ++lane) {
    const AttendTask& task = tasks[static_cast<size_t>(item.task + lane)];
    if (task.k != nullptr && !IsCut(tasks, item)) StoreOne(rope, StoreOf(task));
    lanes[lane] = ArgsOf(rope, group, task, item, next);
    if (item.part < 0) continue;
    const ScratchShape shape(int64_t{item.tokens} * group, true, task.lane);
    float* const at = parts_at_[static_cast<size_t>(item.task + lane)];
    lanes[lane].scratch.part = StateAt(shape, at + item.part * shape.state());
    if (IsObserved(task)) lanes[lane].scratch.logits = at + PartsOf(task) * shape.state();
  }
  lanes[0].scratch.angles = next;
  AskForLaneAfter(tasks, i, lanes[0]);
  kernels_.attend(lanes, item.tasks);
}

// The lane of the item after item i, as a thread takes them, unless it is the same slots or of other types.
void AttendOp::AskForLaneAfter(std::span<const AttendTask> tasks, int64_t i, AttendArgs& args) const {
  if (i + 1 >= static_cast<int64_t>(items_.size())) return;
  const AttendItem &item = items_[static_cast<size_t>(i)], &after = items_[static_cast<size_t>(i + 1)];
  const LaneStorage& lane = tasks[static_cast<size_t>(item.task)].lane;
  const LaneStorage& next = tasks[static_cast<size_t>(after.task)].lane;
  const bool alike = next.format.type == lane.format.type && next.format.rope_cache == lane.format.rope_cache;
  if ((after.task == item.task && after.part == item.part) || !alike) return;
  args.next = ToArgs(next);
  args.next_first = std::max(after.part, 0) * kPartSlots / kTileSlots;
  args.next_tiles = std::min(kBlockTiles, (next.slots + kTileSlots - 1) / kTileSlots - args.next_first);
}

// Adds up, in token order, the column sums of tasks that were cut.
void AttendOp::SumColumns(int32_t group, std::span<const AttendTask> tasks) {
  for (const AttendItem& item : items_) {
    const AttendTask& task = tasks[static_cast<size_t>(item.task)];
    if (item.column_sums == nullptr || item.tokens == task.tokens) continue;
    for (int32_t g = 0; g < (task.head_stride == 0 ? 1 : group); ++g) {
      float* const sums = task.column_sums + g * task.head_stride;
      const float* const own = item.column_sums + g * task.head_stride;
      for (int32_t s = 0; s < task.lane.slots; ++s) sums[s] = (item.first == 0 ? 0.0F : sums[s]) + own[s];
    }
  }
}

}  // namespace ebb::cpu
