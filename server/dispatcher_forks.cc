// Branches of a dispatcher's sessions: opened, charged for, given pages of their own to write to.

#include <new>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/hash_random.h"
#include "policies/status.h"
#include "server/dispatcher.h"

namespace ebb {
namespace {

constexpr CallId kForkArrival = 0;    // of a session; calls count from 1
constexpr uint64_t kAnswer = 0xA5E0;  // purpose of the hash: seeds of answers

// Of a refusal for want of pages, how many were asked for; of any other 0.
int64_t PagesNeeded(const absl::Status& refused) {
  const Refusal refusal = GetRefusal(refused);
  const auto found = refusal.metadata.find("pages_needed");
  int64_t pages = 0;
  if (refusal.reason != "NO_PAGES" || found == refusal.metadata.end() || !absl::SimpleAtoi(found->second, &pages)) {
    return 0;
  }
  return pages;
}

}  // namespace

absl::StatusOr<SessionInfo> Dispatcher::Fork(const ForkRequest& fork) {
  if (!fork.request_id.empty()) {
    const OpenSession* known = sessions_.FindRequest(fork.tenant, fork.request_id);
    if (known != nullptr) return Info(*known);
  }
  EBB_ASSIGN(OpenSession * session, FindHere(fork.tenant, fork.session));
  EBB_TRY(CheckIdle(*session));
  EBB_TRY(CheckGeneration(*session, fork.expected_generation));
  EBB_TRY(CheckJournal(*session));
  if (fork.made_for != session->id) {
    return Refuse(absl::StatusCode::kAborted,
                  absl::StrFormat("session sessions/%s changed while the call was read: another call opened it anew",
                                  session->request.id),
                  {.reason = "SESSION_BUSY", .retry = absl::Milliseconds(100), .metadata = {{"held_by", "another"}}});
  }
  SessionRequest request = session->request;
  request.assignment.reset();  // what a branch shows is not another unit's
  request.id = fork.id;
  request.request_id = fork.request_id;
  request.sampling = fork.sampling;
  request.ttl = fork.ttl.value_or(request.ttl);
  ForkOptions options = {.reserve_copies = fork.reserve_copies};
  if (fork.policy) options.policy = PolicyFor(*session, *fork.policy);
  const absl::StatusOr<OpenSession*> made = Branch(*session, request, options, AwaitedPages());
  if (!made.ok()) {
    // Nobody gives up pages for who is over its quota, and would be refused.
    const int64_t missing = PagesNeeded(made.status()) * engine_.memory().page_bytes;
    if (missing > 0) EBB_TRY(session->account->Check(Quota::kCacheBytes, missing));
    AwaitPagesOf(made.status(), *session);
    return OrGpuFault(*session, made.status());
  }
  OpenSession* const branch = *made;
  EBB_TRY(BeginJournal(*branch));
  sessions_.Touch(*session, clock_.Now());
  return Info(*branch);
}

// A session like `session`, under the names and with the defaults that `request` gives it. Where it takes pages, it
// leaves so many free.
absl::StatusOr<OpenSession*> Dispatcher::Branch(OpenSession& session, const SessionRequest& request,
                                                const ForkOptions& options, int64_t pages_to_leave) {
  EBB_TRY(sessions_.CheckRoom(request));
  TenantAccount& account = *session.account;
  EBB_TRY(account.Check(Quota::kSessions, 1));
  EBB_TRY(account.Check(Quota::kForks, 1));
  CountLoad();  // so that the scheduler knows what the page pool has lent so far
  EBB_ASSIGN(const std::span<const float> logits, session.logits.Whole(engine_, *session.cache));
  EBB_ASSIGN(ebb::Fork fork, ForkCache(*session.cache, options));
  // The pool has lent the pages already, and takes them back if the scheduler says no.
  const int64_t taken = engine_.memory().pages_reserved - shadows_.pages() - scheduler_.load().pages_reserved;
  const int64_t pages = fork.session->pages();
  EBB_TRY(account.Check(Quota::kCacheBytes, pages * engine_.memory().page_bytes));
  if (taken > 0 && pages_to_leave > 0 && taken + pages_to_leave > FreePages()) {
    return NotEnoughPages(taken, scheduler_.RetryForPages());
  }
  const SessionId id = ++sessions_made_;
  rejected_.reset();
  Deliver(SessionArrived{
      .id = kForkArrival, .session = id, .tenant = account.id(), .pages = pages, .shared = pages - taken});
  if (rejected_) return Verdict(*rejected_);
  if (absl::Status claimed = sessions_.Claim(request); !claimed.ok()) {
    Deliver(SessionClosed{.session = id});
    return claimed;
  }
  const absl::Time now = clock_.Now();
  OpenSession& branch = sessions_.Add({.id = id,
                                       .request = request,
                                       .is_branch = true,
                                       .account = &account,
                                       .cache = std::move(fork.session),
                                       .logits = LastLogits({logits.begin(), logits.end()}),
                                       .prompt_ended = session.prompt_ended,
                                       .created = now,
                                       .last_used = now,
                                       .past_context = session.past_context,
                                       .tenant_metrics = session.tenant_metrics,
                                       .policy_metrics = session.policy_metrics,
                                       .policy_tokens = session.policy_tokens});
  CountFork(branch, fork.swap);
  return &branch;
}

absl::StatusOr<ebb::Fork> Dispatcher::ForkCache(Session& cache, const ForkOptions& options) {
  try {
    auto fork = engine_.ForkSession(cache, options);
    while (GetRefusal(fork.status()).reason == "NO_PAGES" && shadows_.DropYoungest()) {
      fork = engine_.ForkSession(cache, options);
    }
    if (!fork.ok()) return NoPages(fork.status());
    return fork;
  } catch (const std::bad_alloc&) {
    return NoMemoryForSession();
  }
}

void Dispatcher::CountFork(OpenSession& branch, const std::optional<PolicySwap>& swap) {
  branch.account->Count(Quota::kSessions, 1);
  branch.account->Count(Quota::kForks, 1);
  branch.tenant_metrics->sessions.Add(1);
  branch.tenant_metrics->forks.Add();
  CountPages(branch, branch.cache->pages());
  CountSlots(branch, branch.cache->live_slots());
  if (swap) CountSwap(branch, *swap);
  NotePlacement(branch);
  CountLoad();
}

// The answers of a call whose prompt is in, all but its own.
absl::Status Dispatcher::StartBranches(Call& call) {
  OpenSession& session = *call.session;
  for (size_t i = 0; i < call.request.branches.size(); ++i) {
    CallRequest request = call.request;
    request.branches.clear();
    request.prompt.clear();
    request.open.reset();
    request.expected_generation.reset();
    request.generation_of_prompt.reset();
    request.came = absl::InfiniteFuture();
    request.sampling.seed = HashBits(call.request.sampling.seed, kAnswer, i);
    request.session = call.request.branches[i].session;
    SessionRequest opening = session.request;
    opening.id = request.session;
    opening.request_id.clear();
    opening.assignment.reset();
    opening.ttl = absl::InfiniteDuration();
    EBB_ASSIGN(OpenSession * branch, Branch(session, opening, {}, 0));
    branch->throw_away = true;
    request.made_for = branch->id;
    request.is_admitted = true;
    CallOutput* const output = call.output->Branch(i);
    EBB_CHECK(output != nullptr);
    const SessionId id = branch->id;
    Start(call.request.branches[i].call, std::move(request), *output);
    if (sessions_.has(id) && sessions_.at(id).writer.empty()) Close(sessions_.at(id));  // it was refused
  }
  return absl::OkStatus();
}

// Rows that find no page are left out of the step.
void Dispatcher::OwnPagesOfRows() {
  size_t kept = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    Call* const call = batch_calls_[i];
    if (!OwnPages(*call, batch_[i])) continue;
    if (kept < i) batch_[kept] = std::move(batch_[i]);
    batch_calls_[kept++] = call;
    batch_sessions_.push_back(call->session);
  }
  batch_.resize(kept);
  batch_calls_.resize(kept);
}

// False where there is no page for what the row would write to and the session shares: the call ends, and the session
// can go on once there is. A draft that nobody asked for is left out first.
bool Dispatcher::OwnPages(Call& call, BatchRow& row) {
  absl::Status owned = engine_.OwnPages(row);
  while (!owned.ok() && shadows_.DropYoungest()) owned = engine_.OwnPages(row);
  if (!owned.ok() && row.draft && !call.request.draft) {
    row.tokens = row.tokens.first(1);
    row.draft = false;
    row.want = Want::kLast;
    owned = engine_.OwnPages(row);
  }
  call.failure = NoPages(owned);
  if (owned.ok()) CountPages(*call.session, row.session->pages());
  return owned.ok();
}

// The same for all pages, before an edit begins to write to them.
bool Dispatcher::OwnAllPages(Call& call) {
  Session& cache = *call.session->cache;
  absl::Status owned = engine_.OwnAllPages(cache);
  while (!owned.ok() && shadows_.DropYoungest()) owned = engine_.OwnAllPages(cache);
  call.failure = NoPages(owned);
  return owned.ok();
}

// With the time after which there may be some.
absl::Status Dispatcher::NoPages(const absl::Status& refused) const {
  Refusal refusal = GetRefusal(refused);
  if (refusal.reason != "NO_PAGES") return refused;
  refusal.retry = scheduler_.RetryForPages();
  return Refuse(refused.code(), std::string(refused.message()), refusal);
}

}  // namespace ebb
