// What a dispatcher's sessions show for experiments.

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/dispatcher.h"

namespace ebb {
namespace {

constexpr size_t kReportsRemembered = 64;  // request_ids of a session

}  // namespace

absl::Status Dispatcher::CheckPolicy(const ValidSpec& policy) const {
  const SessionOptions options = {.policy = policy,
                                  .block_size_max = std::min(kDefaultBlockSize, engine_.step_tokens_max())};
  EBB_ASSIGN(const int64_t pages, engine_.PagesFor(options));
  const int64_t total = engine_.memory().pages_total;
  if (pages <= total) return absl::OkStatus();
  return RefuseField("SESSION_TOO_LARGE", "policy.trigger.budget",
                     absl::StrFormat("a session needs %d pages, and there are %d; use a smaller budget", pages, total));
}

void Dispatcher::BeginTrial(OpenSession& session) {
  const Assignment& assignment = *session.request.assignment;
  if (options_.experiments == nullptr || !options_.experiments->Enrol(assignment)) {
    session.request.assignment.reset();
    return;
  }
  const ArmMetrics& metrics = metrics_.arm(assignment.experiment, assignment.arm_name);
  metrics.sessions.Add();
  session.trial =
      std::make_unique<Trial>(Trial{.assignment = assignment, .metrics = &metrics, .held_since = session.created});
}

void Dispatcher::NoteMemory(OpenSession& session) const {
  if (session.trial == nullptr) return;
  const absl::Time now = clock_.Now();
  const double seconds =
      std::max(absl::ToDoubleSeconds(now - session.trial->held_since), 0.0);  // a clock may be set back
  const auto bytes = static_cast<double>(session.counted_pages * engine_.memory().page_bytes);
  session.trial->fresh.Add(TrialMetric::kReservedBytes, bytes * seconds, seconds);
  session.trial->held_since = now;
}

void Dispatcher::NoteCall(OpenSession& session, const CallTimings& timings, int32_t generated) {
  if (session.trial == nullptr || !timings.first_token) return;
  Observations& fresh = session.trial->fresh;
  fresh.Add(TrialMetric::kTimeToFirstToken, absl::ToDoubleSeconds(*timings.first_token));
  if (generated > 1) fresh.Add(TrialMetric::kInterToken, absl::ToDoubleSeconds(timings.decode), generated - 1);
}

void Dispatcher::TellTrial(OpenSession& session) {
  if (session.trial == nullptr) return;
  NoteMemory(session);
  const bool counts = options_.experiments->Add(session.trial->assignment, session.trial->fresh);
  session.trial->fresh = {};
  if (counts) return;
  session.trial.reset();
  session.request.assignment.reset();
}

void Dispatcher::EndTrial(OpenSession& session) {
  TellTrial(session);
  session.trial.reset();
  session.request.assignment.reset();
}

absl::StatusOr<std::optional<Assignment>> Dispatcher::ReportOutcome(const std::string& tenant, const std::string& id,
                                                                    const TaskOutcome& outcome) {
  EBB_ASSIGN(OpenSession * session, sessions_.Find(tenant, id));
  TellTrial(*session);  // and see whether the experiment still runs
  if (session->trial == nullptr) return std::optional<Assignment>();
  std::deque<std::string>& reports = session->trial->reports;
  const Assignment assignment = session->trial->assignment;
  if (!outcome.request_id.empty()) {
    if (std::ranges::find(reports, outcome.request_id) != reports.end()) return assignment;
    reports.push_back(outcome.request_id);
    if (reports.size() > kReportsRemembered) reports.pop_front();
  }
  if (outcome.score) {
    session->trial->fresh.Add(TrialMetric::kScore, *outcome.score);
  } else {
    session->trial->fresh.Add(TrialMetric::kThumbs, outcome.thumb_up ? 1 : 0);
  }
  TellTrial(*session);
  return assignment;
}

}  // namespace ebb
