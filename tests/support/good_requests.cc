#include "tests/support/good_requests.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "tests/support/generic_call.h"

namespace ebb {
namespace {

using google::protobuf::Message;

const std::map<std::string, std::string> kRequests = {
    {"SessionService/CreateSession", "policy { streaming {} trigger { budget: 24 } } block_size: 8"},
    {"SessionService/ForkSession", "session: 'sessions/tale'"},
    {"SessionService/GetSession", "name: 'sessions/tale'"},
    {"SessionService/ListSessions", "page_size: 3"},
    {"SessionService/DeleteSession", "name: 'sessions/tale'"},
    {"SessionService/SaveSession", "session: 'sessions/tale' snapshot_id: 'kept'"},
    {"SessionService/RestoreSession", "snapshot: 'snapshots/kept'"},
    {"SessionService/ListSnapshots", "page_size: 3"},
    {"SessionService/DeleteSnapshot", "name: 'snapshots/kept'"},
    {"InferenceService/Prefill", "session: 'sessions/tale' prompt { text: 'a' }"},
    {"InferenceService/Decode", "session: 'sessions/tale' stopping { max_tokens: 2 }"},
    {"InferenceService/Generate",
     "prompt { text: 'a' } stopping { max_tokens: 2 } policy { streaming {} trigger { budget: 24 } } block_size: 8"},
    {"InferenceService/Verify", "session: 'sessions/tale' draft_tokens: 3"},
    {"InferenceService/Accept", "session: 'sessions/tale'"},
    {"InferenceService/Edit", "session: 'sessions/tale' spans { start: 1 end: 2 text: 'b' }"},
    {"InferenceService/Score", "target { text: 'abc' }"},
    {"InferenceService/Tokenize", "prompt { text: 'abc' }"},
    {"InferenceService/Detokenize", "ids: 65"},
    {"EvictionService/SetPolicy", "session: 'sessions/tale' policy { streaming {} trigger { budget: 24 } }"},
    {"EvictionService/Evict", "session: 'sessions/tale' older_than: 10"},
    {"EvictionService/PlanEviction",
     "rows { scores: '\\000\\000\\200\\077\\000\\000\\000\\100\\000\\000\\100\\100' } keep: 1"},
    {"EvictionService/DescribeCache", "session: 'sessions/tale'"},
    {"EvictionService/WatchEvictions", "session: 'sessions/tale'"},
    {"AdminService/GetStatus", ""},
    {"AdminService/ListModels", ""},
    {"AdminService/ListPolicies", ""},
    {"InferenceService/ReportOutcome", "session: 'sessions/tale' thumb_up: true"},
    {"AdminService/ReloadConfig", ""},
    {"AdminService/ListTenants", "page_size: 3"},
    {"AdminService/SetTenant",
     "tenant { name: 'tenants/given' weight: 2 calls_max: 5 policy { streaming {} trigger { budget: 24 } } }"},
    {"AdminService/StartExperiment",
     "experiment { name: 'ab' tenant: 'nobody' arms { name: 'a' policy { streaming {} trigger { budget: 24 } } }"
     " arms { name: 'b' policy { h2o {} trigger { budget: 24 } } } }"},
    {"AdminService/StopExperiment", "name: 'experiments/ab'"},
    {"AdminService/RampExperiment", "name: 'experiments/ab' ramp: 0.5"},
    {"AdminService/GetExperiment", "name: 'experiments/ab'"},
    {"AdminService/ListExperiments", ""},
    {"AdminService/ExportExperiment", "name: 'experiments/ab'"},
};

}  // namespace

std::string ShortName(const Method& method) { return method.name.substr(sizeof("ebb.v1.") - 1); }

std::unique_ptr<Message> GoodRequest(const Method& method) {
  std::unique_ptr<Message> request = NewRequest(*method.descriptor);
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kRequests.at(ShortName(method)), request.get()));
  return request;
}

size_t GoodRequests() { return kRequests.size(); }

RequestCaller::RequestCaller(const std::string& address, std::string tenant)
    : tenant_(std::move(tenant)), client_(address, tenant_) {
  Prepare();
  v1::SaveSessionRequest save;
  save.set_session("sessions/tale");
  save.set_snapshot_id("kept");
  v1::SaveSessionResponse saved;
  EXPECT_TRUE(client_.sessions().SaveSession(client_.Context().get(), save, &saved).ok());
}

grpc::Status RequestCaller::Call(const Method& method, const std::string& request) {
  return CallFor(method, request, ShortName(method) == "EvictionService/WatchEvictions" ? 0 : 2);
}

grpc::Status RequestCaller::CallToHear(const Method& method, const std::string& request) {
  return CallFor(method, request, 1);
}

grpc::Status RequestCaller::CallFor(const Method& method, const std::string& request, size_t messages_max) {
  const GenericAnswer answer = CallGeneric(client_.channel(), method.name, request, tenant_, messages_max);
  if (answer.status.ok() && method.descriptor->output_type() == v1::Session::descriptor()) {
    v1::Session made;
    EXPECT_TRUE(answer.messages.size() == 1 && made.ParseFromString(answer.messages[0]));
    made_ = made.name();
  }
  return answer.status;
}

void RequestCaller::Restore(const Method& method) {
  static const std::set<std::string> kReaders = {
      "GetSession",    "ListSessions",  "ListSnapshots", "Score",        "Tokenize",    "Detokenize",
      "PlanEviction",  "DescribeCache", "GetStatus",     "ListPolicies", "SaveSession", "RestoreSession",
      "CreateSession", "ForkSession",   "ListTenants",   "SetTenant",    "ListModels"};
  if (!made_.empty() && made_ != "sessions/tale") client_.Delete(made_);
  made_.clear();
  if (kReaders.contains(method.descriptor->name())) return;
  client_.Delete("sessions/tale");
  Prepare();
}

void RequestCaller::Leave() {
  v1::ListSessionsRequest request;
  v1::ListSessionsResponse list;
  request.set_page_size(1000);
  while (client_.sessions().ListSessions(client_.Context().get(), request, &list).ok() && list.sessions_size() > 0) {
    for (const v1::Session& session : list.sessions()) EXPECT_TRUE(client_.Delete(session.name()).ok());
  }
}

void RequestCaller::Prepare() {
  v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24));
  request.set_session_id("tale");
  v1::Session session;
  if (client_.Create(request, &session).ok()) client_.Prefill(PrefillText("sessions/tale", kTale));
}

}  // namespace ebb
