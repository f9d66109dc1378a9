// Drafts of a second, smaller model, for sessions of the one that is served.
//
// A session that is drafted for has a cache in the draft model's engine, which follows its log. Before each draft the
// cache's log is compared with the session's behind the last token at which they agreed, forgets what differs (a draft
// that was rejected) and reads what is new; only an edit, which changes what they agreed on, has to be told of (End).
// It begins with the newest tokens that its budget holds, and evicts by the policy `streaming`: however long the
// session gets, the cache keeps its size.
//
// Promises
//   pages   caches live in the draft model's arena alone. One that no draft has used for kIdleRounds gives its pages to
//           another session's; where none is idle the session is not drafted for
//   load    of sessions that have to catch up, at most kCatchUp tokens are read in a step; none is drafted for before
//   it
//           has caught up
//   tokens  a draft decides which tokens are tried, never which are drawn (engine/speculation.h)
//
// The worker's thread alone.

#ifndef EBB_SERVER_MODEL_DRAFTER_H_
#define EBB_SERVER_MODEL_DRAFTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "policies/spec.h"
#include "server/metrics.h"
#include "server/scheduler.h"

namespace ebb {

class ModelDrafter {
 public:
  static constexpr int32_t kCatchUp = 256;    // tokens
  static constexpr int64_t kIdleRounds = 32;  // of Draft

  // A draft that is wanted.
  struct Wish {
    SessionId session = 0;
    std::span<const int32_t> log = {};  // not empty
    int32_t token = 0;                  // that follows it, and is run in the same step
    int32_t most = 0;                   // tokens, >= 1
    std::vector<int32_t> draft = {};    // written by Draft: the likeliest tokens behind `token`; empty: none
  };
  struct Round {
    int32_t drafted = 0;  // tokens
    int32_t read = 0;     // tokens of sessions, before the first of them
  };

  // `engine` may be null: then nothing is drafted. Both outlive this.
  ModelDrafter(Engine* engine, const ValidSpec& policy, const DraftCacheMetrics& metrics);

  // Drafts for all at once; each session is named once.
  Round Draft(std::span<Wish> wishes);
  // The session is gone, or its log is another.
  void End(SessionId session);

 private:
  struct Follower {
    std::unique_ptr<Session> cache = {};
    int64_t begin = 0;                 // index in the session's log of the first token of its own
    size_t agreed = 0;                 // tokens of its own log that were found in the session's
    int64_t used = 0;                  // the last round
    std::vector<int32_t> tokens = {};  // of its row in this step
  };

  // The session's, whose log then is part of the session's; null where there is no room for one.
  Follower* Follow(const Wish& wish);
  bool IsFollowing(Follower& follower, const Wish& wish);
  std::unique_ptr<Session> Open();
  bool DropIdle();
  void Count();

  Engine* const engine_;
  const ValidSpec policy_;
  const int32_t block_;  // most tokens of a row
  const DraftCacheMetrics& metrics_;
  std::map<SessionId, Follower> followers_;
  int64_t round_ = 0;
  std::vector<BatchRow> rows_;
  std::vector<Wish*> rows_wishes_;  // whose rows these are
};

}  // namespace ebb

#endif  // EBB_SERVER_MODEL_DRAFTER_H_
