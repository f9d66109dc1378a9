// Sessions that nobody uses leave their pages to others, and come back when they are called.
//
// Whoever finds a session swapped, or too few pages free, waits: its question is parked. What is waited for comes about
// one session at a time, and tenants take turns at that, however many questions one has waiting; who comes later leaves
// them the pages that they wait for. To make room, those leave that were used longest ago: one is copied between steps,
// in pieces, and written by the folder's thread; until that is done it is as it was, and a call on it just keeps it. To
// come back, its file is read by that thread, then pages are taken and filled in pieces.
//
// A session leaves if no call or work is on it, no draft waits for Accept, nobody is waiting for it, and some page
// comes free with it. Of pages that branches share its file has a copy, and it lets go of them; they come free with the
// last branch, so branches that nobody uses leave together. Who comes back has pages of its own. Its name, limits,
// times and journal stay; the scheduler has it with no pages meanwhile.

#include <algorithm>
#include <map>
#include <new>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/dispatcher.h"
#include "server/log.h"

namespace ebb {
namespace {

absl::Status Damaged(const OpenSession& session, const std::string& what) {
  const char* const journal = session.journaled ? "; the next start of the server finds it in its journal" : "";
  return Refuse(
      absl::StatusCode::kDataLoss,
      absl::StrFormat("session sessions/%s was swapped and cannot come back: %s%s", session.request.id, what, journal),
      {.reason = "SWAP_DAMAGED", .metadata = {{"session", "sessions/" + session.request.id}}});
}

absl::Status TooManyWait() {
  return Refuse(absl::StatusCode::kUnavailable, "too many calls wait for sessions that are swapped",
                {.reason = "QUEUE_FULL", .retry = absl::Milliseconds(200)});
}

int64_t NumberOf(const Refusal& refusal, const char* key) {
  const auto found = refusal.metadata.find(key);
  int64_t number = 0;
  if (found == refusal.metadata.end() || !absl::SimpleAtoi(found->second, &number)) return 0;
  return number;
}

}  // namespace

// The session, in memory, where it stays for the question at hand; or the question awaits it.
absl::StatusOr<OpenSession*> Dispatcher::FindHere(const std::string& tenant, const std::string& id) {
  EBB_ASSIGN(OpenSession * session, sessions_.Find(tenant, id));
  FinishRenewal(*session);
  if (leaving_ && leaving_->session == session->id) {
    leaving_.reset();
    sessions_.Touch(*session, clock_.Now());  // so that another leaves in its place
    stirred_ = true;
  }
  if (session->swapped == nullptr) return session;
  EBB_TRY(session->swapped->damage);
  EBB_TRY(verdict_);
  if (!HasPlace(tenant)) return TooManyWait();
  sessions_.Touch(*session, clock_.Now());
  needed_ = Need{.tenant = tenant, .session = session->id};
  return absl::UnavailableError("it is on its way");  // nobody is told
}

// Whether the question at hand awaits so many free pages, of which there are too few beside those that others await,
// and `session` in memory (0: none).
bool Dispatcher::AwaitPages(const std::string& tenant, int64_t pages, SessionId session) {
  const int64_t missing = pages - FreePages();
  const bool may_wait =
      options_.swap.folder != nullptr && verdict_.ok() && !scheduler_.load().draining && HasPlace(tenant);
  if (!may_wait || pages <= 0 || missing + AwaitedPages() <= 0) return false;
  if (missing > 0 && !leaving_ && NextToLeave(missing, session) == nullptr) return false;
  needed_ = Need{.tenant = tenant, .session = session, .pages = pages};
  return true;
}

// The same of a refusal of the page pool, which may have lent others before it.
bool Dispatcher::AwaitPagesOf(const absl::Status& refused, const OpenSession& session) {
  const Refusal refusal = GetRefusal(refused);
  if (refusal.reason != "NO_PAGES") return false;
  const int64_t pages = NumberOf(refusal, "pages_needed") + FreePages() - NumberOf(refusal, "pages_free");
  return AwaitPages(session.request.tenant, pages, session.id);
}

int64_t Dispatcher::FreePages() const {
  const SchedulerLoad load = scheduler_.load();
  return load.pages_total - load.pages_reserved;
}

// Pages that are for those who wait: who comes later leaves so many free, or waits behind them. Else who wants much
// would wait for as long as others come who want little.
int64_t Dispatcher::AwaitedPages() {
  if (has_waited_) return 0;
  int64_t pages = 0;
  std::set<SessionId> counted;
  for (const Parked& parked : parked_) {
    if (!parked.verdict.ok()) continue;
    pages += parked.need.pages;
    const SessionId id = parked.need.session;
    const bool has_its_pages = coming_ && coming_->session == id && coming_->work != nullptr;
    if (has_its_pages || !sessions_.has(id) || !counted.insert(id).second) continue;
    const OpenSession& session = sessions_.at(id);
    if (session.swapped != nullptr && !session.closed) pages += session.swapped->pages;
  }
  return pages;
}

absl::Status Dispatcher::NotEnoughPages(int64_t pages, std::optional<absl::Duration> retry) const {
  const SchedulerLoad load = scheduler_.load();
  const int64_t free = load.pages_total - load.pages_reserved;
  return Refuse(
      absl::StatusCode::kUnavailable,
      absl::StrFormat("the session needs %d pages, %d of %d are free", pages, free, load.pages_total),
      {.reason = "NO_PAGES",
       .retry = retry,
       .metadata = {{"pages_needed", absl::StrFormat("%d", pages)}, {"pages_free", absl::StrFormat("%d", free)}}});
}

// A tenant's questions are in rounds of their own, from the round on that is being provided for: what is on its way
// stays whose turn it is.
void Dispatcher::Park(Message question, CallId call, absl::Time deadline) {
  EBB_CHECK(awaits());
  Parked parked = {
      .question = std::move(question), .need = *std::exchange(needed_, {}), .call = call, .deadline = deadline};
  const auto first = std::ranges::find(parked_, false, &Parked::ready);
  if (first != parked_.end()) parked.round = first->round;
  auto place = parked_.begin();
  for (auto other = first; other != parked_.end(); ++other) {
    if (!other->ready && other->need.tenant == parked.need.tenant) parked.round = other->round + 1;
  }
  for (auto other = first; other != parked_.end(); ++other) {
    if (!other->ready && other->round <= parked.round) place = std::next(other);
  }
  parked_.insert(place, std::move(parked));
  stirred_ = true;
  if (parked_.size() > static_cast<size_t>(options_.live.queue_max)) MakePlace();
}

// The tenant that has most questions waiting, and how many.
std::pair<std::string, int64_t> Dispatcher::MostWaiting() const {
  std::map<std::string, int64_t> waiting;
  for (const Parked& parked : parked_) {
    if (!parked.ready) ++waiting[parked.need.tenant];
  }
  if (waiting.empty()) return {};
  return *std::ranges::max_element(waiting, {}, [](const auto& of) { return of.second; });
}

// Whether one more question of the tenant's may wait: always, where another has two more than it.
bool Dispatcher::HasPlace(const std::string& tenant) const {
  if (parked_.size() < static_cast<size_t>(options_.live.queue_max)) return true;
  const auto own = std::ranges::count_if(
      parked_, [&](const Parked& parked) { return !parked.ready && parked.need.tenant == tenant; });
  return MostWaiting().second > own + 1;
}

// Who has most gives up the place of its youngest, which is refused.
void Dispatcher::MakePlace() {
  const std::string tenant = MostWaiting().first;
  for (Parked& parked : parked_ | std::views::reverse) {
    if (parked.ready || parked.need.tenant != tenant) continue;
    parked.ready = true;
    parked.verdict = TooManyWait();
    return;
  }
}

bool Dispatcher::has_ready() const {
  return std::ranges::any_of(parked_, [](const Parked& parked) { return parked.ready; });
}

void Dispatcher::Swap() {
  stirred_ = false;
  const absl::Time now = clock_.Now();
  for (Parked& parked : parked_) {
    if (parked.ready || parked.deadline > now) continue;
    parked.ready = true;
    parked.verdict = Refuse(absl::StatusCode::kDeadlineExceeded,
                            "the call's deadline passed before its session was there", {.reason = "DEADLINE_PASSED"});
  }
  const bool is_awaited = coming_ && std::ranges::any_of(parked_, [this](const Parked& parked) {
                            return !parked.ready && parked.need.session == coming_->session;
                          });
  if (!is_awaited) DropComing();
  for (Parked& parked : parked_) {
    if (parked.ready) continue;
    const absl::StatusOr<bool> there = Provide(parked.need);
    if (there.ok() && !*there) break;
    parked.ready = true;
    parked.verdict = there.status();
    if (parked.need.pages > 0) {  // the pages are its own first
      stirred_ = true;
      break;
    }
  }
  // Work that a question undertakes comes first; others that would, wait for their turn. Calls need none.
  std::list<Parked> ready;
  for (auto parked = parked_.begin(); parked != parked_.end();) {
    const auto next = std::next(parked);
    if (parked->ready) ready.splice(ready.end(), parked_, parked);
    parked = next;
  }
  std::list<Parked> later;
  while (!ready.empty()) {
    if (has_work() && ready.front().call == 0) {
      later.splice(later.end(), ready, ready.begin());
      continue;
    }
    Parked parked = std::move(ready.front());
    ready.pop_front();
    verdict_ = parked.verdict;
    has_waited_ = true;
    parked.question(*this);
    has_waited_ = false;
    verdict_ = absl::OkStatus();
  }
  parked_.splice(parked_.begin(), later);
}

// True when what is wanted is there, or the question will find out itself that it never will be.
absl::StatusOr<bool> Dispatcher::Provide(const Need& need) {
  if (need.session != 0 && sessions_.has(need.session)) {
    OpenSession& session = sessions_.at(need.session);
    if (session.swapped != nullptr && !session.closed) return BringBack(session);
  }
  return MakeRoom(need.pages, need.session);
}

// True when so many pages are free; false when they are on their way.
absl::StatusOr<bool> Dispatcher::MakeRoom(int64_t pages, SessionId but) {
  const int64_t missing = pages - FreePages();
  if (missing <= 0) return true;
  if (leaving_ || is_writing_) return false;
  OpenSession* const next = NextToLeave(missing, but);
  if (next == nullptr) return NotEnoughPages(pages, scheduler_.RetryForPages());
  const absl::Status begun = BeginLeaving(*next);
  if (GetRefusal(begun).reason == "GPU_FAULT") {
    stirred_ = true;  // whom the GPU took is found before the next step, and makes room
    return false;
  }
  EBB_TRY(begun);
  return false;
}

// Of the sessions that may leave, those of tenants of low priority first, the one used longest ago that has a part in
// what comes free with those before it; null where fewer than `missing` pages come free with all of them.
OpenSession* Dispatcher::NextToLeave(int64_t missing, SessionId but) const {
  std::set<SessionId> awaited = {but};
  for (const Parked& parked : parked_) awaited.insert(parked.need.session);
  std::vector<OpenSession*> idle;
  for (const auto& [id, session] : sessions_.all()) {
    const bool is_idle = session->swapped == nullptr && !session->closed && !session->throw_away &&
                         session->writer.empty() && session->work.empty() && session->cache->CheckSettled().ok();
    if (is_idle && !awaited.contains(id)) idle.push_back(session.get());
  }
  std::ranges::stable_sort(idle, {}, [](const OpenSession* session) {
    return std::pair(session->account->limits().tier != Tier::kLow, session->last_used);
  });
  std::vector<const Session*> caches;
  for (const OpenSession* const session : idle) caches.push_back(session->cache.get());
  // The first few are enough, as a rule: looking at all of them would take long where there are many.
  for (size_t count = 1; !idle.empty(); count *= 2) {
    const size_t leave = std::min(count, idle.size());
    const FreedPages freed = engine_.FreedBy(std::span(caches).first(leave));
    if (freed.pages >= missing) {
      OpenSession* const first = idle[static_cast<size_t>(std::ranges::find(freed.by, true) - freed.by.begin())];
      const int64_t at_least = first->cache->live_slots() * SlotBytes(first->cache->policy());
      return swap_bytes_ + at_least > options_.swap.folder->bytes_max() ? nullptr : first;
    }
    if (leave == idle.size()) break;
  }
  return nullptr;
}

absl::Status Dispatcher::BeginLeaving(OpenSession& session) {
  try {
    EBB_ASSIGN(auto work, engine_.BeginSave(*session.cache));
    leaving_ = Leaving{.session = session.id, .file = ++swaps_made_, .began = clock_.Now(), .work = std::move(work)};
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return NoMemoryForCopy();
  }
}

bool Dispatcher::has_swap_work() const {
  return (coming_ && coming_->work != nullptr) || (leaving_ && leaving_->work != nullptr);
}

// A piece: as much as of work that was undertaken.
void Dispatcher::WorkOnSwap() {
  const bool comes = coming_ && coming_->work != nullptr;
  CacheWork& work = comes ? static_cast<CacheWork&>(*coming_->work) : *leaving_->work;
  const absl::Time end = clock_.Now() + options_.work_share * step_took_;
  try {
    do {
      const absl::StatusOr<bool> more = work.Advance(engine_.threads());
      EBB_CHECK(more.ok());  // copies refuse nothing
      if (!*more) return comes ? CameBack() : WriteLeaving();
    } while (clock_.Now() < end);
  } catch (const std::bad_alloc&) {
    EBB_CHECK(!comes);  // its pages are there already
    CannotLeave(NoMemoryForCopy());
  }
}

void Dispatcher::WriteLeaving() {
  absl::StatusOr<SaveOutcome> copy = Outline(sessions_.at(leaving_->session));
  if (!copy.ok()) return CannotLeave(copy.status());
  copy->snapshot = leaving_->work->Take();
  leaving_->work.reset();
  const int64_t room = options_.swap.folder->bytes_max() - swap_bytes_;
  is_writing_ = true;
  options_.swap.folder->Post([this, file = leaving_->file, room, seal = options_.swap.seal,
                              copy = *std::move(copy)](const SwapFolder& folder) mutable {
    absl::Status status = NoMemoryForCopy();
    int64_t bytes = 0;
    try {
      const std::string snapshot = seal(std::move(copy));
      bytes = static_cast<int64_t>(snapshot.size());
      status = bytes > room ? absl::ResourceExhaustedError(
                                  absl::StrFormat("%d bytes, and cache.swap_max leaves room for %d", bytes, room))
                            : folder.Write(file, snapshot);
    } catch (const std::bad_alloc&) {  // as it says
    }
    post_([file, bytes, status](Dispatcher& dispatcher) { dispatcher.HaveWritten(file, bytes, status); });
  });
}

void Dispatcher::HaveWritten(uint64_t file, int64_t bytes, const absl::Status& status) {
  stirred_ = true;
  is_writing_ = false;
  if (!leaving_ || leaving_->file != file) {  // it was called meanwhile, and stays
    if (status.ok()) options_.swap.folder->Post([file](const SwapFolder& folder) { folder.Remove(file); });
    return;
  }
  if (!status.ok()) return CannotLeave(status);
  const Leaving leaving = *std::exchange(leaving_, {});
  OpenSession& session = sessions_.at(leaving.session);
  const Session& cache = *session.cache;
  session.swapped = std::make_unique<SwappedSession>(SwappedSession{.file = file,
                                                                    .bytes = bytes,
                                                                    .pages = cache.pages(),
                                                                    .policy = cache.policy(),
                                                                    .tokens = static_cast<int64_t>(cache.log().size()),
                                                                    .cache_length = cache.cache_length(),
                                                                    .cache_capacity = cache.capacity(),
                                                                    .live_slots = cache.live_slots(),
                                                                    .evicted = cache.evicted()});
  CountSlots(session, 0);
  CountPages(session, 0);
  shadows_.End(session.id);
  drafter_.End(session.id);
  session.cache.reset();
  session.logits = {};
  Deliver(SessionResized{.session = session.id, .pages = 0});
  CountLoad();
  CountSwapFile(1, bytes);
  const SwapMetrics& metrics = metrics_.swap();
  metrics.out.Add();
  metrics.out_bytes.Add(static_cast<double>(bytes));
  metrics.out_seconds.Observe(clock_.Now() - leaving.began);
}

// It stays where it is, and whoever waits for pages is refused.
void Dispatcher::CannotLeave(const absl::Status& status) {
  const Leaving leaving = *std::exchange(leaving_, {});
  const std::string& name = sessions_.at(leaving.session).request.id;
  stirred_ = true;
  metrics_.swap().out_failures.Add();
  LogWarn("swap", {{"session", HashForLog(name)}, {"error", ErrorForLog(status, name)}},
          "a session cannot be written, and stays in memory");
  for (Parked& parked : parked_) {
    if (parked.ready) continue;
    if (coming_ && coming_->work != nullptr && parked.need.session == coming_->session) continue;  // has its pages
    int64_t pages = parked.need.pages;
    if (sessions_.has(parked.need.session)) {
      const OpenSession& session = sessions_.at(parked.need.session);
      if (session.swapped != nullptr) pages = session.swapped->pages;
    }
    if (pages <= FreePages()) continue;
    parked.ready = true;
    parked.verdict = NotEnoughPages(pages, scheduler_.RetryForPages());
  }
}

// A piece of the way of a session that is swapped; never true, since what is there is no longer swapped.
absl::StatusOr<bool> Dispatcher::BringBack(OpenSession& session) {
  EBB_TRY(session.swapped->damage);
  if (coming_ && coming_->session != session.id) DropComing();
  if (coming_ && coming_->work != nullptr) return false;
  EBB_ASSIGN(const bool has_room, MakeRoom(session.swapped->pages, session.id));
  if (!has_room) return false;
  if (!coming_) {
    BeginReading(session);
    return false;
  }
  if (!coming_->is_read) return false;
  absl::Status status = coming_->loaded.status();
  if (status.ok()) {
    shadows_.MakeRoom(session.swapped->pages);
    try {
      auto work = engine_.BeginReopen((*coming_->loaded)->past.image);
      status = work.status();
      if (work.ok()) coming_->work = *std::move(work);
    } catch (const std::bad_alloc&) {
      status = NoMemoryForCopy();
    }
  }
  if (!status.ok()) {
    coming_.reset();
    metrics_.swap().in_failures.Add();
    return status;
  }
  Deliver(SessionResized{.session = session.id, .pages = session.swapped->pages});
  CountPages(session, session.swapped->pages);
  CountLoad();
  return false;
}

void Dispatcher::BeginReading(OpenSession& session) {
  coming_ = Coming{.session = session.id, .reading = ++swaps_made_, .began = clock_.Now()};
  options_.swap.folder->Post([this, file = session.swapped->file, reading = coming_->reading, load = options_.swap.load,
                              limits = engine_.image_limits(),
                              vocab = engine_.config().vocab](const SwapFolder& folder) {
    absl::StatusOr<std::unique_ptr<LoadedSession>> loaded = NoMemoryForCopy();
    try {
      auto bytes = folder.Read(file);
      loaded = bytes.ok() ? load(limits, vocab, *std::move(bytes)) : bytes.status();
    } catch (const std::bad_alloc&) {  // as it says
    }
    post_([reading, loaded = std::move(loaded)](Dispatcher& dispatcher) mutable {
      dispatcher.HaveRead(reading, std::move(loaded));
    });
  });
}

void Dispatcher::HaveRead(uint64_t reading, absl::StatusOr<std::unique_ptr<LoadedSession>> loaded) {
  if (!coming_ || coming_->reading != reading) return;  // nobody waits for it any more
  OpenSession& session = sessions_.at(coming_->session);
  absl::Status status = CheckRead(session, loaded);
  // Trouble that passes is the call's; damage stays.
  if (!status.ok() && !absl::IsUnavailable(status)) {
    status = session.swapped->damage = Damaged(session, std::string(status.message()));
    const std::string& name = session.request.id;
    LogError("swap", {{"session", HashForLog(name)}, {"error", ErrorForLog(status, name)}},
             "a session's file is damaged");
  }
  coming_->is_read = true;
  coming_->loaded = status.ok() ? std::move(loaded) : status;
  if (!session.swapped->damage.ok()) {  // whom BringBack no longer asks
    coming_.reset();
    metrics_.swap().in_failures.Add();
  }
  stirred_ = true;
}

// That what was read is this session as it left.
absl::Status Dispatcher::CheckRead(const OpenSession& session,
                                   const absl::StatusOr<std::unique_ptr<LoadedSession>>& loaded) const {
  if (absl::IsNotFound(loaded.status())) return absl::DataLossError("its file is gone");
  EBB_TRY(loaded.status());
  const SessionPast& past = (*loaded)->past;
  const size_t logits = past.image.state.log.empty() ? 0 : static_cast<size_t>(engine_.config().vocab);
  const bool is_it = past.saved.past && past.saved.past->generation == session.generation &&
                     past.image.pages() == session.swapped->pages &&
                     static_cast<int64_t>(past.image.state.log.size()) == session.swapped->tokens &&
                     past.saved.logits.size() == logits;
  return is_it ? absl::OkStatus() : absl::DataLossError("its file holds another session");
}

// What came so far is given up: nobody waits for it any more.
void Dispatcher::DropComing() {
  if (!coming_) return;
  const bool has_pages = coming_->work != nullptr;
  const SessionId id = coming_->session;
  coming_.reset();
  stirred_ = true;
  if (!has_pages) return;
  CountPages(sessions_.at(id), 0);
  Deliver(SessionResized{.session = id, .pages = 0});
  CountLoad();
}

void Dispatcher::CameBack() {
  const Coming coming = *std::exchange(coming_, {});
  OpenSession& session = sessions_.at(coming.session);
  session.cache = coming.work->Take();
  NotePlacement(session);
  session.logits = LastLogits(std::move((*coming.loaded)->past.saved.logits));
  const std::unique_ptr<SwappedSession> swapped = std::move(session.swapped);
  CountSlots(session, session.cache->live_slots());
  options_.swap.folder->Post([file = swapped->file](const SwapFolder& folder) { folder.Remove(file); });
  CountSwapFile(-1, -swapped->bytes);
  const SwapMetrics& metrics = metrics_.swap();
  metrics.in.Add();
  metrics.in_bytes.Add(static_cast<double>(swapped->bytes));
  metrics.in_seconds.Observe(clock_.Now() - coming.began);
  stirred_ = true;
}

// The session is closed: nothing of it is in a file, or on its way into one or out of it.
void Dispatcher::ForgetSwap(OpenSession& session) {
  if (leaving_ && leaving_->session == session.id) leaving_.reset();
  if (coming_ && coming_->session == session.id) DropComing();
  stirred_ = true;
  if (session.swapped == nullptr) return;
  options_.swap.folder->Post([file = session.swapped->file](const SwapFolder& folder) { folder.Remove(file); });
  CountSwapFile(-1, -session.swapped->bytes);
}

void Dispatcher::CountSwapFile(int64_t sessions, int64_t bytes) {
  swap_bytes_ += bytes;
  metrics_.swap().sessions.Add(static_cast<double>(sessions));
  metrics_.swap().file_bytes.Set(static_cast<double>(swap_bytes_));
}

}  // namespace ebb
