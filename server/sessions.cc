#include "server/sessions.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

absl::Status NameTaken(const std::string& id) {
  return Refuse(absl::StatusCode::kAlreadyExists, absl::StrFormat("session_id: the session sessions/%s exists", id),
                {.reason = "NAME_TAKEN", .field = "session_id"});
}

absl::Status UnknownSession(const std::string& id) {
  return Refuse(absl::StatusCode::kNotFound, absl::StrFormat("there is no session sessions/%s", id),
                {.reason = "UNKNOWN_SESSION", .metadata = {{"session", "sessions/" + id}}});
}

constexpr absl::Duration kRecovers = absl::Milliseconds(500);

absl::Status SessionRecovering(const std::string& id) {
  return Refuse(
      absl::StatusCode::kUnavailable,
      absl::StrFormat("session sessions/%s was lost with the GPU, and is on its way back; try again soon", id),
      {.reason = "SESSION_RECOVERING", .retry = kRecovers, .metadata = {{"session", "sessions/" + id}}});
}

}  // namespace

absl::Status CheckGeneration(const OpenSession& session, std::optional<uint64_t> expected) {
  if (!expected || *expected == session.generation) return absl::OkStatus();
  return Refuse(
      absl::StatusCode::kAborted,
      absl::StrFormat("expected_generation: %d is not the session's generation %d", *expected, session.generation),
      {.reason = "GENERATION_MISMATCH",
       .metadata = {{"expected_generation", absl::StrFormat("%d", *expected)},
                    {"generation", absl::StrFormat("%d", session.generation)}}});
}

namespace {

absl::Status Busy(const OpenSession& session, std::string_view holder) {
  return Refuse(
      absl::StatusCode::kAborted,
      absl::StrFormat("session sessions/%s is busy: a %s call writes to it", session.request.id, holder),
      {.reason = "SESSION_BUSY", .retry = absl::Milliseconds(100), .metadata = {{"held_by", std::string(holder)}}});
}

}  // namespace

absl::Status CheckIdle(const OpenSession& session) {
  EBB_TRY(CheckNoWriter(session));
  return session.work.empty() ? absl::OkStatus() : Busy(session, session.work);
}

absl::Status CheckNoWriter(const OpenSession& session) {
  return session.writer.empty() ? absl::OkStatus() : Busy(session, session.writer);
}

absl::Status CheckJournal(const OpenSession& session) { return session.journal; }

absl::Status WhyClosed(const OpenSession& session) {
  if (!session.lost.ok()) return session.lost;
  if (!session.journal.ok()) return session.journal;
  return Refuse(absl::StatusCode::kCancelled, "the session was deleted", {.reason = "SESSION_DELETED"});
}

absl::Status NoMemoryForSession() {
  return Refuse(absl::StatusCode::kUnavailable, "no memory for another session",
                {.reason = "NO_MEMORY", .retry = absl::Seconds(1)});
}

absl::Status NoMemoryForCopy() {
  return Refuse(absl::StatusCode::kUnavailable, "no memory for a copy of the session",
                {.reason = "NO_MEMORY", .retry = absl::Seconds(1)});
}

absl::Status Sessions::CheckRoom(const SessionRequest& request) const {
  {
    const std::lock_guard lock(views_mutex_);
    for (const auto& [name, request_id] : lost_) {
      const bool is_its_own = name.second == request.id || (!request_id.empty() && request_id == request.request_id);
      if (name.first == request.tenant && is_its_own) return SessionRecovering(name.second);
    }
  }
  return CheckReturn(request);
}

absl::Status Sessions::CheckReturn(const SessionRequest& request) const {
  const SessionName name = {request.tenant, request.id};
  if (names_.contains(name) || (all_names_ != nullptr && !all_names_->IsFree(name, model_)))
    return NameTaken(request.id);
  if (sessions_.size() >= static_cast<size_t>(sessions_max_)) {
    return Refuse(absl::StatusCode::kUnavailable,
                  absl::StrFormat("the server holds %d sessions, which is all it may", sessions_max_),
                  {.reason = "SESSIONS_FULL", .retry = absl::Seconds(1)});
  }
  return absl::OkStatus();
}

OpenSession* Sessions::FindRequest(const std::string& tenant, const std::string& request_id) {
  const auto found = requests_.find({tenant, request_id});
  return found == requests_.end() ? nullptr : sessions_.at(found->second).get();
}

absl::Status Sessions::Claim(const SessionRequest& request) {
  if (all_names_ == nullptr || all_names_->Claim({request.tenant, request.id}, model_)) return absl::OkStatus();
  return NameTaken(request.id);
}

OpenSession& Sessions::Add(OpenSession session) {
  const SessionRequest& request = session.request;
  const Name name = {request.tenant, request.id};
  EBB_CHECK(!names_.contains(name));
  names_[name] = session.id;
  if (!request.request_id.empty()) requests_[{request.tenant, request.request_id}] = session.id;
  const SessionId id = session.id;
  OpenSession& added = *sessions_.emplace(id, std::make_unique<OpenSession>(std::move(session))).first->second;
  expiries_.emplace(added.expiry(), id);
  Publish(added);
  const std::lock_guard lock(views_mutex_);
  lost_.erase(name);
  return added;
}

absl::StatusOr<OpenSession*> Sessions::Find(const std::string& tenant, const std::string& id) {
  const auto found = names_.find({tenant, id});
  if (found != names_.end()) return sessions_.at(found->second).get();
  const std::lock_guard lock(views_mutex_);
  return lost_.contains({tenant, id}) ? SessionRecovering(id) : UnknownSession(id);
}

void Sessions::Unlist(const OpenSession& session) {
  const SessionRequest& request = session.request;
  names_.erase({request.tenant, request.id});
  if (!request.request_id.empty()) requests_.erase({request.tenant, request.request_id});
  expiries_.erase({session.expiry(), session.id});
}

void Sessions::Hide(const OpenSession& session) {
  const Name name = {session.request.tenant, session.request.id};
  Unlist(session);
  if (all_names_ != nullptr) all_names_->Release(name, model_);
  const std::lock_guard lock(views_mutex_);
  views_.erase(name);
}

void Sessions::Lose(const OpenSession& session) {
  const Name name = {session.request.tenant, session.request.id};
  Unlist(session);
  if (all_names_ != nullptr) all_names_->ExpectBack(name, model_);
  const std::lock_guard lock(views_mutex_);
  views_.erase(name);
  lost_[name] = session.request.request_id;
}

void Sessions::GiveUp(const SessionName& name) {
  {
    const std::lock_guard lock(views_mutex_);
    if (lost_.erase(name) == 0) return;
  }
  if (all_names_ != nullptr) all_names_->Release(name, model_);
}

void Sessions::Remove(SessionId id) { EBB_CHECK(sessions_.erase(id) == 1); }

void Sessions::Publish(const OpenSession& session) {
  const std::span<const int32_t> log = session.cache->log();
  const auto tail = log.last(std::min(log.size(), kLogTail));
  SessionView view = {.id = session.id,
                      .generation = session.generation,
                      .log_tail = {tail.begin(), tail.end()},
                      .block_size = session.request.block_size,
                      .sampling = session.request.sampling};
  const std::lock_guard lock(views_mutex_);
  views_[{session.request.tenant, session.request.id}] = std::move(view);
}

void Sessions::Touch(OpenSession& session, absl::Time now) {
  const bool listed = expiries_.erase({session.expiry(), session.id}) > 0;
  session.last_used = now;
  if (listed) expiries_.emplace(session.expiry(), session.id);
}

std::vector<SessionId> Sessions::Expired(absl::Time now) const {
  std::vector<SessionId> expired;
  for (const auto& [expiry, id] : expiries_) {
    if (expiry > now) break;
    if (sessions_.at(id)->writer.empty()) expired.push_back(id);
  }
  return expired;
}

absl::Time Sessions::next_expiry() const {
  for (const auto& [expiry, id] : expiries_) {
    if (sessions_.at(id)->writer.empty()) return expiry;  // a busy one starts anew when its call ends
  }
  return absl::InfiniteFuture();
}

std::vector<const OpenSession*> Sessions::List(const std::string& tenant, const std::string& after,
                                               size_t count) const {
  std::vector<const OpenSession*> list;
  for (auto name = names_.upper_bound({tenant, after}); name != names_.end() && name->first.first == tenant; ++name) {
    if (list.size() == count) break;
    const OpenSession& session = *sessions_.at(name->second);
    if (!session.throw_away) list.push_back(&session);
  }
  return list;
}

absl::StatusOr<SessionView> Sessions::Look(const std::string& tenant, const std::string& id) const {
  const std::lock_guard lock(views_mutex_);
  const auto view = views_.find({tenant, id});
  if (view != views_.end()) return view->second;
  return lost_.contains({tenant, id}) ? SessionRecovering(id) : UnknownSession(id);
}

}  // namespace ebb
