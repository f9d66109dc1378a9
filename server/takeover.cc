#include "server/takeover.h"

#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "policies/status.h"
#include "server/log.h"

namespace ebb {
namespace {

constexpr absl::Duration kShunned = absl::Seconds(30);  // what could not be opened here, before it is tried again

std::string Word(const RedisReply& reply, size_t index = 0) {
  return index < reply.list.size() ? reply.list[index].text : std::string();
}

// Of OK, epoch, first and last.
absl::StatusOr<JournalPlace> PlaceFrom(const RedisReply& reply) {
  JournalPlace place;
  if (!absl::SimpleAtoi(Word(reply, 1), &place.epoch) || !absl::SimpleAtoi(Word(reply, 2), &place.first) ||
      !absl::SimpleAtoi(Word(reply, 3), &place.last) || place.first == 0) {
    return JournalDamaged("its numbers are none");
  }
  return place;
}

}  // namespace

Takeover::Takeover(RedisStore& store, Worker& worker, const JournalMetrics& metrics)
    : store_(store),
      worker_(worker),
      metrics_(metrics),
      connection_(store.options().redis),
      seeking_(store.options().redis) {}

Takeover::~Takeover() { Stop(); }

void Takeover::Start(const std::string& endpoint) {
  store_.SetEndpoint(endpoint);
  connection_.Run(store_.keys().Lease(endpoint, store_.options().lease, true)).IgnoreError();
  thread_ = std::thread([this] { Loop(); });
}

void Takeover::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Takeover::Loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, absl::ToChronoNanoseconds(store_.options().lease / 3),
                        [this] { return stopped_ || wanted_; });
      if (stopped_) return;
      wanted_ = false;
    }
    Round();
  }
}

KeptSessions Takeover::Round() {
  KeptSessions sum;
  const auto free = connection_.Run(store_.keys().Free());
  if (!free.ok()) {  // the journal's thread says so
    quiet_until_ = worker_.Now() + store_.options().lease;
    return sum;
  }
  if (worker_.Now() < quiet_until_) return sum;  // others have the time to renew theirs
  std::erase_if(not_before_, [now = worker_.Now()](const auto& shunned) { return shunned.second <= now; });
  for (const RedisReply& member : free->list) {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return sum;
    }
    const std::optional<SessionName> name = NameFromRedis(member.text);
    if (!name || store_.Holds(*name)) continue;
    if (not_before_.contains(*name)) continue;
    const absl::Status taken = Take(*name);
    ++(taken.ok() ? sum.kept : sum.failed);
  }
  return sum;
}

absl::Status Takeover::Take(const SessionName& name) {
  const absl::Time start = worker_.Now();
  EBB_ASSIGN(const RedisReply reply, connection_.Run(store_.keys().Take(name)));
  if (Word(reply) != "OK") return absl::AbortedError(Word(reply));  // another was faster
  const auto place = PlaceFrom(reply);
  absl::Status status = place.status();
  if (place.ok()) {
    try {
      status = BringBackDespiteGpuFault([&] {
        auto pieces = ReadPieces(connection_, store_.keys(), name, *place);
        return pieces.ok() ? GoOn(worker_, name, *std::move(pieces)) : pieces.status();
      });
    } catch (const std::bad_alloc&) {
      status = Refuse(absl::StatusCode::kUnavailable, "no memory for it", {.reason = "NO_MEMORY"});
    }
  }
  if (status.ok()) {
    not_before_.erase(name);
    metrics_.taken.Add();
    metrics_.recovery_seconds.Observe(worker_.Now() - start);
    LogInfo("taken", {{"tenant", name.first}, {"session", HashForLog(name.second)}, {"ms", worker_.Now() - start}},
            "the session goes on here");
    return status;
  }
  LogError("not_taken",
           {{"tenant", name.first},
            {"session", HashForLog(name.second)},
            {"reason", GetRefusal(status).reason},
            {"error", ErrorForLog(status, name.second)}},
           absl::IsDataLoss(status) ? "no server takes it any more" : "it is left to others");
  // One that was given up here a moment ago may still be there until the worker has heard.
  if (!absl::IsAlreadyExists(status)) {
    metrics_.not_taken.Add();
    not_before_[name] = worker_.Now() + kShunned;
  }
  const std::string damaged = absl::IsDataLoss(status) ? std::string(status.message()) : "";
  if (absl::IsDataLoss(status)) metrics_.set_aside.Add();
  if (place.ok()) connection_.Run(store_.keys().Release(name, place->epoch, damaged)).IgnoreError();
  return status;
}

absl::Status Takeover::Seek(const SessionName& name, const absl::Status& unknown) {
  absl::StatusOr<RedisReply> where;
  {
    const std::lock_guard lock(seek_mutex_);
    where = seeking_.RunFailFast(store_.keys().Where(name));
  }
  if (!where.ok()) return where.status();
  if (Word(*where) == "OWNED") return SessionMoved(name, Word(*where, 1));
  if (Word(*where) == "DAMAGED") return JournalDamaged(Word(*where, 1));
  if (Word(*where) != "FREE") return unknown;
  if (store_.Holds(name)) {  // it came after it was looked for, or is being deleted
    return worker_.Look(name.first, name.second).ok() ? SessionMoved(name, "") : unknown;
  }
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return SessionMoved(name, "");
    wanted_ = true;
  }
  changed_.notify_all();
  return SessionMoved(name, "");
}

}  // namespace ebb
