// A rate with a reserve: holds at most a minute's tokens, and so much flows in within a minute.
//
// What is taken may be more than it holds: it then owes, and lets nobody take until that has flowed in. So whoever does
// not know beforehand how much it will take is let in as long as there is one token, and over any time t takes at most
// what flows in within t, and a minute's, and what was last taken at once.
//
// Pure: time is an argument. No tokens are lost to rounding: what counts is the moment at which it would be full.

#ifndef EBB_SERVER_TOKEN_BUCKET_H_
#define EBB_SERVER_TOKEN_BUCKET_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace ebb {

class TokenBucket {
 public:
  // 0: without a limit. Full at first; of another rate, what has been taken of it stays taken.
  void SetRate(int64_t per_minute, absl::Time now) {
    const int64_t taken = Taken(now);
    per_minute_ = per_minute;
    full_at_ = per_minute == 0 ? absl::InfinitePast() : now + TimeFor(taken);
  }

  // A negative number gives back.
  void Take(int64_t tokens, absl::Time now) {
    if (per_minute_ > 0) full_at_ = std::max(full_at_, now) + TimeFor(tokens);
  }

  // Tokens that would have to flow in until it is full, rounded up; more than a minute's where it owes.
  int64_t Taken(absl::Time now) const {
    if (per_minute_ == 0 || full_at_ <= now) return 0;
    absl::Duration rest;
    const int64_t minutes = absl::IDivDuration(full_at_ - now, absl::Minutes(1), &rest);
    const absl::Duration scaled = rest * per_minute_;
    const int64_t whole = absl::IDivDuration(scaled, absl::Minutes(1), &rest);
    return minutes * per_minute_ + whole + (rest > absl::ZeroDuration() ? 1 : 0);
  }

  // Until there is a token to take: 0 where there is one now.
  absl::Duration Wait(absl::Time now) const {
    if (per_minute_ == 0) return absl::ZeroDuration();
    return std::max(full_at_ + TimeFor(1) - absl::Minutes(1) - now, absl::ZeroDuration());
  }

  int64_t per_minute() const { return per_minute_; }

 private:
  absl::Duration TimeFor(int64_t tokens) const { return absl::Minutes(1) * tokens / per_minute_; }

  int64_t per_minute_ = 0;
  absl::Time full_at_ = absl::InfinitePast();
};

}  // namespace ebb

#endif  // EBB_SERVER_TOKEN_BUCKET_H_
