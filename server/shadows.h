// Unevicted twins of a sampled share of sessions, on spare capacity: how far does what a policy evicted move the
// answer?
//
// A shadow is an engine session of the scorer that never evicts, fed the tokens of its session. Where both have just
// run the same token, their next-token distributions are compared over the whole vocabulary.
//
// Promises
//   pages   a shadow begins only in pages that are free, and the scheduler never hears of them: a session is admitted,
//           or grows, as if there were no shadows, and MakeRoom drops shadows until its pages are free
//   rows    shadows ride in steps that real rows make, behind these, in rows and tokens that the step has left; with
//           them a step has at most twice the tokens that it would have, and kCatchUp: it delays its real rows by no
//           more. What found no room is made up for in later steps, in blocks, and compared from the newest token on
//   load    while a request waits for its first step they stay out of steps altogether (StayOut)
//   tokens  a session yields the same tokens with a shadow and without (engine.h: rows do not disturb each other)
//
// The worker's thread alone.

#ifndef EBB_SERVER_SHADOWS_H_
#define EBB_SERVER_SHADOWS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "server/metrics.h"
#include "server/sessions.h"

namespace ebb {

struct ShadowOptions {
  double share = 0;           // of sessions, 0 .. 1
  int32_t tokens_max = 4096;  // a shadow's length limit, >= 1: it reserves as many slots per lane when it begins

  bool operator==(const ShadowOptions&) const = default;
};

// Whether a session of this id is among the sampled: a hash of the id, so the same on every server. `share` 0: none; 1:
// all.
bool IsSampled(std::string_view session, double share);

class Shadows {
 public:
  static constexpr int32_t kCatchUp = 16;  // tokens

  // `engine` and `metrics` outlive this.
  Shadows(Engine& engine, const ShadowOptions& options, Metrics& metrics)
      : engine_(engine), options_(options), metrics_(metrics.worker()) {}

  // `batch` holds the rows of a step, one for each of `sessions`: appends rows of shadows that have room, at most to
  // `rows_max` in all. A sampled session's shadow begins with the first that finds room.
  void Ride(std::span<OpenSession* const> sessions, int32_t rows_max, std::vector<BatchRow>& batch);
  // In the place of Ride: this step is without shadows, since requests wait for theirs. Counted.
  void StayOut();
  // The step has run: compares, and counts under each session's policy. REQUIRES: `batch` as Ride or StayOut left it.
  void Compare(std::span<const BatchRow> batch);

  // Pages of all shadows: what dropping them would free.
  int64_t pages() const { return pages_; }
  // Drops shadows, the youngest first, until `pages` are free or there is no shadow left.
  void MakeRoom(int64_t pages);
  // Drops the youngest. False when there is none.
  bool DropYoungest();
  // The session is gone, and its shadow with it.
  void End(SessionId session);
  // From now on: shadows of sessions that are no longer sampled end, and those that run keep the length they have
  // reserved. REQUIRES: no step is under way.
  void SetOptions(const ShadowOptions& options);
  // The device failed: shadows that it took with it end, and others may begin.
  void EndLost();

 private:
  struct Shadow {
    double draw = 0;                      // its session's, which is below the share
    std::unique_ptr<Session> cache = {};  // null: dropped, or never begun, and not tried again
    std::vector<int32_t> tokens = {};     // of its row in this step
  };
  // A row of this step.
  struct Rider {
    const OpenSession* session = nullptr;
    size_t real = 0;        // index of its session's row
    bool compared = false;  // both end with the same token
  };

  // The session's shadow, begun if this is the first that is heard of it; null where there is none.
  Shadow* Find(const OpenSession& session);
  absl::StatusOr<std::unique_ptr<Session>> Open(const OpenSession& session);
  void Drop(Shadow& shadow);
  void Count(int64_t more_pages);

  Engine& engine_;
  ShadowOptions options_;
  const WorkerMetrics& metrics_;
  std::map<SessionId, Shadow> shadows_;  // of sampled sessions, which are numbered by age
  int32_t running_ = 0;
  int64_t pages_ = 0;
  std::vector<Rider> riders_;  // of the rows that Ride appended
};

}  // namespace ebb

#endif  // EBB_SERVER_SHADOWS_H_
