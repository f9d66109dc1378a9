#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/dispatcher.h"

namespace ebb {

template <typename CacheWorkOf, typename Result>
class Dispatcher::UndertakingOf final : public Undertaking {
 public:
  UndertakingOf(OpenSession& session,
                absl::AnyInvocable<absl::StatusOr<std::unique_ptr<CacheWorkOf>>(OpenSession&)> begin,
                absl::AnyInvocable<absl::StatusOr<Result>(OpenSession&, CacheWorkOf&)> finish, Asker<Result> asker)
      : Undertaking(&session), begin_(std::move(begin)), finish_(std::move(finish)), asker_(std::move(asker)) {}

  bool IsGone() override { return asker_.is_gone(); }
  CacheWork* work() override { return work_.get(); }
  absl::Status Begin() override {
    EBB_ASSIGN(work_, begin_(*session()));
    return absl::OkStatus();
  }
  void Answer(const absl::Status& status) override {
    asker_.answer(status.ok() ? finish_(*session(), *work_) : absl::StatusOr<Result>(status));
  }

 private:
  absl::AnyInvocable<absl::StatusOr<std::unique_ptr<CacheWorkOf>>(OpenSession&)> begin_;
  absl::AnyInvocable<absl::StatusOr<Result>(OpenSession&, CacheWorkOf&)> finish_;
  Asker<Result> asker_;
  std::unique_ptr<CacheWorkOf> work_ = {};
};

template <typename CacheWorkOf, typename Answer>
void Dispatcher::Undertake(const std::string& tenant, const std::string& id, std::string_view method,
                           absl::AnyInvocable<absl::StatusOr<std::unique_ptr<CacheWorkOf>>(OpenSession&)> begin,
                           absl::AnyInvocable<absl::StatusOr<Answer>(OpenSession&, CacheWorkOf&)> finish,
                           Asker<Answer> asker) {
  EBB_CHECK(!has_work());
  const absl::StatusOr<OpenSession*> session = FindHere(tenant, id);
  if (awaits()) {
    return Park([=, begin = std::move(begin), finish = std::move(finish),
                 asker = std::move(asker)](Dispatcher& dispatcher) mutable {
      dispatcher.Undertake(tenant, id, method, std::move(begin), std::move(finish), std::move(asker));
    });
  }
  asker.answer = [this, answer = std::move(asker.answer)](absl::StatusOr<Answer> result) mutable {
    Hold([answer = std::move(answer), result = std::move(result)](const absl::Status& written) mutable {
      answer(written.ok() ? std::move(result) : absl::StatusOr<Answer>(written));
    });
  };
  if (!session.ok()) return asker.answer(session.status());
  undertaking_ = std::make_unique<UndertakingOf<CacheWorkOf, Answer>>(**session, std::move(begin), std::move(finish),
                                                                      std::move(asker));
  (*session)->work = method;
  Deliver(SessionHeld{.session = (*session)->id, .held = true});
}

void Dispatcher::Work() {
  WorkOnNext();
  LookForFault();
}

void Dispatcher::WorkOnNext() {
  WorkOnRenewal();
  swaps_next_ = has_swap_work() && (!has_work() || !swaps_next_);
  if (swaps_next_) return WorkOnSwap();
  if (!has_work()) return;
  const OpenSession* const session = undertaking_->session();
  if (undertaking_->IsGone()) {
    return EndWork(Refuse(absl::StatusCode::kCancelled, "the caller cancelled", {.reason = "CALL_CANCELLED"}));
  }
  if (undertaking_->work() == nullptr) {
    // A row of it that was planned before it was held runs first.
    const bool runs = std::ranges::any_of(
        planned_, [&](const ebb::RunStep::Row& row) { return calls_.at(row.id).session == session; });
    if (runs) return;
    const absl::Status begun = undertaking_->Begin();
    if (!begun.ok()) return EndWork(begun);
  }
  const absl::Time end = clock_.Now() + options_.work_share * step_took_;
  do {
    const absl::StatusOr<bool> more = undertaking_->work()->Advance(engine_.threads());
    if (!more.ok() || !*more) return EndWork(more.status());
  } while (clock_.Now() < end);
}

void Dispatcher::EndWork(const absl::Status& status) {
  const std::unique_ptr<Undertaking> over = std::move(undertaking_);
  OpenSession* const session = over->session();
  if (session != nullptr) session->work = {};
  over->Answer(session != nullptr ? OrGpuFault(*session, status) : status);
  if (session != nullptr) Deliver(SessionHeld{.session = session->id, .held = false});
}

void Dispatcher::SetPolicy(const std::string& tenant, const std::string& id, std::optional<uint64_t> expected,
                           const PolicyRequest& request, Asker<PolicyOutcome> asker) {
  if (!request.dry_run && AwaitPagesFor(tenant, id, request)) {
    return Park([=, asker = std::move(asker)](Dispatcher& dispatcher) mutable {
      dispatcher.SetPolicy(tenant, id, expected, request, std::move(asker));
    });
  }
  Undertake<PolicyWork, PolicyOutcome>(
      tenant, id, "SetPolicy",
      [=, this](OpenSession& session) -> absl::StatusOr<std::unique_ptr<PolicyWork>> {
        EBB_TRY(CheckGeneration(session, expected));
        EBB_TRY(CheckNotEdited(session));
        EBB_TRY(CheckJournal(session));
        return engine_.BeginSetPolicy(*session.cache, PolicyFor(session, request));
      },
      [this, request](OpenSession& session, PolicyWork& work) { return FinishSetPolicy(session, request, work); },
      std::move(asker));
}

// Whether the change awaits the session, or pages: as many as one that begins with the policy reserves.
bool Dispatcher::AwaitPagesFor(const std::string& tenant, const std::string& id, const PolicyRequest& request) {
  const auto session = FindHere(tenant, id);
  if (!session.ok()) return awaits();
  const auto pages =
      engine_.PagesFor({.policy = PolicyFor(**session, request), .block_size_max = (*session)->request.block_size});
  if (!pages.ok()) return false;
  const int64_t more = *pages - (*session)->cache->pages();
  // Nobody gives up pages for who is over its quota, and is refused.
  if (!(*session)->account->Check(Quota::kCacheBytes, more * engine_.memory().page_bytes).ok()) return false;
  return AwaitPages(tenant, more, (*session)->id);
}

absl::StatusOr<PolicyOutcome> Dispatcher::FinishSetPolicy(OpenSession& session, const PolicyRequest& request,
                                                          PolicyWork& work) {
  const ValidSpec policy = PolicyFor(session, request);
  if (session.account->limits().cache_bytes_max > 0) {
    const auto tried = work.Try(shadows_.pages());
    const int64_t more = tried.ok() ? tried->pages_after - session.cache->pages() : 0;
    if (more > 0) EBB_TRY(session.account->Check(Quota::kCacheBytes, more * engine_.memory().page_bytes));
  }
  auto swap = request.dry_run ? work.Try(shadows_.pages()) : work.Commit();
  while (!request.dry_run && GetRefusal(swap.status()).reason == "NO_PAGES" && shadows_.DropYoungest()) {
    swap = work.Commit();
  }
  if (!swap.ok()) return NoPages(swap.status());
  const Session& cache = *session.cache;
  if (!request.dry_run) {
    ++session.generation;
    RecordAnswer(session, JournalRecord::Policy{policy});
    sessions_.Touch(session, clock_.Now());
    // What a call appends after this is another generation, and seen when it ends.
    for (auto& [_, call] : calls_) {
      if (call.session == &session) call.raised = call.blocks_are_all = false;
    }
    if (session.writer.empty()) sessions_.Publish(session);
    CountSwap(session, *swap);
    Deliver(SessionResized{.session = session.id, .pages = swap->pages_after});
    CountPages(session, cache.pages());
    CountSlots(session, cache.live_slots());
    NotePlacement(session);
    CountLoad();
  }
  return PolicyOutcome{
      .session = session.request.id, .swap = *swap, .policy = cache.policy(), .generation = session.generation};
}

void Dispatcher::Evict(const std::string& tenant, const std::string& id, std::optional<uint64_t> expected,
                       const EvictRequest& request, int64_t victims_max, Asker<EvictOutcome> asker) {
  Undertake<EvictWork, EvictOutcome>(
      tenant, id, "Evict",
      [=, this](OpenSession& session) -> absl::StatusOr<std::unique_ptr<EvictWork>> {
        EBB_TRY(CheckNoWriter(session));
        EBB_TRY(CheckGeneration(session, expected));
        EBB_TRY(CheckJournal(session));
        return engine_.BeginEvict(*session.cache, request);
      },
      [this, request, victims_max](OpenSession& session, EvictWork& work) {
        return FinishEvict(session, request, victims_max, work);
      },
      std::move(asker));
}

absl::StatusOr<EvictOutcome> Dispatcher::FinishEvict(OpenSession& session, const EvictRequest& request,
                                                     int64_t victims_max, EvictWork& work) {
  const EvictReport& report = work.report();
  if (report.slots_evicted > victims_max) {
    return RefuseField("ANSWER_TOO_LARGE", "list_victims",
                       absl::StrFormat("%d victims; at most %d can be listed", report.slots_evicted, victims_max));
  }
  if (!request.dry_run) {
    work.Commit();
    ++session.generation;
    RecordAnswer(session, JournalRecord::Evict{request});
    sessions_.Touch(session, clock_.Now());
    if (session.writer.empty()) sessions_.Publish(session);
    CountLeft(session, {.cause = EvictionCause::kEvict,
                        .length_before = report.length_before,
                        .evicted = MostLost(report.victims),
                        .evicted_slots = report.slots_evicted,
                        .loss = &report.loss,
                        .victims = report.victims});
    CountSlots(session, session.cache->live_slots());
    NotePlacement(session);
    CountLoad();
  }
  const int64_t bytes = report.slots_evicted * SlotBytes(session.cache->policy());
  return EvictOutcome{.report = report, .bytes = bytes, .generation = session.generation};
}

void Dispatcher::Describe(const std::string& tenant, const std::string& id, std::optional<int32_t> layer,
                          std::optional<int32_t> head, Asker<CacheDescription> asker) {
  Undertake<DescribeWork, CacheDescription>(
      tenant, id, "DescribeCache",
      [=, this](OpenSession& session) { return engine_.BeginDescribe(*session.cache, layer, head); },
      [this](OpenSession& session, DescribeWork& work) -> absl::StatusOr<CacheDescription> {
        AnswerFrom(session);
        return CacheDescription{.capacity = session.cache->capacity(),
                                .session_tokens = static_cast<int64_t>(session.cache->log().size()),
                                .generation = session.generation,
                                .lanes = work.Take()};
      },
      std::move(asker));
}

void Dispatcher::Save(const std::string& tenant, const std::string& id, std::optional<uint64_t> expected,
                      Asker<SaveOutcome> asker) {
  Undertake<SaveWork, SaveOutcome>(
      tenant, id, "SaveSession",
      [=, this](OpenSession& session) -> absl::StatusOr<std::unique_ptr<SaveWork>> {
        EBB_TRY(CheckNoWriter(session));
        EBB_TRY(CheckGeneration(session, expected));
        try {
          return engine_.BeginSave(*session.cache);  // which takes all the memory that it will need
        } catch (const std::bad_alloc&) {
          return NoMemoryForCopy();
        }
      },
      [this](OpenSession& session, SaveWork& work) -> absl::StatusOr<SaveOutcome> {
        try {
          EBB_ASSIGN(SaveOutcome outcome, Outline(session));
          outcome.snapshot = work.Take();
          sessions_.Touch(session, clock_.Now());
          AnswerFrom(session);
          return outcome;
        } catch (const std::bad_alloc&) {
          return NoMemoryForCopy();
        }
      },
      std::move(asker));
}

}  // namespace ebb
