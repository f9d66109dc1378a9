#include "bench/shifting_ops.h"

#include <cstring>
#include <utility>

#include "policies/hash_random.h"

namespace ebb::bench {
namespace {

class ShiftingOps final : public Ops {
 public:
  ShiftingOps(std::unique_ptr<Ops> ops, const Leaving& leaving) : ops_(std::move(ops)), leaving_(leaving) {}

  std::string_view fingerprint() const override { return ops_->fingerprint(); }
  Parallel& host_threads() override { return ops_->host_threads(); }
  std::unique_ptr<PackedMatrix> Pack(const TensorView& tensor, std::span<const float> bias) override {
    return ops_->Pack(tensor, bias);
  }
  void Embed(const TensorView& table, std::span<const int32_t> tokens, float scale, Into into,
             std::span<float> x) override {
    ops_->Embed(table, tokens, scale, into, x);
  }
  void Linear(std::span<const PackedMatrix* const> w, std::span<const float> x, int32_t tokens, Into into,
              std::span<float> y) override {
    ops_->Linear(w, x, tokens, into, y);
  }
  void NormLinear(const Norm& norm, std::span<const PackedMatrix* const> w, std::span<const float> x, int32_t tokens,
                  std::span<float> y) override {
    ops_->NormLinear(norm, w, x, tokens, y);
  }
  void FeedForward(const Norm* norm, const FeedForwardPart& part, std::span<const float> x, int32_t tokens, Into into,
                   std::span<float> y) override {
    ops_->FeedForward(norm, part, x, tokens, into, y);
  }
  void Normalise(const Norm& norm, int32_t rows, int32_t each, int64_t stride, float* x) override {
    ops_->Normalise(norm, rows, each, stride, x);
  }
  void Add(std::span<const float> y, std::span<float> x) override { ops_->Add(y, x); }
  void Cap(float cap, std::span<float> x) override { ops_->Cap(cap, x); }
  void Route(std::span<const float> scores, int32_t experts, int32_t used, std::span<int32_t> chosen,
             std::span<float> weights) override {
    ops_->Route(scores, experts, used, chosen, weights);
  }
  void Angles(const Rope& rope, std::span<const int32_t> position, std::span<float> angles) override {
    ops_->Angles(rope, position, angles);
  }
  void Store(const Rope& rope, std::span<const StoreTask> tasks) override { ops_->Store(rope, tasks); }
  void Read(const LaneStorage& lane, Part part, int32_t first, int32_t count, float* out) const override {
    ops_->Read(lane, part, first, count, out);
  }
  void Move(const LaneStorage& lane, std::span<const SlotMove> moves) override { ops_->Move(lane, moves); }
  void Attend(const Rope& rope, int32_t group, std::span<const AttendTask> tasks, TaskDone done) override {
    const uint64_t step = ++steps_;
    ops_->Attend(rope, group, tasks, [&](size_t i, int32_t thread) {
      const LaneStorage& lane = tasks[i].lane;
      if (tasks[i].tokens == 1 && lane.slots >= leaving_.full) {
        HashRandom random(step, i);
        ShiftLane(lane, leaving_.rank ? *leaving_.rank : random.Uniform(0, lane.slots - 1));
      }
      done(i, thread);
    });
  }

 private:
  std::unique_ptr<Ops> ops_;
  Leaving leaving_;
  uint64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Ops> MakeShiftingOps(std::unique_ptr<Ops> ops, const Leaving& leaving) {
  return std::make_unique<ShiftingOps>(std::move(ops), leaving);
}

void ShiftLane(const LaneStorage& lane, int32_t rank) {
  const int64_t row = lane.format.slot_bytes();
  const int32_t rows = lane.format.page_tiles * kTileSlots;  // of a page
  for (int32_t page = rank / rows; page * rows < lane.slots; ++page) {
    std::byte* const at = lane.pages[page];
    const int32_t first = rank > page * rows ? rank - page * rows : 0;
    const int32_t end = lane.slots - page * rows < rows ? lane.slots - page * rows : rows;
    std::memmove(at + first * row, at + (first + 1) * row, static_cast<size_t>((end - first - 1) * row));
    if ((page + 1) * rows < lane.slots) {
      std::memcpy(at + (rows - 1) * row, lane.pages[page + 1], static_cast<size_t>(row));
    }
  }
}

}  // namespace ebb::bench
