#include "engine/snapshot/session_work.h"

#include <algorithm>
#include <utility>

#include "engine/cache/lane_tiles.h"
#include "policies/check.h"

namespace ebb {
namespace {

class Saving final : public SaveWork {
 public:
  Saving(const SessionOnEngine& session, const ImageLimits& limits) : session_(session) {
    WriteAllButLanes(session, limits, writer_);
  }

  absl::StatusOr<bool> Advance(int32_t lanes) override {
    const int32_t all = session_.cache().shape().lanes();
    for (const int32_t end = std::min(all - done_, lanes) + done_; done_ < end; ++done_) {
      WriteLane(session_, done_, writer_);
    }
    return done_ < all;
  }
  SnapshotWriter Take() override {
    EBB_CHECK(done_ == session_.cache().shape().lanes());
    return std::move(writer_);
  }

 private:
  const SessionOnEngine& session_;
  SnapshotWriter writer_ = {};
  int32_t done_ = 0;  // lanes
};

class Reopening final : public ReopenWork {
 public:
  Reopening(SessionImage& image, PageLease lease, Parallel& threads)
      : image_(image), cache_(image.shape, std::move(lease), std::move(image.maps)), threads_(threads) {}

  absl::StatusOr<bool> Advance(int32_t lanes) override {
    const int32_t all = image_.shape.lanes();
    const int32_t heads = image_.shape.kv_heads;
    const int32_t count = std::min(all - done_, lanes);
    threads_.For(count, [&](int64_t i, int32_t) {
      const auto lane = done_ + static_cast<int32_t>(i);
      WriteTiles(cache_.storage(lane / heads, lane % heads), image_.tiles[lane]);
    });
    done_ += count;
    return done_ < all;
  }
  std::unique_ptr<Session> Take() override {
    EBB_CHECK(done_ == image_.shape.lanes());
    return std::make_unique<SessionOnEngine>(image_.policy, std::move(cache_), image_.block_size_max,
                                             image_.length_limit, std::move(image_.state));
  }

 private:
  SessionImage& image_;
  SessionCache cache_;
  Parallel& threads_;
  int32_t done_ = 0;  // lanes
};

}  // namespace

std::unique_ptr<SaveWork> BeginSaveOf(const SessionOnEngine& session, const ImageLimits& limits) {
  return std::make_unique<Saving>(session, limits);
}

std::unique_ptr<ReopenWork> BeginReopenOf(SessionImage& image, PageLease lease, Parallel& threads) {
  return std::make_unique<Reopening>(image, std::move(lease), threads);
}

}  // namespace ebb
