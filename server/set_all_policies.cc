#include "server/set_all_policies.h"

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/reply.h"

namespace ebb {
namespace {

constexpr size_t kChangesMax = 4096;  // below 1 MiB of answer

// Deletes itself.
class ChangeOfAll {
 public:
  ChangeOfAll(Worker& worker, std::string tenant, PolicyRequest change, absl::AnyInvocable<bool()> is_cancelled,
              v1::SetPolicyResponse& response, absl::AnyInvocable<void(const absl::Status&)> done)
      : worker_(worker),
        tenant_(std::move(tenant)),
        change_(std::move(change)),
        is_cancelled_(std::move(is_cancelled)),
        response_(response),
        done_(std::move(done)) {}

  void Begin() {
    worker_.Ask<std::vector<SessionInfo>>(
        [this](Dispatcher& dispatcher) -> absl::StatusOr<std::vector<SessionInfo>> {
          return dispatcher.List(tenant_, "", kChangesMax + 1);
        },
        [this](absl::StatusOr<std::vector<SessionInfo>> sessions) {
          if (!sessions.ok()) return End(sessions.status());
          if (sessions->size() > kChangesMax) {
            return End(RefuseField("ANSWER_TOO_LARGE", "all_sessions",
                                   absl::StrFormat("more than %d sessions; name them one by one", kChangesMax)));
          }
          for (const SessionInfo& session : *sessions) ids_.push_back(session.request.id);
          Next();
        });
  }

 private:
  void Next() {
    if (at_ == ids_.size()) return End(absl::OkStatus());
    if (is_cancelled_()) {
      return End(Refuse(absl::StatusCode::kCancelled, "the caller cancelled the call", {.reason = "CALL_CANCELLED"}));
    }
    worker_.Undertake<PolicyOutcome>(
        [this](Dispatcher& dispatcher, Asker<PolicyOutcome> asker) {
          dispatcher.SetPolicy(tenant_, ids_[at_], std::nullopt, change_, std::move(asker));
        },
        {.answer =
             [this](const absl::StatusOr<PolicyOutcome>& outcome) {
               const std::string reason = GetRefusal(outcome.status()).reason;
               if (reason == "QUEUE_FULL" || reason == "CALL_CANCELLED") return End(outcome.status());
               Add(outcome);
               ++at_;
               Next();
             },
         .is_gone = [this] { return is_cancelled_(); }});
  }

  void Add(const absl::StatusOr<PolicyOutcome>& outcome) {
    if (outcome.ok()) {
      *response_.add_changes() = PolicyChangeProto(*outcome, change_.dry_run);
    } else if (outcome.status().code() != absl::StatusCode::kNotFound &&
               GetRefusal(outcome.status()).reason != "SESSION_DELETED") {  // else it was deleted meanwhile
      v1::PolicyChange& kept = *response_.add_changes();
      kept.set_session("sessions/" + ids_[at_]);
      *kept.mutable_refusal() = PolicyRefusalProto(outcome.status());
    }
  }

  void End(const absl::Status& status) {
    done_(status);
    delete this;
  }

  Worker& worker_;
  const std::string tenant_;
  const PolicyRequest change_;
  absl::AnyInvocable<bool()> is_cancelled_;
  v1::SetPolicyResponse& response_;
  absl::AnyInvocable<void(const absl::Status&)> done_;
  std::vector<std::string> ids_ = {};
  size_t at_ = 0;
};

}  // namespace

void SetAllPolicies(Worker& worker, std::string tenant, PolicyRequest change, absl::AnyInvocable<bool()> is_cancelled,
                    v1::SetPolicyResponse& response, absl::AnyInvocable<void(const absl::Status&)> done) {
  (new ChangeOfAll(worker, std::move(tenant), std::move(change), std::move(is_cancelled), response, std::move(done)))
      ->Begin();
}

}  // namespace ebb
