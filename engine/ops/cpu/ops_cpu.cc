#include "engine/ops/cpu/ops_cpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/quantization.h"
#include "engine/ops/cpu/dispatch.h"
#include "engine/ops/cpu/packed_matrix.h"
#include "engine/parallel.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace cpu {
namespace {

// Rows (tokens x group) that one call of the attend kernel takes: enough to make rotating the keys cheap, few enough
// for its memory to stay in L2. Where rows are observed their logits are kept, and long lanes take fewer rows.
constexpr int32_t kAttendRows = 128;
constexpr int64_t kObservedLogits = int64_t{1} << 18;

// Rows of x that one call of a linear kernel takes: their activations stay in L2 beside a piece of weights.
constexpr int64_t kLinearRows = 192;

// Below this many multiply-adds a call is done before a sleeping thread has woken up.
constexpr int64_t kWorthSplitting = int64_t{1} << 17;

int32_t RoundUp(int32_t value, int32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

RopeArgs ToArgs(const Rope& rope) {
  return {.turns = rope.turns.data(),
          .half_turns = rope.half_turns.data(),
          .rotary_dims = rope.rotary_dims,
          .halves = rope.pairs == RopePairs::kHalves};
}

Element ElementOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      return Element::kF32;
    case KvType::kF16:
      return Element::kF16;
    case KvType::kBf16:
      return Element::kBf16;
  }
  return Element::kF32;
}

KvArgs ToArgs(const LaneStorage& lane) {
  return {.type = ElementOf(lane.format.type),
          .rk = lane.format.rope_cache == RopeCache::kRk,
          .head_dim = lane.format.head_dim,
          .page_tiles = lane.format.page_tiles,
          .pages = lane.pages};
}

// Memory that only grows.
class Scratch {
 public:
  float* AtLeast(int64_t floats) {
    if (floats * 4 > memory_.size()) memory_ = AlignedBytes(floats * 4 + floats);
    return reinterpret_cast<float*>(memory_.data());
  }

 private:
  AlignedBytes memory_{0};
};

// Lanes that share their positions and are attended in turns, at most: their angles are then computed once for all.
constexpr int32_t kLanesTogether = 4;

// What one kernel call takes: some tokens of one AttendTask, or all those of several.
struct AttendItem {
  int32_t task = 0;
  int32_t first = 0;
  int32_t tokens = 0;
  int32_t tasks = 1;
  float* column_sums = nullptr;  // where this item's own sums go, null unless wanted
};

bool IsObserved(const AttendTask& task, const AttendItem& item) {
  const int32_t last = item.first + item.tokens;
  return task.column_sums != nullptr || (task.last_row != nullptr && last == task.tokens) ||
         (task.window != nullptr && last > task.tokens - task.window_rows);
}

// Whether the kernel may take turns between two tasks.
bool ShareAngles(const AttendTask& a, const AttendTask& b) {
  const KvFormat &x = a.lane.format, &y = b.lane.format;
  return a.lane.position == b.lane.position && a.lane.slots == b.lane.slots && a.lane.angles == b.lane.angles &&
         a.tokens == b.tokens && a.q_position == b.q_position && x.type == y.type && x.rope_cache == y.rope_cache &&
         x.head_dim == y.head_dim;
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

  int64_t floats() const { return keys + peak + weight + 2 * q + p + logits; }

  int64_t keys, peak, weight, q, p, logits;
};

class CpuOps final : public Ops {
 public:
  CpuOps(const Kernels& kernels, Accuracy accuracy, int32_t threads)
      : kernels_(kernels),
        accuracy_(accuracy),
        fingerprint_(absl::StrFormat("%s %s", kernels.name, accuracy == Accuracy::kFast ? "fast" : "exact")),
        parallel_(threads),
        scratch_(static_cast<size_t>(threads)) {}

  std::string_view fingerprint() const override { return fingerprint_; }

  Parallel& host_threads() override { return parallel_; }

  std::unique_ptr<PackedMatrix> Pack(const TensorView& tensor) override {
    return std::make_unique<PackedPanels>(tensor, parallel_);
  }

  void Embed(const TensorView& table, std::span<const int32_t> tokens, std::span<float> x) override {
    EBB_CHECK(x.size() == tokens.size() * static_cast<size_t>(table.cols));
    for (size_t t = 0; t < tokens.size(); ++t) {
      EBB_CHECK(tokens[t] >= 0 && tokens[t] < table.rows);
      DequantizeRow(table.type, table.data.data() + tokens[t] * RowBytes(table.type, table.cols), table.cols,
                    x.data() + static_cast<int64_t>(t) * table.cols);
    }
  }

  using Ops::Linear;
  void Linear(std::span<const PackedMatrix* const> w, std::span<const float> x, int32_t tokens, Into into,
              std::span<float> y) override {
    Multiply(w, Prepare(w, x, tokens, nullptr), tokens, into, y);
  }

  void NormLinear(const Norm& norm, std::span<const PackedMatrix* const> w, std::span<const float> x, int32_t tokens,
                  std::span<float> y) override {
    Multiply(w, Prepare(w, x, tokens, &norm), tokens, Into::kSet, y);
  }

  void FeedForward(const Norm& norm, const PackedMatrix& gate, const PackedMatrix& up, const PackedMatrix& down,
                   int32_t tokens, std::span<float> x) override {
    const PackedMatrix* const widen[] = {&gate, &up};
    const Input hidden = Widen(static_cast<const PackedPanels&>(gate), static_cast<const PackedPanels&>(up),
                               static_cast<const PackedPanels&>(down), Prepare(widen, x, tokens, &norm), tokens);
    const PackedMatrix* const narrow[] = {&down};
    Multiply(narrow, hidden, tokens, Into::kAdd, x);
  }

  void Angles(const Rope& rope, std::span<const int32_t> position, std::span<float> angles) override {
    const auto tiles = static_cast<int64_t>(position.size()) / kTileSlots;
    const int64_t floats = int64_t{rope.rotary_dims} * kTileSlots;
    EBB_CHECK(position.size() % kTileSlots == 0);
    EBB_CHECK(static_cast<int64_t>(angles.size()) == tiles * floats);
    Split(tiles, floats * 16, [&](int64_t tile, int32_t /*thread*/) {
      kernels_.angles(ToArgs(rope), position.data() + tile * kTileSlots, angles.data() + tile * floats);
    });
  }

  void Store(const Rope& rope, std::span<const StoreTask> tasks) override {
    if (tasks.empty()) return;
    const int64_t work = int64_t{tasks[0].tokens} * tasks[0].lane.format.head_dim * 16;
    Split(static_cast<int64_t>(tasks.size()), work,
          [&](int64_t i, int32_t /*thread*/) { StoreOne(rope, tasks[static_cast<size_t>(i)]); });
  }

  void Read(const LaneStorage& lane, Part part, int32_t first, int32_t count, float* out) const override {
    kernels_.read({.kv = ToArgs(lane), .values = part == Part::kValues, .first = first, .count = count, .out = out});
  }

  // Bytes are bytes: no instruction set does this better than memcpy, and it is rare.
  void Move(const LaneStorage& lane, std::span<const SlotMove> moves) override {
    const KvFormat& format = lane.format;
    const int64_t element = format.element_bytes();
    const int64_t part = element * format.head_dim * kTileSlots;
    const int64_t column_parts = format.rope_cache == RopeCache::kRk ? 2 : 1;
    const auto tile = [&](int32_t slot) {
      const int32_t index = slot / kTileSlots;
      return lane.pages[index / format.page_tiles] + (index % format.page_tiles) * format.tile_bytes();
    };
    for (const SlotMove& move : moves) {
      const std::byte* from = tile(move.from);
      std::byte* to = tile(move.to);
      for (int64_t c = 0; c < column_parts * format.head_dim; ++c) {
        const int64_t column = c * kTileSlots * element;
        std::memcpy(to + column + move.to % kTileSlots * element, from + column + move.from % kTileSlots * element,
                    static_cast<size_t>(element));
      }
      const int64_t row = element * format.head_dim;
      std::memcpy(to + column_parts * part + move.to % kTileSlots * row,
                  from + column_parts * part + move.from % kTileSlots * row, static_cast<size_t>(row));
    }
  }

  void Attend(const Rope& rope, int32_t group, std::span<const AttendTask> tasks) override {
    PlanItems(group, tasks);
    int64_t work = 0;
    for (const AttendTask& task : tasks) {
      work += int64_t{task.tokens} * group * task.lane.slots * task.lane.format.head_dim * 2;
    }
    ReserveScratch(group, rope, tasks);
    StoreOfSeveralItems(rope, tasks);
    const auto items = static_cast<int64_t>(items_.size());
    Split(items, items == 0 ? 0 : work / items,
          [&](int64_t i, int32_t thread) { AttendOne(rope, group, tasks, i, scratch_[static_cast<size_t>(thread)]); });
    SumColumns(group, tasks);
  }

 private:
  // Rows as the kernels of some matrices read them: as floats, rounded, or both.
  struct Input {
    const float* x = nullptr;
    float* made = nullptr;  // the same where they are of our own making and somebody reads them as floats
    RoundedRows rounded = {};

    bool rounds() const { return rounded.bytes != nullptr || rounded.pairs != nullptr; }
  };

  static bool IsQuantised(Element type) { return type == Element::kQ8 || type == Element::kQ4 || IsKType(type); }
  bool IsRounded(Element type) const {
    return accuracy_ == Accuracy::kFast && (type == Element::kBf16 || IsQuantised(type));
  }

  // Row `first` and those after it of rows of k.
  static RoundedRows RowsFrom(const RoundedRows& rows, int64_t first, int64_t k) {
    const int64_t chunks = (k + kChunk - 1) / kChunk;
    const int64_t blocks = (k + kRoundedBlock - 1) / kRoundedBlock;
    RoundedRows from = {};
    if (rows.bytes != nullptr) {
      from.bytes = rows.bytes + first * chunks * kChunk;
      from.scales = rows.scales + first * blocks;
      from.offsets = rows.offsets + first * chunks;
      from.halves = rows.halves + first * chunks;
    }
    if (rows.pairs != nullptr) from.pairs = rows.pairs + first * chunks * kChunk;
    return from;
  }

  struct InputMemory {
    Scratch floats = {}, bytes = {}, pairs = {};
  };

  // Room for rows [rows, k] in the forms that these matrices multiply. `x`: the rows, null where they are yet to be
  // made.
  Input Reserve(InputMemory& memory, std::span<const PackedMatrix* const> w, int64_t rows, int64_t k,
                const float* x) const {
    const int64_t chunks = (k + kChunk - 1) / kChunk;
    Input input = {.x = x};
    for (const PackedMatrix* const one : w) {
      const Element type = static_cast<const PackedPanels*>(one)->type();
      RoundedRows& to = input.rounded;
      if (!IsRounded(type)) {
        if (x == nullptr) input.x = input.made = memory.floats.AtLeast(rows * k);
      } else if (!IsQuantised(type)) {
        to.pairs = memory.pairs.AtLeast(rows * chunks * kChunk);
      } else {  // in floats: a chunk takes 8, its offset and half 1 each, a block's scale 1
        float* const first = memory.bytes.AtLeast(rows * chunks * 11);
        to.bytes = reinterpret_cast<int8_t*>(first);
        to.offsets = reinterpret_cast<int32_t*>(first + rows * chunks * 8);
        to.halves = reinterpret_cast<int32_t*>(first + rows * chunks * 9);
        to.scales = first + rows * chunks * 10;
      }
    }
    return input;
  }

  // Columns first .. first + count - 1 of one row, as far as it is rounded. REQUIRES: first is a multiple of
  // kRoundedBlock.
  void Round(const float* x, int64_t first, int64_t count, RoundedRows row) const {
    if (row.bytes != nullptr) {
      row.bytes += first;
      row.scales += first / kRoundedBlock;
      row.offsets += first / kChunk;
      row.halves += first / kChunk;
      kernels_.round_to_bytes(x, static_cast<int32_t>(count), row);
    }
    if (row.pairs != nullptr) {
      row.pairs += first;
      kernels_.round_to_bf16(x, static_cast<int32_t>(count), row);
    }
  }

  // x [tokens, k], or its norm, as the matrices read it.
  Input Prepare(std::span<const PackedMatrix* const> w, std::span<const float> x, int64_t tokens, const Norm* norm) {
    const int64_t k = w.front()->cols();
    for (const PackedMatrix* const one : w) EBB_CHECK(one->cols() == k);
    EBB_CHECK(static_cast<int64_t>(x.size()) == tokens * k);
    EBB_CHECK(norm == nullptr || static_cast<int64_t>(norm->weight.size()) == k);
    const Input input = Reserve(input_, w, tokens, k, norm == nullptr ? x.data() : nullptr);
    if (norm == nullptr && !input.rounds()) return input;
    ReserveScratch(norm == nullptr ? 0 : k);
    Split(tokens, k * ((norm == nullptr ? 0 : 2) + (input.rounds() ? 4 : 0)), [&](int64_t t, int32_t thread) {
      const float* row = x.data() + t * k;
      if (norm != nullptr) {
        Scratch& scratch = scratch_[static_cast<size_t>(thread)];
        float* const normed = input.made != nullptr ? input.made + t * k : scratch.AtLeast(k);
        kernels_.rms_norm(row, norm->weight.data(), norm->eps, k, normed);
        row = normed;
      }
      Round(row, 0, k, RowsFrom(input.rounded, t, k));
    });
    return input;
  }

  // One group of outputs for rows first .. of an input.
  void MultiplyGroup(const PackedPanels& w, int64_t group, const Input& input, int64_t first, int64_t rows, bool add,
                     float* y, int64_t y_stride) const {
    LinearArgs args = w.Group(group);
    if (input.x != nullptr) args.x = input.x + first * w.cols();
    args.rounded = RowsFrom(input.rounded, first, w.cols());
    args.rows = static_cast<int32_t>(rows);
    args.y = y;
    args.y_stride = y_stride;
    args.add = add;
    (IsRounded(w.type()) ? kernels_.linear_fast : kernels_.linear_exact)(args);
  }

  void Multiply(std::span<const PackedMatrix* const> w, const Input& input, int64_t tokens, Into into,
                std::span<float> y) {
    int64_t groups = 0, outputs = 0;
    for (const PackedMatrix* const one : w) {
      groups += static_cast<const PackedPanels*>(one)->groups();
      outputs += one->rows();
    }
    EBB_CHECK(static_cast<int64_t>(y.size()) == tokens * outputs);
    // Rows in blocks that stay in L2 while all weights pass over them.
    const int64_t blocks = (tokens + kLinearRows - 1) / kLinearRows;
    const int64_t cost = std::min<int64_t>(tokens, kLinearRows) * w.front()->cols() * kGroupRows;
    Split(blocks * groups, cost, [&](int64_t item, int32_t /*thread*/) {
      const int64_t first = item / groups * kLinearRows;
      int64_t group = item % groups;
      int64_t output = 0;
      const PackedPanels* packed = static_cast<const PackedPanels*>(w[0]);
      for (size_t i = 1; group >= packed->groups(); ++i) {
        group -= packed->groups();
        output += packed->rows();
        packed = static_cast<const PackedPanels*>(w[i]);
      }
      MultiplyGroup(*packed, group, input, first, std::min(kLinearRows, tokens - first), into == Into::kAdd,
                    y.data() + first * outputs + output + group * kGroupRows, outputs);
    });
  }

  // silu(gate h) * (up h) as `down` reads it. An item makes a block of columns of both, some rows at a time, and what
  // it made is still in L2 when it is gated and rounded.
  Input Widen(const PackedPanels& gate, const PackedPanels& up, const PackedPanels& down, const Input& h,
              int64_t tokens) {
    const int64_t ffn = down.cols();
    EBB_CHECK(gate.rows() == ffn);
    EBB_CHECK(up.rows() == ffn);
    const PackedMatrix* const readers[] = {&down};
    const Input hidden = Reserve(hidden_, readers, tokens, ffn, nullptr);
    const int64_t row_blocks = (tokens + kLinearRows - 1) / kLinearRows;
    const int64_t columns = (ffn + kRoundedBlock - 1) / kRoundedBlock;
    const int64_t rows_most = std::min(tokens, kLinearRows);
    ReserveScratch(rows_most * 2 * kRoundedBlock);
    Split(row_blocks * columns, rows_most * gate.cols() * 2 * kRoundedBlock, [&](int64_t item, int32_t thread) {
      const int64_t first = item / columns * kLinearRows;
      const int64_t column = item % columns * kRoundedBlock;
      const int64_t rows = std::min(kLinearRows, tokens - first);
      const int64_t count = std::min<int64_t>(kRoundedBlock, ffn - column);
      float* const made = scratch_[static_cast<size_t>(thread)].AtLeast(rows * 2 * kRoundedBlock);  // [rows][gate | up]
      for (const PackedPanels* const w : {&gate, &up}) {
        float* const to = made + (w == &up ? kRoundedBlock : 0);
        for (int64_t c = 0; c < count; c += kGroupRows) {
          MultiplyGroup(*w, (column + c) / kGroupRows, h, first, rows, false, to + c, 2 * kRoundedBlock);
        }
      }
      for (int64_t t = 0; t < rows; ++t) {
        float* const row = made + t * 2 * kRoundedBlock;
        float* const to = hidden.made != nullptr ? hidden.made + (first + t) * ffn + column : row;
        kernels_.swiglu(row, row + kRoundedBlock, count, to);
        Round(to, column, count, RowsFrom(hidden.rounded, first + t, ffn));
      }
    });
    return hidden;
  }

  void StoreOne(const Rope& rope, const StoreTask& task) const {
    kernels_.store({.rope = ToArgs(rope),
                    .kv = ToArgs(task.lane),
                    .k = task.k,
                    .v = task.v,
                    .stride = task.stride,
                    .tokens = task.tokens,
                    .slots = task.slots});
  }
  static StoreTask StoreOf(const AttendTask& task) {
    return {
        .lane = task.lane, .k = task.k, .v = task.v, .stride = task.stride, .tokens = task.tokens, .slots = task.slots};
  }

  // K and V of tasks that were cut: nobody may attend before they are in their slots. Those of others are stored by who
  // attends.
  void StoreOfSeveralItems(const Rope& rope, std::span<const AttendTask> tasks) {
    stores_.clear();
    for (const AttendItem& item : items_) {
      const AttendTask& task = tasks[static_cast<size_t>(item.task)];
      if (task.k != nullptr && item.first == 0 && item.tokens < task.tokens) stores_.push_back(StoreOf(task));
    }
    Store(rope, stores_);
  }

  // work(item, thread) for every item, on all threads if there is enough to do; `cost` multiply-adds per item.
  template <typename Work>
  void Split(int64_t items, int64_t cost, const Work& work) {
    if (items * cost >= kWorthSplitting) {
      parallel_.For(items, work);
    } else {
      for (int64_t item = 0; item < items; ++item) work(item, 0);
    }
  }

  // Cuts tasks into items by rules that know nothing of threads.
  void PlanItems(int32_t group, std::span<const AttendTask> tasks) {
    items_.clear();
    int64_t partial = 0;  // floats of column sums that wait to be added up
    for (size_t i = 0; i < tasks.size(); ++i) {
      const AttendTask& task = tasks[i];
      EBB_CHECK(task.lane.format.head_dim <= kMaxHeadDim);
      EBB_CHECK(task.tokens >= 1);
      const bool observed = task.column_sums != nullptr || task.last_row != nullptr || task.window != nullptr;
      int64_t rows = kAttendRows;
      if (observed) rows = std::min<int64_t>(rows, kObservedLogits / std::max(task.lane.slots, 1));
      const int32_t tokens = static_cast<int32_t>(std::max<int64_t>(1, rows / group));
      for (int32_t first = 0; first < task.tokens; first += tokens) {
        items_.push_back(
            {.task = static_cast<int32_t>(i), .first = first, .tokens = std::min(tokens, task.tokens - first)});
      }
      if (task.column_sums != nullptr && task.tokens > tokens) {
        partial += int64_t{(task.tokens + tokens - 1) / tokens} * SumFloats(task, group);
      }
    }
    JoinItems(tasks);
    float* next = partial_sums_.AtLeast(partial);
    for (AttendItem& item : items_) {
      const AttendTask& task = tasks[static_cast<size_t>(item.task)];
      if (task.column_sums == nullptr) continue;
      item.column_sums = item.tokens == task.tokens ? task.column_sums : next;
      if (item.tokens < task.tokens) next += SumFloats(task, group);
    }
  }

  // Puts neighbouring items that are whole tasks and share their angles together, as far as that leaves every thread
  // several. Their bits do not show it.
  void JoinItems(std::span<const AttendTask> tasks) {
    const auto most = static_cast<int64_t>(items_.size()) / (4 * parallel_.threads());
    if (most < 2) return;
    size_t last = 0;
    for (size_t i = 1; i < items_.size(); ++i) {
      const AttendTask& before = tasks[static_cast<size_t>(items_[last].task)];
      const AttendTask& task = tasks[static_cast<size_t>(items_[i].task)];
      const bool whole = items_[i].tokens == task.tokens && items_[last].tokens == before.tokens;
      if (whole && items_[last].tasks < std::min<int64_t>(most, kLanesTogether) && ShareAngles(before, task)) {
        ++items_[last].tasks;
      } else {
        items_[++last] = items_[i];
      }
    }
    items_.resize(last + 1);
  }

  // Column sums of a task, from the first head's first to the last head's last.
  static int64_t SumFloats(const AttendTask& task, int32_t group) {
    return (group - 1) * task.head_stride + task.lane.slots;
  }

  // Floats of an item's scratch memory: of each of its lanes, and of their angles.
  static int64_t ScratchOf(int32_t group, const Rope& rope, std::span<const AttendTask> tasks, const AttendItem& item) {
    int64_t floats = 0;
    for (const AttendTask& task : tasks.subspan(static_cast<size_t>(item.task), static_cast<size_t>(item.tasks))) {
      floats += ScratchShape(int64_t{item.tokens} * group, IsObserved(task, item), task.lane).floats();
    }
    return floats + int64_t{kBlockSlots} * rope.rotary_dims;
  }

  // Room for the largest item on every thread: which thread takes which item is chance, and a thread that meets its
  // first large one late must not allocate then.
  void ReserveScratch(int32_t group, const Rope& rope, std::span<const AttendTask> tasks) {
    int64_t most = 0;
    for (const AttendItem& item : items_) most = std::max(most, ScratchOf(group, rope, tasks, item));
    ReserveScratch(most);
  }
  void ReserveScratch(int64_t floats) {
    for (Scratch& scratch : scratch_) scratch.AtLeast(floats);
  }

  void AttendOne(const Rope& rope, int32_t group, std::span<const AttendTask> tasks, int64_t i, Scratch& scratch) {
    const AttendItem& item = items_[static_cast<size_t>(i)];
    AttendArgs lanes[kLanesTogether];
    float* next = scratch.AtLeast(ScratchOf(group, rope, tasks, item));
    for (int32_t lane = 0; lane < item.tasks; ++lane) {
      const AttendTask& task = tasks[static_cast<size_t>(item.task + lane)];
      if (task.k != nullptr && item.tokens == task.tokens) StoreOne(rope, StoreOf(task));
      lanes[lane] = ArgsOf(rope, group, task, item, next);
    }
    lanes[0].scratch.angles = next;
    AskForLaneAfter(tasks, i, lanes[0]);
    kernels_.attend(lanes, item.tasks);
  }

  // The lane of the item after item i, as a thread takes them, unless it is the same one or of other types.
  void AskForLaneAfter(std::span<const AttendTask> tasks, int64_t i, AttendArgs& args) const {
    if (i + 1 >= static_cast<int64_t>(items_.size())) return;
    const int32_t task = items_[static_cast<size_t>(i)].task, after = items_[static_cast<size_t>(i + 1)].task;
    const LaneStorage& lane = tasks[static_cast<size_t>(task)].lane;
    const LaneStorage& next = tasks[static_cast<size_t>(after)].lane;
    const bool alike = next.format.type == lane.format.type && next.format.rope_cache == lane.format.rope_cache;
    if (after == task || !alike) return;
    args.next = ToArgs(next);
    args.next_tiles = std::min(kBlockTiles, (next.slots + kTileSlots - 1) / kTileSlots);
  }

  // One task's tokens of an item; its scratch memory begins at `next`, which moves past it.
  static AttendArgs ArgsOf(const Rope& rope, int32_t group, const AttendTask& task, const AttendItem& item,
                           float*& next) {
    const bool observed = IsObserved(task, item);
    const int32_t last = item.first + item.tokens;
    const int64_t out_stride = task.out_stride == 0 ? task.stride : task.out_stride;
    AttendArgs args = {.rope = ToArgs(rope),
                       .kv = ToArgs(task.lane),
                       .position = task.lane.position,
                       .slots = task.lane.slots,
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
    if (task.last_row != nullptr && last == task.tokens) args.last_row = task.last_row;
    const int32_t window_first = task.tokens - task.window_rows;
    if (task.window != nullptr && last > window_first) {
      const int32_t row = std::max(item.first, window_first);
      args.window = task.window + int64_t{row - window_first} * task.lane.slots;
      args.window_rows = last - row;
    }
    const ScratchShape shape(int64_t{item.tokens} * group, observed, task.lane);
    args.scratch.keys = std::exchange(next, next + shape.keys);
    args.scratch.peak = std::exchange(next, next + shape.peak);
    args.scratch.weight = std::exchange(next, next + shape.weight);
    args.scratch.q = std::exchange(next, next + shape.q);
    args.scratch.sums = std::exchange(next, next + shape.q);
    args.scratch.p = std::exchange(next, next + shape.p);
    args.scratch.logits = std::exchange(next, next + shape.logits);
    return args;
  }

  // Adds up, in token order, the column sums of tasks that were cut.
  void SumColumns(int32_t group, std::span<const AttendTask> tasks) {
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

  const Kernels& kernels_;
  Accuracy accuracy_;
  std::string fingerprint_;
  Parallel parallel_;
  std::vector<Scratch> scratch_;  // by thread
  std::vector<AttendItem> items_;
  std::vector<StoreTask> stores_;
  Scratch partial_sums_;
  InputMemory input_, hidden_;
};

}  // namespace
}  // namespace cpu

absl::StatusOr<std::unique_ptr<Ops>> MakeCpuOps(const CpuOptions& options) {
  if (options.threads < 1 || options.threads > kThreadsMax) {
    return RefuseField("THREADS_OUT_OF_RANGE", "threads",
                       absl::StrFormat("%d is not in 1..%d", options.threads, kThreadsMax));
  }
  const char* environment = std::getenv("EBB_ISA");
  const std::string isa = options.isa.empty() && environment != nullptr ? environment : options.isa;
  EBB_ASSIGN(const cpu::Kernels* kernels, cpu::ChooseKernels(isa));
  return std::make_unique<cpu::CpuOps>(*kernels, options.accuracy, options.threads);
}

}  // namespace ebb
