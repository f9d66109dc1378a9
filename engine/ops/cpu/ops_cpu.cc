#include "engine/ops/cpu/ops_cpu.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/quantization.h"
#include "engine/ops/cpu/attend_op.h"
#include "engine/ops/cpu/dispatch.h"
#include "engine/ops/cpu/kernel_args.h"
#include "engine/ops/cpu/packed_matrix.h"
#include "engine/ops/cpu/route.h"
#include "engine/ops/cpu/work.h"
#include "engine/parallel.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace cpu {
namespace {

// Rows of x that one call of a linear kernel takes: their activations stay in L2 beside a piece of weights, and they
// are enough for weights to be asked for no faster than memory gives them.
constexpr int64_t kBlockBytes = int64_t{192} << 10;
constexpr int64_t kBlockRowsLeast = 48;
constexpr int64_t kBlockRowsMost = 192;

class CpuOps final : public Ops {
 public:
  CpuOps(const Kernels& kernels, const CpuOptions& options)
      : kernels_(kernels),
        accuracy_(options.accuracy),
        packs_(options.packs),
        fingerprint_(absl::StrFormat("%s %s", kernels.name, accuracy_ == Accuracy::kFast ? "fast" : "exact")),
        parallel_(options.threads),
        scratch_(static_cast<size_t>(options.threads)),
        attend_(kernels, parallel_) {}

  std::string_view fingerprint() const override { return fingerprint_; }

  Parallel& host_threads() override { return parallel_; }

  std::unique_ptr<PackedMatrix> Pack(const TensorView& tensor, std::span<const float> bias) override {
    return std::make_unique<PackedPanels>(tensor, bias, parallel_, packs_);
  }

  void Embed(const TensorView& table, std::span<const int32_t> tokens, float scale, Into into,
             std::span<float> x) override {
    EBB_CHECK(x.size() == tokens.size() * static_cast<size_t>(table.cols));
    for (size_t t = 0; t < tokens.size(); ++t) {
      EBB_CHECK(tokens[t] >= 0 && tokens[t] < table.rows);
      float* const to = x.data() + static_cast<int64_t>(t) * table.cols;
      float* const row = into == Into::kAdd ? scratch_[0].AtLeast(table.cols) : to;
      DequantizeRow(table.type, table.data.data() + tokens[t] * RowBytes(table.type, table.cols), table.cols, row);
      for (int64_t i = 0; i < table.cols; ++i) to[i] = into == Into::kAdd ? to[i] + scale * row[i] : scale * row[i];
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

  void FeedForward(const Norm* norm, const FeedForwardPart& part, std::span<const float> x, int32_t tokens, Into into,
                   std::span<float> y) override {
    const PackedMatrix* const widen[] = {part.up, part.gate};
    const Input hidden =
        Widen(part, Prepare(std::span(widen).first(part.gate == nullptr ? 1 : 2), x, tokens, norm), tokens);
    Multiply({&part.down, 1}, hidden, tokens, into, y);
  }

  void Normalise(const Norm& norm, int32_t rows, int32_t each, int64_t stride, float* x) override {
    const auto size = static_cast<int64_t>(norm.weight.size());
    Split(rows, 4 * each * size, [&](int64_t row, int32_t /*thread*/) {
      for (int32_t i = 0; i < each; ++i) {
        float* const at = x + row * stride + i * size;
        NormRow(norm, at, at);
      }
    });
  }

  void Add(std::span<const float> y, std::span<float> x) override {
    EBB_CHECK(x.size() == y.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  void Cap(float cap, std::span<float> x) override {
    constexpr int64_t kPiece = 4096;
    const auto size = static_cast<int64_t>(x.size());
    Split((size + kPiece - 1) / kPiece, 16 * kPiece, [&](int64_t piece, int32_t /*thread*/) {
      kernels_.soft_cap(cap, std::min(kPiece, size - piece * kPiece), x.data() + piece * kPiece);
    });
  }

  void Route(std::span<const float> scores, int32_t experts, int32_t used, std::span<int32_t> chosen,
             std::span<float> weights) override {
    const auto rows = static_cast<int64_t>(scores.size()) / experts;
    EBB_CHECK(static_cast<int64_t>(chosen.size()) == rows * used);
    EBB_CHECK(chosen.size() == weights.size());
    for (int64_t row = 0; row < rows; ++row) {
      float* const weight = weights.data() + row * used;
      ChooseLargest(scores.subspan(row * experts, experts), chosen.subspan(row * used, used), weight);
      kernels_.softmax(weight[0], used, weight);
    }
  }

  void Angles(const Rope& rope, std::span<const int32_t> position, std::span<float> angles) override {
    const auto tiles = static_cast<int64_t>(position.size()) / kTileSlots;
    const int64_t floats = int64_t{rope.rotary_dims} * kTileSlots;
    EBB_CHECK(position.size() % kTileSlots == 0);
    EBB_CHECK(static_cast<int64_t>(angles.size()) == tiles * floats);
    Split(tiles, floats * 16, [&](int64_t tile, int32_t /*thread*/) {
      kernels_.angles(FirstSet(rope), position.data() + tile * kTileSlots, angles.data() + tile * floats);
    });
  }

  void Store(const Rope& rope, std::span<const StoreTask> tasks) override { attend_.Store(rope, tasks); }

  void Read(const LaneStorage& lane, Part part, int32_t first, int32_t count, float* out) const override {
    kernels_.read({.kv = ToArgs(lane), .values = part == Part::kValues, .first = first, .count = count, .out = out});
  }

  void Move(const LaneStorage& lane, std::span<const SlotMove> moves) override { MoveSlots(lane, moves); }

  using Ops::Attend;
  void Attend(const Rope& rope, int32_t group, std::span<const AttendTask> tasks, TaskDone done) override {
    attend_.Attend(rope, group, tasks, done);
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

  void NormRow(const Norm& norm, const float* x, float* y) const {
    const auto size = static_cast<int64_t>(norm.weight.size());
    if (norm.kind == NormKind::kRms) return kernels_.rms_norm(x, norm.weight.data(), norm.eps, size, y);
    kernels_.layer_norm(x, norm.weight.data(), norm.bias.data(), norm.eps, size, y);
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
        NormRow(*norm, row, normed);
        row = normed;
      }
      Round(row, 0, k, RowsFrom(input.rounded, t, k));
    });
    return input;
  }

  // Rows of x [rows, k] that go together: all, or nearly equal blocks of whole tiles.
  int64_t RowsOfBlock(const Input& input, int64_t k, int64_t rows) const {
    const int64_t tile = kernels_.tile_rows;
    const RoundedRows& rounded = input.rounded;
    const int64_t row_bytes =
        input.rounds() ? k * ((rounded.pairs != nullptr ? 2 : 0) + (rounded.bytes != nullptr ? 1 : 0)) : 4 * k;
    const int64_t most = std::clamp(kBlockBytes / row_bytes, kBlockRowsLeast, kBlockRowsMost);
    const int64_t blocks = std::max<int64_t>(1, (rows + most - 1) / most);
    return std::clamp<int64_t>(((rows + blocks - 1) / blocks + tile - 1) / tile * tile, 1, std::max<int64_t>(rows, 1));
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
    w.AddBias(group, rows, y, y_stride);
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
    const int64_t block = RowsOfBlock(input, w.front()->cols(), tokens);
    const int64_t blocks = (tokens + block - 1) / block;
    const int64_t cost = block * w.front()->cols() * kGroupRows;
    Split(blocks * groups, cost, [&](int64_t item, int32_t /*thread*/) {
      const int64_t first = item / groups * block;
      int64_t group = item % groups;
      int64_t output = 0;
      const PackedPanels* packed = static_cast<const PackedPanels*>(w[0]);
      for (size_t i = 1; group >= packed->groups(); ++i) {
        group -= packed->groups();
        output += packed->rows();
        packed = static_cast<const PackedPanels*>(w[i]);
      }
      MultiplyGroup(*packed, group, input, first, std::min(block, tokens - first), into == Into::kAdd,
                    y.data() + first * outputs + output + group * kGroupRows, outputs);
    });
  }

  // act(gate h) * (up h), or act(up h), as `down` reads it. An item makes a block of columns of both, some rows at a
  // time, and what it made is still in L2 when it is gated and rounded.
  Input Widen(const FeedForwardPart& part, const Input& h, int64_t tokens) {
    const auto& up = static_cast<const PackedPanels&>(*part.up);
    const auto* const gate = static_cast<const PackedPanels*>(part.gate);
    const int64_t ffn = part.down->cols();
    EBB_CHECK(gate == nullptr || gate->rows() == ffn);
    EBB_CHECK(up.rows() == ffn);
    const Input hidden = Reserve(hidden_, {&part.down, 1}, tokens, ffn, nullptr);
    const int64_t block = RowsOfBlock(h, up.cols(), tokens);
    const int64_t row_blocks = (tokens + block - 1) / block;
    const int64_t columns = (ffn + kRoundedBlock - 1) / kRoundedBlock;
    ReserveScratch(std::min(tokens, kBlockRowsMost) * 2 * kRoundedBlock);  // as much as fewer rows may need, too
    Split(row_blocks * columns, block * up.cols() * (gate == nullptr ? 1 : 2) * kRoundedBlock,
          [&](int64_t item, int32_t thread) {
            const int64_t first = item / columns * block;
            const int64_t column = item % columns * kRoundedBlock;
            const int64_t rows = std::min(block, tokens - first);
            const int64_t count = std::min<int64_t>(kRoundedBlock, ffn - column);
            float* const made =
                scratch_[static_cast<size_t>(thread)].AtLeast(rows * 2 * kRoundedBlock);  // [rows][up | gate]
            for (const PackedPanels* const w : {&up, gate}) {
              if (w == nullptr) continue;
              float* const to = made + (w == gate ? kRoundedBlock : 0);
              for (int64_t c = 0; c < count; c += kGroupRows) {
                MultiplyGroup(*w, (column + c) / kGroupRows, h, first, rows, false, to + c, 2 * kRoundedBlock);
              }
            }
            for (int64_t t = 0; t < rows; ++t) {
              float* const row = made + t * 2 * kRoundedBlock;
              float* const to = hidden.made != nullptr ? hidden.made + (first + t) * ffn + column : row;
              kernels_.activate(CurveOf(part.activation), gate == nullptr ? row : row + kRoundedBlock,
                                gate == nullptr ? nullptr : row, count, to);
              Round(to, column, count, RowsFrom(hidden.rounded, first + t, ffn));
            }
          });
    return hidden;
  }

  template <typename Work>
  void Split(int64_t items, int64_t cost, const Work& work) {
    cpu::Split(parallel_, items, cost, work);
  }

  // On every thread: which one takes the largest item is chance, and none allocates while it works.
  void ReserveScratch(int64_t floats) {
    for (Scratch& scratch : scratch_) scratch.AtLeast(floats);
  }

  const Kernels& kernels_;
  Accuracy accuracy_;
  PackFile* packs_;
  std::string fingerprint_;
  Parallel parallel_;
  std::vector<Scratch> scratch_;  // by thread
  AttendOp attend_;
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
  return std::make_unique<cpu::CpuOps>(*kernels, options);
}

}  // namespace ebb
