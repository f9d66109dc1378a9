#include "server/redis_store.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/log.h"

namespace ebb {
namespace {

constexpr size_t kSlice = size_t{1} << 20;              // bytes of a snapshot between two commits
constexpr size_t kGrowingMax = 4;                       // snapshots in memory, where Redis is slower than sessions grow
constexpr auto kPause = std::chrono::milliseconds(50);  // between two tries: nothing tells that Redis is back

// No two servers have the same, nor does one that is started again.
std::string NewServerName() {
  std::random_device device;
  return absl::StrFormat("%08x%08x", device(), device());
}

std::string_view Word(const RedisReply& reply, size_t index = 0) {
  return index < reply.list.size() ? std::string_view(reply.list[index].text) : std::string_view();
}

}  // namespace

absl::Status SessionMoved(const SessionName& name, const std::string& endpoint) {
  const std::string session = "sessions/" + name.second;
  std::map<std::string, std::string> metadata = {{"session", session}};
  if (!endpoint.empty()) metadata["endpoint"] = endpoint;
  return Refuse(
      absl::StatusCode::kUnavailable,
      absl::StrFormat("%s is served by %s", session, endpoint.empty() ? "no server yet; try again soon" : endpoint),
      {.reason = "SESSION_MOVED", .retry = absl::Milliseconds(200), .metadata = std::move(metadata)});
}

RedisStore::RedisStore(const RedisStoreOptions& options, const std::string& server, const JournalMetrics& metrics)
    : options_(options),
      metrics_(metrics),
      keys_(options.prefix, server),
      connection_(options.redis),
      endpoint_(options.endpoint) {}

absl::StatusOr<std::unique_ptr<RedisStore>> RedisStore::Open(const RedisStoreOptions& options,
                                                             const JournalMetrics& metrics) {
  const std::string server = NewServerName();
  auto store = std::unique_ptr<RedisStore>(new RedisStore(options, server, metrics));
  store->sent_ = store->clock_.Now();
  const auto leased = store->connection_.Run(store->keys_.Lease(options.endpoint, options.lease, false));
  if (!leased.ok()) {
    return Refuse(
        absl::StatusCode::kUnavailable,
        absl::StrFormat("store.redis: at %s: %s", FormatAddress(options.redis.address), leased.status().message()),
        {.reason = "STORE_UNUSABLE", .field = "store.redis"});
  }
  store->lease_until_ = store->sent_ + options.lease;
  store->renew_at_ = store->sent_ + options.lease / 3;
  store->checked_ = store->connection_.made();
  LogInfo("shared_store", {{"redis", FormatAddress(options.redis.address)}, {"server", server}}, "the lease begins");
  return store;
}

RedisStore::~RedisStore() {
  if (!is_away_) connection_.Run(keys_.EndLease()).IgnoreError();
}

absl::StatusOr<std::vector<RedisReply>> RedisStore::Insist(std::span<const RedisCommand> commands) {
  const absl::Time until = clock_.Now() + (is_away_ ? absl::ZeroDuration() : options_.patience);
  for (bool is_first = true;; is_first = false) {
    const absl::Time now = clock_.Now();
    auto replies = connection_.Run(commands);
    if (replies.ok()) {
      sent_ = now;
      is_away_ = false;
      return replies;
    }
    if (is_first && !is_away_) {
      LogWarn("shared_store",
              {{"redis", FormatAddress(options_.redis.address)}, {"error", std::string(replies.status().message())}},
              "writes wait for Redis");
    }
    if (clock_.Now() >= until) {
      is_away_ = true;
      return replies.status();
    }
    std::this_thread::sleep_for(kPause);
  }
}

absl::StatusOr<RedisReply> RedisStore::Insist(const RedisCommand& command) {
  EBB_ASSIGN(std::vector<RedisReply> replies, Insist(std::span(&command, 1)));
  return std::move(replies.front());
}

absl::Status RedisStore::Verdict(const SessionName& name, const RedisReply& reply) const {
  if (Word(reply) == "OK") return absl::OkStatus();
  if (Word(reply) == "FENCED") {
    metrics_.fenced.Add();
    return SessionMoved(name, std::string(Word(reply, 1)));
  }
  return Refuse(absl::StatusCode::kUnavailable,
                absl::StrFormat("Redis came back with less than it had acknowledged: %s",
                                Word(reply) == "MISSING" ? "nothing of it" : std::string(Word(reply, 1))),
                {.reason = "STORE_LOST"});
}

// A command for each of these sessions.
void RedisStore::Ask(std::span<const SessionId> asked, std::span<const RedisCommand> commands,
                     std::vector<Failure>& failures) {
  const auto replies = Insist(commands);
  for (size_t i = 0; i < asked.size(); ++i) {
    absl::Status status = replies.ok() ? Verdict(sessions_.at(asked[i]).name, (*replies)[i]) : replies.status();
    if (status.ok()) continue;
    // What Redis lost is still here, to be read and saved; what another has, or Redis alone, is not.
    const Fate fate = GetRefusal(status).reason == "STORE_LOST" ? Fate::kReadOnly : Fate::kGone;
    unwritten_.erase(asked[i]);
    failures.push_back({.session = asked[i], .fate = fate, .why = std::move(status)});
  }
}

absl::Status RedisStore::Begin(SessionId session, const SessionName& name, std::string_view snapshot) {
  Hold(session, name);
  const auto begin = [&]() -> absl::StatusOr<uint64_t> {
    for (size_t index = 0; index * kSlice < snapshot.size(); ++index) {
      EBB_ASSIGN(const RedisReply staged, Insist(keys_.Stage(snapshot.substr(index * kSlice, kSlice), index)));
      EBB_TRY(Verdict(name, staged));
    }
    EBB_ASSIGN(const RedisReply reply, Insist(keys_.Begin(name, ++begun_)));
    if (Word(reply) == "TAKEN") {
      return Refuse(absl::StatusCode::kAlreadyExists,
                    absl::StrFormat("session_id: the session sessions/%s exists, on another server", name.second),
                    {.reason = "NAME_TAKEN", .field = "session_id"});
    }
    EBB_TRY(Verdict(name, reply));
    uint64_t epoch = 0;
    if (!absl::SimpleAtoi(std::string(Word(reply, 1)), &epoch)) return JournalDamaged("its epoch is no number");
    return epoch;
  };
  const absl::StatusOr<uint64_t> epoch = begin();
  if (!epoch.ok()) {
    Forget(session);
    return epoch.status();
  }
  sessions_[session].place.epoch = *epoch;
  metrics_.snapshot_bytes.Add(static_cast<double>(snapshot.size()));
  return absl::OkStatus();
}

absl::Status RedisStore::Continue(SessionId session, const SessionName& name, const JournalPlace& place) {
  Hold(session, name);
  Writing& writing = sessions_.at(session);
  writing.place = place;
  writing.unwritten_end = place.end;
  // The lease may have been over since the session was taken: then those that were here are checked, and not this one.
  const auto reply = Insist(keys_.Check(name, place));
  const absl::Status status = reply.ok() ? Verdict(name, *reply) : reply.status();
  if (!status.ok()) Forget(session);
  return status;
}

void RedisStore::Append(SessionId session, std::string_view record, bool /*is_input*/) {
  Writing& writing = sessions_.at(session);
  if (writing.unwritten_end.bytes == 0) BeginJournal(writing.unwritten_end, writing.unwritten);
  AddJournalRecord(record, writing.unwritten_end, writing.unwritten);
  unwritten_.insert(session);
}

std::vector<SessionStore::Failure> RedisStore::Write() {
  std::vector<Failure> failures;
  if (unwritten_.empty()) return failures;
  const std::vector<SessionId> written(unwritten_.begin(), unwritten_.end());
  std::vector<RedisCommand> commands;
  for (const SessionId session : written) {
    const Writing& writing = sessions_.at(session);
    commands.push_back(keys_.Append(writing.name, writing.place, writing.unwritten));
  }
  Ask(written, commands, failures);
  for (const SessionId session : unwritten_) {
    Writing& writing = sessions_.at(session);
    metrics_.record_bytes.Add(static_cast<double>(writing.unwritten.size()));
    writing.place.end = writing.unwritten_end;
    writing.unwritten.clear();
  }
  unwritten_.clear();
  return failures;
}

std::vector<SessionStore::Failure> RedisStore::Renew(SessionId session, MakeSnapshot& snapshot) {
  if (growing_.size() >= kGrowingMax) return {};  // another time
  std::vector<Failure> failures = Write();
  if (std::ranges::find(failures, session, &Failure::session) != failures.end()) return failures;
  Writing& writing = sessions_.at(session);
  const size_t before = failures.size();
  const RedisCommand renew = keys_.Renew(writing.name, writing.place);
  Ask({&session, 1}, {&renew, 1}, failures);
  if (failures.size() > before) return failures;
  ++writing.place.last;
  writing.place.end = writing.unwritten_end = {};
  try {
    growing_.push_back({.session = session, .number = writing.place.last, .bytes = snapshot()});
  } catch (const std::bad_alloc&) {
    return failures;  // another time
  }
  return failures;
}

absl::Status RedisStore::Remove(SessionId session) {
  const Writing& writing = sessions_.at(session);
  const auto reply = Insist(keys_.Remove(writing.name, writing.place.epoch));
  const bool is_missing = reply.ok() && Word(*reply) == "MISSING";
  const absl::Status status = !reply.ok()  ? reply.status()
                              : is_missing ? absl::OkStatus()
                                           : Verdict(writing.name, *reply);
  Forget(session);
  return status;
}

void RedisStore::Forget(SessionId session) {
  const auto found = sessions_.find(session);
  {
    const std::lock_guard lock(mutex_);
    held_.erase(found->second.name);
  }
  unwritten_.erase(session);
  sessions_.erase(found);
}

void RedisStore::WriteSlice() {
  Growing& growing = growing_.front();
  absl::StatusOr<bool> more = absl::CancelledError("the session is gone");
  if (sessions_.contains(growing.session)) more = AddSlice(growing);
  if (more.ok() && *more) return;
  if (!more.ok()) {
    LogInfo("journal", {{"reason", std::string(more.status().message())}},
            "a snapshot that was to take a journal's place is given up");
  }
  growing_.pop_front();
}

// The next slice, or behind the last of them the end: what is older goes. False when that is done.
absl::StatusOr<bool> RedisStore::AddSlice(Growing& growing) {
  Writing& writing = sessions_.at(growing.session);
  const size_t at = growing.slices * kSlice;
  const uint64_t epoch = writing.place.epoch;
  const bool is_whole = at >= growing.bytes.size();
  EBB_ASSIGN(const RedisReply reply,
             Insist(is_whole ? keys_.Settle(writing.name, epoch, growing.number, growing.slices)
                             : keys_.AddSlice(writing.name, epoch, growing.number, growing.slices,
                                              std::string_view(growing.bytes).substr(at, kSlice))));
  if (Word(reply) != "OK") return absl::AbortedError(std::string(Word(reply)));  // the next write says why
  ++growing.slices;
  if (!is_whole) return true;
  writing.place.first = growing.number;
  metrics_.snapshot_bytes.Add(static_cast<double>(growing.bytes.size()));
  return false;
}

std::vector<SessionStore::Failure> RedisStore::Tend() {
  if (clock_.Now() < renew_at_ && connection_.made() == checked_) return {};
  const auto renewed = Insist(keys_.Lease(endpoint(), options_.lease, true));
  if (!renewed.ok()) {
    metrics_.lease_failed.Add();
    renew_at_ = clock_.Now() + options_.lease / 3;
    if (clock_.Now() < lease_until_) return {};
    std::vector<Failure> failures;
    for (const auto& [session, _] : sessions_) {
      failures.push_back({.session = session, .fate = Fate::kGone, .why = renewed.status()});
    }
    return failures;
  }
  lease_until_ = sent_ + options_.lease;
  renew_at_ = sent_ + options_.lease / 3;
  (renewed->is_nil ? metrics_.lease_late : metrics_.lease_renewed).Add();
  const bool in_time = !renewed->is_nil;
  if (in_time && connection_.made() == checked_) return {};
  // Others may have taken sessions meanwhile, or Redis may have forgotten some of what it was told.
  if (!in_time) {
    LogWarn("shared_store", {}, "the lease was over; sessions may be another server's");
    const auto leased = Insist(keys_.Lease(endpoint(), options_.lease, false));
    if (leased.ok()) lease_until_ = sent_ + options_.lease;
  }
  return CheckAll();
}

std::vector<SessionStore::Failure> RedisStore::CheckAll() {
  checked_ = connection_.made();
  std::vector<Failure> failures;
  std::vector<SessionId> asked;
  std::vector<RedisCommand> commands;
  for (const auto& [session, writing] : sessions_) {
    asked.push_back(session);
    commands.push_back(keys_.Check(writing.name, writing.place));
  }
  if (!asked.empty()) Ask(asked, commands, failures);
  return failures;
}

void RedisStore::Hold(SessionId session, const SessionName& name) {
  sessions_[session].name = name;
  const std::lock_guard lock(mutex_);
  held_.insert(name);
}

bool RedisStore::Holds(const SessionName& name) const {
  const std::lock_guard lock(mutex_);
  return held_.contains(name);
}

void RedisStore::SetEndpoint(const std::string& endpoint) {
  const std::lock_guard lock(mutex_);
  endpoint_ = endpoint;
}

std::string RedisStore::endpoint() const {
  const std::lock_guard lock(mutex_);
  return endpoint_;
}

}  // namespace ebb
