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

// Tokens of one AttendTask that one kernel call takes.
struct AttendItem {
  int32_t task = 0;
  int32_t first = 0;
  int32_t tokens = 0;
  float* column_sums = nullptr;  // where this item's own sums go, null unless wanted
};

bool IsObserved(const AttendTask& task, const AttendItem& item) {
  const int32_t last = item.first + item.tokens;
  return task.column_sums != nullptr || (task.last_row != nullptr && last == task.tokens) ||
         (task.window != nullptr && last > task.tokens - task.window_rows);
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

  void RmsNorm(std::span<const float> x, std::span<const float> weight, float eps, std::span<float> y) override {
    const auto dim = static_cast<int64_t>(weight.size());
    EBB_CHECK(x.size() == y.size());
    EBB_CHECK(x.size() % weight.size() == 0);
    const int64_t rows = static_cast<int64_t>(x.size()) / dim;
    Split(rows, dim, [&](int64_t row, int32_t /*thread*/) {
      kernels_.rms_norm(x.data() + row * dim, weight.data(), eps, dim, y.data() + row * dim);
    });
  }

  using Ops::Linear;
  void Linear(std::span<const PackedMatrix* const> w, std::span<const float> x, int32_t tokens, Into into,
              std::span<float> y) override {
    const int64_t k = w.front()->cols();
    int64_t groups = 0, outputs = 0;
    RoundedRows rounded = {};
    for (const PackedMatrix* one : w) {
      const auto& packed = static_cast<const PackedPanels&>(*one);
      EBB_CHECK(packed.cols() == k);
      groups += packed.groups();
      outputs += packed.rows();
      if (!IsRounded(packed.type())) continue;
      if (IsQuantised(packed.type()) ? rounded.bytes == nullptr : rounded.pairs == nullptr) {
        Round(packed.type(), x, tokens, k, rounded);
      }
    }
    EBB_CHECK(static_cast<int64_t>(x.size()) == tokens * k);
    EBB_CHECK(static_cast<int64_t>(y.size()) == tokens * outputs);
    // Rows in blocks that stay in L2 while all weights pass over them.
    const int64_t blocks = (tokens + kLinearRows - 1) / kLinearRows;
    Split(blocks * groups, std::min<int64_t>(tokens, kLinearRows) * k * kGroupRows,
          [&](int64_t item, int32_t /*thread*/) {
            const int64_t first = item / groups * kLinearRows;
            int64_t group = item % groups;
            int64_t output = 0;
            const PackedPanels* packed = static_cast<const PackedPanels*>(w[0]);
            for (size_t i = 1; group >= packed->groups(); ++i) {
              group -= packed->groups();
              output += packed->rows();
              packed = static_cast<const PackedPanels*>(w[i]);
            }
            LinearArgs args = packed->Group(group);
            args.x = x.data() + first * k;
            args.rounded = RowsFrom(rounded, first, k);
            args.rows = static_cast<int32_t>(std::min<int64_t>(kLinearRows, tokens - first));
            args.y = y.data() + first * outputs + output + group * kGroupRows;
            args.y_stride = outputs;
            args.add = into == Into::kAdd;
            (IsRounded(packed->type()) ? kernels_.linear_fast : kernels_.linear_exact)(args);
          });
  }

  void SwiGlu(std::span<const float> gate_up, int64_t ffn, std::span<float> y) override {
    EBB_CHECK(gate_up.size() == 2 * y.size());
    EBB_CHECK(static_cast<int64_t>(y.size()) % ffn == 0);
    constexpr int64_t kPiece = 4096;  // of a row
    const int64_t pieces = (ffn + kPiece - 1) / kPiece;
    Split(static_cast<int64_t>(y.size()) / ffn * pieces, std::min(kPiece, ffn) * 16,
          [&](int64_t item, int32_t /*thread*/) {
            const int64_t row = item / pieces;
            const int64_t first = item % pieces * kPiece;
            const float* gate = gate_up.data() + row * 2 * ffn + first;
            kernels_.swiglu(gate, gate + ffn, std::min(kPiece, ffn - first), y.data() + row * ffn + first);
          });
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
    Split(static_cast<int64_t>(tasks.size()), work, [&](int64_t i, int32_t /*thread*/) {
      const StoreTask& task = tasks[static_cast<size_t>(i)];
      kernels_.store({.rope = ToArgs(rope),
                      .kv = ToArgs(task.lane),
                      .k = task.k,
                      .v = task.v,
                      .stride = task.stride,
                      .tokens = task.tokens,
                      .slots = task.slots});
    });
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
    ReserveScratch(group, tasks);
    const auto items = static_cast<int64_t>(items_.size());
    Split(items, items == 0 ? 0 : work / items, [&](int64_t i, int32_t thread) {
      const AttendItem& item = items_[static_cast<size_t>(i)];
      AttendOne(rope, group, tasks[static_cast<size_t>(item.task)], item, scratch_[static_cast<size_t>(thread)]);
    });
    SumColumns(group, tasks);
  }

 private:
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

  // Puts x [rows, k] into `to` as `type` multiplies it, in scratch memory.
  void Round(Element type, std::span<const float> x, int64_t rows, int64_t k, RoundedRows& to) {
    const int64_t chunks = (k + kChunk - 1) / kChunk;
    const bool bytes = IsQuantised(type);
    if (bytes) {  // in floats: a chunk takes 8, its offset and half 1 each, a block's scale 1
      float* const memory = rounded_bytes_.AtLeast(rows * chunks * 11);
      to.bytes = reinterpret_cast<int8_t*>(memory);
      to.offsets = reinterpret_cast<int32_t*>(memory + rows * chunks * 8);
      to.halves = reinterpret_cast<int32_t*>(memory + rows * chunks * 9);
      to.scales = memory + rows * chunks * 10;
    } else {
      to.pairs = rounded_pairs_.AtLeast(rows * chunks * kChunk);
    }
    const auto round = bytes ? kernels_.round_to_bytes : kernels_.round_to_bf16;
    Split(rows, k * 4, [&](int64_t row, int32_t /*thread*/) {
      round(x.data() + row * k, static_cast<int32_t>(k), RowsFrom(to, row, k));
    });
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
        items_.push_back({static_cast<int32_t>(i), first, std::min(tokens, task.tokens - first), nullptr});
      }
      if (task.column_sums != nullptr && task.tokens > tokens) {
        partial += int64_t{(task.tokens + tokens - 1) / tokens} * SumFloats(task, group);
      }
    }
    float* next = partial_sums_.AtLeast(partial);
    for (AttendItem& item : items_) {
      const AttendTask& task = tasks[static_cast<size_t>(item.task)];
      if (task.column_sums == nullptr) continue;
      item.column_sums = item.tokens == task.tokens ? task.column_sums : next;
      if (item.tokens < task.tokens) next += SumFloats(task, group);
    }
  }

  // Column sums of a task, from the first head's first to the last head's last.
  static int64_t SumFloats(const AttendTask& task, int32_t group) {
    return (group - 1) * task.head_stride + task.lane.slots;
  }

  // Room for the largest item on every thread: which thread takes which item is chance, and a thread that meets its
  // first large one late must not allocate then.
  void ReserveScratch(int32_t group, std::span<const AttendTask> tasks) {
    int64_t most = 0;
    for (const AttendItem& item : items_) {
      const AttendTask& task = tasks[static_cast<size_t>(item.task)];
      most = std::max(most, ScratchShape(int64_t{item.tokens} * group, IsObserved(task, item), task.lane).floats());
    }
    for (Scratch& scratch : scratch_) scratch.AtLeast(most);
  }

  void AttendOne(const Rope& rope, int32_t group, const AttendTask& task, const AttendItem& item, Scratch& scratch) {
    const bool observed = IsObserved(task, item);
    const int32_t last = item.first + item.tokens;
    const int64_t out_stride = task.out_stride == 0 ? task.stride : task.out_stride;
    cpu::AttendArgs args = {.rope = ToArgs(rope),
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
                            .column_sums = item.column_sums,
                            .head_stride = task.head_stride};
    if (task.last_row != nullptr && last == task.tokens) args.last_row = task.last_row;
    const int32_t window_first = task.tokens - task.window_rows;
    if (task.window != nullptr && last > window_first) {
      const int32_t row = std::max(item.first, window_first);
      args.window = task.window + int64_t{row - window_first} * task.lane.slots;
      args.window_rows = last - row;
    }
    const ScratchShape shape(int64_t{item.tokens} * group, observed, task.lane);
    float* next = scratch.AtLeast(shape.floats());
    args.scratch.keys = std::exchange(next, next + shape.keys);
    args.scratch.peak = std::exchange(next, next + shape.peak);
    args.scratch.weight = std::exchange(next, next + shape.weight);
    args.scratch.q = std::exchange(next, next + shape.q);
    args.scratch.sums = std::exchange(next, next + shape.q);
    args.scratch.p = std::exchange(next, next + shape.p);
    args.scratch.logits = next;
    kernels_.attend(args);
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
  Scratch partial_sums_;
  Scratch rounded_bytes_, rounded_pairs_;
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
