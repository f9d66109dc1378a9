// Who may call what: every method of every service, with no credential, a wrong one, another tenant's, and an admin's.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/error.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/certificate_caller.h"
#include "server/identity.h"
#include "server/services.h"
#include "tests/support/request_mutations.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using google::protobuf::Descriptor;
using ::testing::HasSubstr;
using ::testing::Not;
using Metadata = std::vector<std::pair<std::string, std::string>>;

// What sha256sum makes of the tokens acme-1, acme-2, other-1 and ops-1.
constexpr char kAcme[] = "7974d1de1641df0234e124a5d0f4acfacfc40c99ea69f0295f943074816d1091";
constexpr char kAcmeNext[] = "89683d3644595c8bdbd401e8dc978888cda6f2a5b35edb9ce2dbce87d3f6d239";
constexpr char kOther[] = "872591573ccfca41c2364bb39adf6040e1b7ddc3f9f9155f05fa54b9f73880ae";
constexpr char kOps[] = "81df83b16fd9c8888b6f555bf83d48575bda41d58115f2e4276bc57b01a892a3";

std::string Lines(const std::string& acme) {
  return acme + "other sha256:" + kOther + "\nops sha256:" + kOps + " admin\n";
}
std::string AcmeLine(const char* digest) { return std::string("acme sha256:") + digest + "\n"; }

Metadata Token(const std::string& token) { return {{"authorization", "Bearer " + token}}; }

// "ebb.v1.SessionService", of every file in proto/ebb/v1 that says `service`.
std::set<std::string> ServicesInProtoFiles() {
  std::set<std::string> services;
  for (const auto& entry : std::filesystem::directory_iterator(EBB_PROTO_DIR "/ebb/v1")) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" {"), absl::SkipEmpty());
      if (words.size() > 1 && words[0] == "service") services.insert("ebb.v1." + words[1]);
    }
  }
  return services;
}

class Auth : public testing::Test {
 protected:
  Auth() { WriteTokens(Lines(AcmeLine(kAcme))); }

  void WriteTokens(const std::string& text) const {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }

  void Start(bool reflection = false) {
    server_.reset();  // it holds the store
    server_ = std::make_unique<TestServer>([&](ServerOptions& options) {
      options.auth = {.token = true, .token_file = path_, .reload = absl::Milliseconds(20)};
      options.http_listen = Address{.host = "127.0.0.1", .port = 0};
      if (keeps_snapshots_) options.store_dir = folder_.path() + "/store";
      if (reflection) options.reflection = true;
    });
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
  }

  // Any call, its request in bytes. One message of the answer is read: only what is refused, or unary, ends.
  grpc::Status Call(const std::string& method, const std::string& request, const Metadata& metadata) const {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
    grpc::CompletionQueue queue;
    const auto next = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      EXPECT_TRUE(queue.Next(&tag, &ok));
    };
    const auto call = stub.PrepareCall(&context, "/" + method, &queue);
    call->StartCall(nullptr);
    next();
    grpc::Slice slice(request);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    next();
    grpc::ByteBuffer answer;  // unread, it would hold the end back
    call->Read(&answer, nullptr);
    next();
    grpc::Status status;
    call->Finish(&status, nullptr);
    next();
    return status;
  }

  // acme has a session of that name, and a snapshot.
  void StartWithTale() {
    Start();
    v1::CreateSessionRequest create = SessionWith(StreamingPolicy(24));
    create.set_session_id("tale");
    ASSERT_TRUE(Call("ebb.v1.SessionService/CreateSession", create.SerializeAsString(), Token("acme-1")).ok());
    v1::SaveSessionRequest save;
    save.set_session("sessions/tale");
    ASSERT_TRUE(Call("ebb.v1.SessionService/SaveSession", save.SerializeAsString(), Token("acme-1")).ok());
  }

  // To others acme's and one that there is not are the same. `requests`: of each method that takes one, as `takes_one`
  // says; the one stands for NAME.
  void ExpectNoneAtAll(const std::map<std::string, std::string>& requests,
                       const std::function<bool(const std::string& method, const Descriptor& input)>& takes_one) const {
    size_t found = 0;
    for (const auto& [method, descriptor] : AllMethods()) {
      const std::string name = method.substr(sizeof("ebb.v1.") - 1);
      SCOPED_TRACE(name);
      ASSERT_EQ(requests.contains(name), takes_one(name, *descriptor->input_type()))
          << "say what a request of it looks like";
      if (!requests.contains(name)) continue;
      ++found;
      const auto ask = [&](const std::string& named, const std::string& token) {
        const std::unique_ptr<google::protobuf::Message> request = NewRequest(*descriptor);
        EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
            absl::StrReplaceAll(requests.at(name), {{"NAME", named}}), request.get()));
        return Call(method, request->SerializeAsString(), Token(token));
      };
      const grpc::Status foreign = ask("tale", "other-1");
      const grpc::Status unknown = ask("none", "other-1");
      EXPECT_EQ(foreign.error_code(), grpc::StatusCode::NOT_FOUND) << foreign.error_message();
      EXPECT_EQ(foreign.error_message(), absl::StrReplaceAll(unknown.error_message(), {{"none", "tale"}}));
      EXPECT_EQ(foreign.error_code(), unknown.error_code());
      EXPECT_EQ(absl::StrReplaceAll(foreign.error_details(), {{"tale", "none"}}), unknown.error_details());
      EXPECT_EQ(ask("tale", "ops-1").error_code(), grpc::StatusCode::NOT_FOUND) << "an admin is of a tenant, too";
    }
    EXPECT_EQ(found, requests.size());
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/tokens";
  bool keeps_snapshots_ = true;  // the next server
  std::unique_ptr<TestServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// What follows, and the tests of limits and of hostile requests, try the methods of these.
TEST_F(Auth, NoServiceOfAProtoFileIsMissed) {
  std::set<std::string> services;
  for (const auto* const service : AllServices()) services.insert(service->full_name());
  EXPECT_EQ(services, ServicesInProtoFiles());
}

// Also of a server that would refuse some of them to anybody: without a store there are no snapshots.
TEST_F(Auth, EveryMethodIsClosedToWhoShowsNothing) {
  ASSERT_GT(AllMethods().size(), 20U);
  for (const bool keeps_snapshots : {true, false}) {
    keeps_snapshots_ = keeps_snapshots;
    Start();
    for (const auto& [method, descriptor] : AllMethods()) {
      SCOPED_TRACE(method + (keeps_snapshots ? "" : ", without a store"));
      const grpc::Status status = Call(method, "", {});
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
      EXPECT_EQ(ReadDetails(status).reason, "NO_CREDENTIAL");
      EXPECT_EQ(Call(method, "", {{"x-ebb-tenant", "acme"}}).error_code(), grpc::StatusCode::UNAUTHENTICATED);
    }
    EXPECT_EQ(server_->Metric("ebb_auth_failures_total{reason=\"NO_CREDENTIAL\"}"), 2.0 * AllMethods().size());
  }
}

TEST_F(Auth, EveryMethodIsClosedToWhoShowsSomethingElse) {
  const std::vector<Metadata> wrong = {Token("acme-2"),
                                       Token(""),
                                       Token("acme-1 "),
                                       Token(kAcme),
                                       Token(std::string("sha256:") + kAcme),
                                       {{"authorization", "acme-1"}},
                                       {{"authorization", "Basic acme-1"}},
                                       {{"authorization", "Bearer acme-1"}, {"authorization", "Bearer acme-1"}}};
  for (const bool keeps_snapshots : {true, false}) {
    keeps_snapshots_ = keeps_snapshots;
    Start();
    for (const auto& [method, descriptor] : AllMethods()) {
      for (const Metadata& metadata : wrong) {
        SCOPED_TRACE(method + " " + metadata[0].second + (keeps_snapshots ? "" : ", without a store"));
        const grpc::Status status = Call(method, "", metadata);
        EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
        EXPECT_EQ(ReadDetails(status).reason, "BAD_CREDENTIAL");
        EXPECT_THAT(status.error_message(), Not(HasSubstr("acme-1")));
      }
    }
  }
}

TEST_F(Auth, EveryMethodHasARoleAndAdminsMethodsAreForAdmins) {
  Start();
  int admins = 0;
  for (const auto& [method, descriptor] : AllMethods()) {
    SCOPED_TRACE(method);
    const Role role = RoleFor(method.substr(sizeof("ebb.v1.") - 1));
    ASSERT_NE(role, Role::kNobody) << "add it to the table of server/identity.cc";
    if (descriptor->server_streaming() && role != Role::kAdmin) continue;  // some of them would not end
    const grpc::Status status = Call(method, "", Token("acme-1"));
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    if (role == Role::kAdmin) {
      ++admins;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
      EXPECT_EQ(ReadDetails(status).reason, "ADMIN_ONLY");
      const grpc::StatusCode admins_code = Call(method, "", Token("ops-1")).error_code();
      EXPECT_NE(admins_code, grpc::StatusCode::PERMISSION_DENIED);
      EXPECT_NE(admins_code, grpc::StatusCode::UNAUTHENTICATED);
    } else {
      EXPECT_NE(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    }
  }
  EXPECT_GT(admins, 0);
  const Caller admin = {.tenant = "ops", .admin = true};
  for (const std::string unknown : {"AdminService/NoSuchMethod", "GetStatus", ""}) {
    EXPECT_THAT(Allow(unknown, admin), IsRefusal(absl::StatusCode::kPermissionDenied, "CLOSED_METHOD", "")) << unknown;
  }
}

TEST_F(Auth, HealthIsOpenAndReflectionOnlyWhereItIsAskedFor) {
  constexpr char kReflection[] = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  for (const bool reflection : {false, true}) {
    Start(reflection);
    const auto health = grpc::health::v1::Health::NewStub(channel_);
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    EXPECT_TRUE(health->Check(&context, {}, &response).ok());
    EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
    const grpc::Status reflected = Call(kReflection, "", {});
    EXPECT_EQ(reflected.error_code() == grpc::StatusCode::UNIMPLEMENTED, !reflection) << reflected.error_message();
  }
}

// gRPC answers these calls itself, so what orders its threads there is seen by the thread sanitizer only if it is told.
TEST_F(Auth, AMethodThatThereIsNotIsRefusedToAsManyAsAsk) {
  Start();
  std::vector<std::thread> callers;
  std::atomic<int> refused = 0;
  for (const std::string caller : {"acme-1", "other-1", "acme-2", "nobody"}) {
    callers.emplace_back([&, caller] {
      for (int call = 0; call < 100; ++call) {
        const grpc::Status status = Call("ebb.v1.SessionService/NoSuchMethod", "", Token(caller));
        if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) ++refused;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(refused, 400);
}

// Another tenant's, and one that there is not: the same answer from every method that takes one.
TEST_F(Auth, AnotherTenantsSessionIsNoneAtAll) {
  StartWithTale();
  ExpectNoneAtAll(
      {
          {"SessionService/ForkSession", "session: 'sessions/NAME'"},
          {"SessionService/GetSession", "name: 'sessions/NAME'"},
          {"SessionService/DeleteSession", "name: 'sessions/NAME'"},
          {"SessionService/SaveSession", "session: 'sessions/NAME'"},
          {"InferenceService/Prefill", "session: 'sessions/NAME' prompt { text: 'a' }"},
          {"InferenceService/Decode", "session: 'sessions/NAME' stopping { max_tokens: 1 }"},
          {"InferenceService/Generate", "session: 'sessions/NAME' prompt { text: 'a' } stopping { max_tokens: 1 }"},
          {"InferenceService/Verify", "session: 'sessions/NAME' draft_tokens: 3"},
          {"InferenceService/Accept", "session: 'sessions/NAME' count: 1"},
          {"InferenceService/Edit", "session: 'sessions/NAME' spans { start: 0 end: 1 }"},
          {"InferenceService/ReportOutcome", "session: 'sessions/NAME' score: 1"},
          {"EvictionService/SetPolicy", "session: 'sessions/NAME' policy { streaming {} trigger { budget: 24 } }"},
          {"EvictionService/Evict", "session: 'sessions/NAME' older_than: 1"},
          {"EvictionService/DescribeCache", "session: 'sessions/NAME'"},
          {"EvictionService/WatchEvictions", "session: 'sessions/NAME'"},
      },
      [](const std::string& method, const Descriptor& input) {
        return input.FindFieldByName("session") != nullptr || method == "SessionService/GetSession" ||
               method == "SessionService/DeleteSession";
      });
  v1::GetSessionRequest get;
  get.set_name("sessions/tale");
  EXPECT_TRUE(Call("ebb.v1.SessionService/GetSession", get.SerializeAsString(), Token("acme-1")).ok()) << "still there";
}

TEST_F(Auth, AnotherTenantsSnapshotIsNoneAtAll) {
  StartWithTale();
  ExpectNoneAtAll({{"SessionService/RestoreSession", "snapshot: 'snapshots/NAME'"},
                   {"SessionService/DeleteSnapshot", "name: 'snapshots/NAME'"}},
                  [](const std::string& method, const Descriptor& input) {
                    return input.FindFieldByName("snapshot") != nullptr || method == "SessionService/DeleteSnapshot";
                  });
  v1::RestoreSessionRequest restore;
  restore.set_snapshot("snapshots/tale");
  EXPECT_TRUE(Call("ebb.v1.SessionService/RestoreSession", restore.SerializeAsString(), Token("acme-1")).ok())
      << "still there";
}

TEST_F(Auth, TheTenantIsTheCredentials) {
  Start();
  TestClient open(server_->address());
  const auto create = [&](Metadata metadata, v1::Session* session) {
    grpc::ClientContext context;
    for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
    return open.sessions().CreateSession(&context, SessionWith(StreamingPolicy(24)), session);
  };
  v1::Session session;
  ASSERT_TRUE(create(Token("acme-1"), &session).ok());
  EXPECT_EQ(session.tenant(), "acme");
  Metadata same = Token("acme-1");
  same.emplace_back("x-ebb-tenant", "acme");
  EXPECT_TRUE(create(same, &session).ok());
  Metadata other = Token("acme-1");
  other.emplace_back("x-ebb-tenant", "other");
  const grpc::Status refused = create(other, &session);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ReadDetails(refused).reason, "OTHER_TENANT");
}

// A token is changed for another without a moment in which neither counts.
TEST_F(Auth, TokensAreReplacedWhileTheServerRuns) {
  Start();
  constexpr char kMethod[] = "ebb.v1.AdminService/ListPolicies";
  const auto is_let_in = [&](const std::string& token) { return Call(kMethod, "", Token(token)).ok(); };
  const auto wait_until = [&](const std::string& token, bool let_in) {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (is_let_in(token) != let_in && absl::Now() < end) absl::SleepFor(absl::Milliseconds(10));
    return is_let_in(token) == let_in;
  };
  EXPECT_TRUE(is_let_in("acme-1"));
  EXPECT_FALSE(is_let_in("acme-2"));
  WriteTokens(Lines(AcmeLine(kAcme) + AcmeLine(kAcmeNext)));
  EXPECT_TRUE(wait_until("acme-2", true));
  EXPECT_TRUE(is_let_in("acme-1")) << "both count";
  WriteTokens(Lines(AcmeLine(kAcmeNext)));
  EXPECT_TRUE(wait_until("acme-1", false));
  EXPECT_TRUE(is_let_in("acme-2"));
}

TEST_F(Auth, ABadFileLeavesTheTokensAsTheyAre) {
  const auto identity = Identity::Open({.token = true, .token_file = path_, .reload = absl::Hours(1)});
  ASSERT_THAT(identity, IsOk());
  const auto is_let_in = [&](const std::string& token) { return (*identity)->CallerOfToken("bearer " + token).ok(); };
  EXPECT_TRUE(is_let_in("acme-1"));
  WriteTokens("acme acme-1\n");
  EXPECT_THAT(TakeNow((*identity)->Read()),
              IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_TOKEN_FILE", "auth.token_file"));
  EXPECT_TRUE(is_let_in("acme-1"));
  std::filesystem::remove(path_);
  EXPECT_THAT(TakeNow((*identity)->Read()), IsRefusal(absl::StatusCode::kNotFound, "NO_TOKEN_FILE", "auth.token_file"));
  EXPECT_TRUE(is_let_in("acme-1"));
  WriteTokens("# nobody\n");
  EXPECT_THAT(TakeNow((*identity)->Read()), IsOk());
  EXPECT_FALSE(is_let_in("acme-1"));
}

TEST_F(Auth, AServerWithoutItsTokensDoesNotStart) {
  WriteTokens("acme\n");
  EXPECT_THAT(Identity::Open({.token = true, .token_file = path_}),
              IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_TOKEN_FILE", "auth.token_file"));
  EXPECT_THAT(Identity::Open({.token = true, .token_file = path_ + ".none"}),
              IsRefusal(absl::StatusCode::kNotFound, "NO_TOKEN_FILE", "auth.token_file"));
}

TEST(CallerOfCertificate, IsWhomItsUriNamesElseItsCommonName) {
  using Names = std::vector<std::string>;
  const auto tenant = [](const Names& uris, const Names& common_names) {
    const auto caller = CallerOfCertificate(uris, common_names);
    if (caller.ok()) return caller->tenant + (caller->admin ? " admin" : "");
    EXPECT_EQ(GetRefusal(caller.status()).reason, "NAMELESS_CERTIFICATE");
    return std::string();
  };
  EXPECT_EQ(tenant({}, {"acme"}), "acme");
  EXPECT_EQ(tenant({"spiffe://prod/tenant/acme"}, {"gateway"}), "acme");
  EXPECT_EQ(tenant({"spiffe://prod/tenant/ops/admin"}, {}), "ops admin");
  EXPECT_EQ(tenant({}, {"acme/admin"}), "") << "a common name makes no admin";
  EXPECT_EQ(tenant({}, {}), "");
  EXPECT_EQ(tenant({}, {"acme", "other"}), "");
  EXPECT_EQ(tenant({}, {"Acme Inc"}), "");
  EXPECT_EQ(tenant({"spiffe://prod/tenant/acme", "spiffe://prod/tenant/other"}, {"acme"}), "") << "which of them?";
  EXPECT_EQ(tenant({"https://example.org/tenant/acme"}, {"acme"}), "")
      << "a URI that is none of ours does not fall back";
  EXPECT_EQ(tenant({"spiffe:///tenant/acme"}, {"acme"}), "");
  EXPECT_EQ(tenant({"spiffe://prod/ns/tenant/acme"}, {"acme"}), "");
  EXPECT_EQ(tenant({"spiffe://prod/tenant/acme/admin/admin"}, {"acme"}), "");
  EXPECT_EQ(tenant({"spiffe://prod/tenant//admin"}, {"acme"}), "");
}

}  // namespace
}  // namespace ebb
