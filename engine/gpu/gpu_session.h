// A session on a device: its pages, its slot maps, and the arithmetic by which the host knows how many tokens live
// without asking. Who sits where, and who leaves, is known on the device alone.

#ifndef EBB_ENGINE_GPU_GPU_SESSION_H_
#define EBB_ENGINE_GPU_GPU_SESSION_H_

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gpu/gpu.h"
#include "engine/ops/gpu/kernels.h"
#include "policies/spec.h"

namespace ebb {

// The pages of the arena that nobody holds; lowest first.
class GpuPages {
 public:
  explicit GpuPages(int32_t pages);
  // UNAVAILABLE NO_PAGES names both numbers.
  absl::StatusOr<std::vector<int32_t>> Take(int64_t pages);
  void GiveBack(std::span<const int32_t> pages);
  int64_t free() const { return static_cast<int64_t>(free_.size()); }

 private:
  std::vector<int32_t> free_;  // min-heap
};

// Lanes of layers that see all, and those of layers with a window, which keep what it shows, however many tokens the
// others do. Kernels take lanes of one kind at a time; on a device each kind's lie together, the former's first.
enum class GpuSight { kAll, kWindow };
inline constexpr GpuSight kGpuSights[] = {GpuSight::kAll, GpuSight::kWindow};
template <typename T>
struct OfSight {
  std::array<T, 2> of = {};
  T& operator[](GpuSight sight) { return of[static_cast<size_t>(sight)]; }
  const T& operator[](GpuSight sight) const { return of[static_cast<size_t>(sight)]; }
  auto operator<=>(const OfSight&) const = default;
};

// Who sits where, as SessionView has it, on the host. Lanes as a device has them.
struct GpuSeats {
  std::vector<int32_t> token = {};     // [lanes][capacity], -1 where free
  std::vector<int32_t> position = {};  // alike
  std::vector<float> score = {};       // [lanes][tracks][capacity]
  std::vector<float> queries = {};     // [lanes][G][d] the newest token's
};

// Where a session is, as arithmetic has it.
struct GpuProgress {
  int32_t tokens = 0;           // of the log
  OfSight<int32_t> live = {};   // in each lane
  OfSight<int32_t> slots = {};  // every live slot is below it
  bool prompt_ended = false;    // the first
  int32_t decode_steps = 0;     // since a block came or the policy was put in force
};

class GpuSession {
 public:
  // Lanes of one kind.
  struct Lanes {
    int32_t count = 0;
    int32_t first = 0;     // on the device
    int32_t of_model = 0;  // one of them, as the model counts lanes
    int32_t slots = 0;     // that each may need

    int32_t pages() const { return (slots + gpu::kPageSlots - 1) / gpu::kPageSlots; }  // of each
  };
  struct Shape {
    int32_t lanes = 0;
    int32_t capacity = 0;  // slots for which maps have room, in every lane
    int32_t block_max = 0;
    int32_t queries = 0;  // floats of one lane's, G * d
    int32_t vocab = 0;
    OfSight<Lanes> kinds = {};
    std::vector<int32_t> order = {};  // [lanes] where a lane of the model lies

    GpuSight SightOf(int32_t lane) const {  // of the device
      return lane < kinds[GpuSight::kAll].count ? GpuSight::kAll : GpuSight::kWindow;
    }
    int32_t pages_per_lane() const { return (capacity + gpu::kPageSlots - 1) / gpu::kPageSlots; }
    int64_t pages() const {
      int64_t pages = 0;
      for (const Lanes& kind : kinds.of) pages += int64_t{kind.count} * kind.pages();
      return pages;
    }
  };

  // Reserves pages and maps, all slots free. `gpu` and `pages` outlive it. As GpuPages::Take, Gpu::Allocate and
  // DeviceRuleOf.
  static absl::StatusOr<std::unique_ptr<GpuSession>> Open(const Gpu& gpu, GpuPages& pages, const ValidSpec& policy,
                                                          const Shape& shape);
  ~GpuSession();
  GpuSession(const GpuSession&) = delete;
  GpuSession& operator=(const GpuSession&) = delete;

  // In the lanes that hold most.
  int32_t live() const { return std::max(at_.live.of[0], at_.live.of[1]); }
  int64_t evicted() const { return at_.tokens - live(); }
  int32_t live(GpuSight sight) const { return at_.live[sight]; }
  int32_t slots(GpuSight sight) const { return at_.slots[sight]; }
  int32_t tracks() const { return tracks_; }  // scores of a slot
  bool is_lost() const { return is_lost_; }
  const Shape& shape() const { return shape_; }

  // OK, or why `count` more cannot be appended in one step: RESOURCE_EXHAUSTED LENGTH_LIMIT, INVALID_ARGUMENT
  // BLOCK_TOO_LARGE, UNAVAILABLE GPU_FAULT after Lose.
  absl::Status CanAppend(int32_t count) const;

  // A step that brings `tokens` tokens; the first prompt may end with it.
  struct Coming {
    int32_t tokens = 0;
    bool prompt_ends = false;
  };
  // What kernels are told of a step and lanes of one kind, whose rows begin at first_row; Finish is what that step
  // leaves.
  gpu::SessionView View(int32_t first_row, const Coming& step, GpuSight sight) const;
  void Finish(const Coming& step);
  // Slots of each lane in a step, below which all tokens sit. Blocks of a prompt take more than what comes after them
  // needs: then FillHoles moves who sits past those, which follows from the session and the lane alone.
  int32_t SlotsIn(const Coming& step, GpuSight sight) const;
  // Tokens that leave each lane when a step is over.
  int32_t Drop(const Coming& step, GpuSight sight) const;

  // The session's pages of the arena, [lanes][pages_per_lane]; -1 past those that a lane has.
  std::span<const int32_t> pages() const { return table_; }

  // Goes on where another was. K and V are the caller's to bring. In the stream's order. REQUIRES: no token came yet.
  absl::Status Seat(const GpuSeats& seats, const GpuProgress& at);
  // Waits for the device.
  absl::StatusOr<GpuSeats> Seats() const;

  // Room for the logits [vocab] of the newest token. KeepLogits, after Finish, says that they are there.
  float* logits_room() const { return logits_.as<float>(); }
  void KeepLogits(bool kept) { keeps_logits_ = kept; }
  bool keeps_logits() const { return keeps_logits_; }
  // A copy of them, empty where they are not kept. Waits for the device.
  absl::StatusOr<std::vector<float>> Logits() const;

  // Of the device, beside the pages of the arena.
  int64_t bytes() const;

  // The device failed in a step: what it holds of the session is not to be believed.
  void Lose() { is_lost_ = true; }

  // As if `tokens` tokens had come, and all had stayed, with whatever the arena holds for K and V: for measuring what a
  // step costs with so many. REQUIRES: no token came yet; tokens <= the slots of a lane of each kind that there is.
  absl::Status Pretend(int32_t tokens);

  // Takes out the tokens at positions first .. end - 1; compacted positions close up. INVALID_ARGUMENT
  // GPU_POLICY_UNSUPPORTED, and nothing happened, where lanes would be left with unequally many. Waits for the device.
  absl::Status Remove(int32_t first, int32_t end);

  // [lanes][capacity] the index of the token in each slot, -1 where free: one copy, however many lanes there are. Waits
  // for the device.
  absl::StatusOr<std::vector<int32_t>> Tokens() const;

 private:
  GpuSession(const Gpu& gpu, GpuPages& pages, const ValidSpec& policy, const Shape& shape)
      : gpu_(gpu), pages_(pages), policy_(policy), shape_(shape) {}

  const Gpu& gpu_;
  GpuPages& pages_;
  ValidSpec policy_;
  Shape shape_;
  gpu::ScoreRule rule_ = gpu::ScoreRule::kAge;
  std::vector<int32_t> held_ = {}, table_ = {};
  GpuMemory token_ = {}, position_ = {}, score_ = {}, keep_ = {}, placed_ = {}, scratch_ = {}, page_ = {},
            queries_ = {}, logits_ = {};
  int32_t tracks_ = 1;
  GpuProgress at_ = {};
  bool keeps_logits_ = false;
  bool is_lost_ = false;
};

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_GPU_SESSION_H_
