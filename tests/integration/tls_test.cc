// TLS and client certificates between a real server and real clients: who gets through, who does not, and certificates
// that are replaced while a stream runs.

#include "server/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/certificates.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_server.h"

#ifdef EBB_SANITIZED
// gRPC looks names up with c-ares, whose answers of Debian 12 leak ten bytes each.
extern "C" const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier): the sanitizer's own name
extern "C" const char* __lsan_default_suppressions() { return "leak:libcares"; }
#endif

namespace ebb {
namespace {

using client::ReadDetails;

class Tls : public testing::Test {
 protected:
  Tls() {
    made_.Authority("ca");
    made_.Authority("other-ca");
    made_.Leaf("server", "ca", "localhost", "DNS:localhost");
  }

  TlsOptions Options(const std::string& client_ca = {}) const {
    return {.cert = made_.Path("server.pem"),
            .key = made_.Path("server.key"),
            .client_ca = client_ca.empty() ? "" : made_.Path(client_ca),
            .reload = absl::Milliseconds(20)};
  }

  void Start(const std::string& client_ca = {}, const AuthOptions& auth = {}) {
    server_ = std::make_unique<TestServer>([&](ServerOptions& options) {
      options.listen.host = "localhost";
      options.auth = auth;
      options.tls = Options(client_ca);
    });
  }

  // A connection of its own, that trusts `ca` and shows the certificate `own`, if any.
  std::shared_ptr<grpc::Channel> Channel(const std::string& ca, const std::string& own = {}) const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = made_.Read(ca + ".pem");
    if (!own.empty()) {
      options.pem_private_key = made_.Read(own + ".key");
      options.pem_cert_chain = made_.Read(own + ".pem");
    }
    return Channel(grpc::SslCredentials(options));
  }
  std::shared_ptr<grpc::Channel> Channel(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                         const std::string& name = {}) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    if (!name.empty()) arguments.SetSslTargetNameOverride(name);
    return grpc::CreateCustomChannel(server_->address(), credentials, arguments);
  }

  static grpc::Status Check(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    grpc::health::v1::HealthCheckResponse response;
    return grpc::health::v1::Health::NewStub(channel)->Check(&context, {}, &response);
  }

  static grpc::Status Create(const std::shared_ptr<grpc::Channel>& channel, const std::string& token,
                             v1::Session* session) {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    return v1::SessionService::NewStub(channel)->CreateSession(&context, SessionWith(StreamingPolicy(24)), session);
  }

  static void ExpectNotThrough(const std::shared_ptr<grpc::Channel>& channel) {
    EXPECT_EQ(Check(channel).error_code(), grpc::StatusCode::UNAVAILABLE);
  }

  const Certificates made_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(Tls, AClientThatTrustsTheServersAuthorityGetsThrough) {
  Start();
  const grpc::Status through = Check(Channel("ca"));
  EXPECT_TRUE(through.ok()) << through.error_message();
  v1::Session session;
  EXPECT_TRUE(Create(Channel("ca"), "", &session).ok());
  EXPECT_EQ(session.tenant(), "default");
}

TEST_F(Tls, AClientDoesNotTalkToWhomItCannotTrust) {
  Start();
  ExpectNotThrough(Channel("other-ca"));
  ExpectNotThrough(Channel(grpc::InsecureChannelCredentials()));
  ExpectNotThrough(Channel(
      grpc::SslCredentials({.pem_root_certs = made_.Read("ca.pem"), .pem_private_key = "", .pem_cert_chain = ""}),
      "example.org"));
  EXPECT_TRUE(Check(Channel("ca")).ok());
}

TEST_F(Tls, OnlyClientsWithACertificateOfTheAuthorityGetThrough) {
  made_.Leaf("acme", "ca", "acme");
  made_.Leaf("expired", "ca", "acme", "", -1);
  made_.Leaf("foreign", "other-ca", "acme");
  Start("ca.pem", {.certificate = true});
  ExpectNotThrough(Channel("ca"));
  ExpectNotThrough(Channel("ca", "expired"));
  ExpectNotThrough(Channel("ca", "foreign"));
  ExpectNotThrough(Channel(grpc::InsecureChannelCredentials()));
  const grpc::Status through = Check(Channel("ca", "acme"));
  EXPECT_TRUE(through.ok()) << through.error_message();
}

TEST_F(Tls, TheCertificateNamesTheTenant) {
  made_.Leaf("acme", "ca", "acme");
  made_.Leaf("workload", "ca", "gateway", "URI:spiffe://prod/tenant/other");
  made_.Leaf("ops", "ca", "ops", "URI:spiffe://prod/tenant/ops/admin");
  made_.Leaf("stranger", "ca", "acme", "URI:https://example.org/tenant/acme");
  made_.Leaf("two", "ca", "acme", "URI:spiffe://prod/tenant/acme,URI:spiffe://prod/tenant/ops/admin");
  Start("ca.pem", {.certificate = true});
  v1::Session session;
  ASSERT_TRUE(Create(Channel("ca", "acme"), "", &session).ok());
  EXPECT_EQ(session.tenant(), "acme");
  ASSERT_TRUE(Create(Channel("ca", "workload"), "", &session).ok());
  EXPECT_EQ(session.tenant(), "other");
  for (const std::string nameless : {"stranger", "two"}) {
    const grpc::Status refused = Create(Channel("ca", nameless), "", &session);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED) << nameless;
    EXPECT_EQ(ReadDetails(refused).reason, "NAMELESS_CERTIFICATE") << nameless;
  }
  const auto status_of = [&](const std::string& own) {
    grpc::ClientContext context;
    v1::GetStatusResponse response;
    return v1::AdminService::NewStub(Channel("ca", own))->GetStatus(&context, {}, &response).error_code();
  };
  EXPECT_EQ(status_of("acme"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(status_of("ops"), grpc::StatusCode::OK);
}

TEST_F(Tls, BothMeansBoth) {
  made_.Leaf("gateway", "ca", "Gateway");
  made_.Write("tokens", "acme sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n");  // of test
  Start("ca.pem", {.token = true, .certificate = true, .token_file = made_.Path("tokens")});
  v1::Session session;
  ExpectNotThrough(Channel("ca"));
  EXPECT_EQ(Create(Channel("ca"), "test", &session).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Create(Channel("ca", "gateway"), "", &session).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  ASSERT_TRUE(Create(Channel("ca", "gateway"), "test", &session).ok());
  EXPECT_EQ(session.tenant(), "acme") << "the token says who";
}

// The certificate is replaced by one of another authority, so that who trusts that one alone tells which is in use.
TEST_F(Tls, CertificatesAreReplacedWhileAStreamRuns) {
  Start();
  const auto channel = Channel("ca");
  v1::Session session;
  ASSERT_TRUE(Create(channel, "", &session).ok());
  grpc::ClientContext context;
  const auto stream =
      v1::InferenceService::NewStub(channel)->Generate(&context, GenerateText(session.name(), "Once", 1 << 24));
  v1::GenerateResponse message;
  ASSERT_TRUE(stream->Read(&message));
  ExpectNotThrough(Channel("other-ca"));

  made_.Leaf("server", "other-ca", "localhost", "DNS:localhost");
  const absl::Time end = absl::Now() + absl::Seconds(60);
  bool taken = false;
  while (!taken && absl::Now() < end) {
    ASSERT_TRUE(stream->Read(&message));
    taken = Check(Channel("other-ca")).ok();
  }
  EXPECT_TRUE(taken);
  ExpectNotThrough(Channel("ca"));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(stream->Read(&message)) << "it goes on";
  context.TryCancel();
  while (stream->Read(&message)) continue;
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(Tls, WhatDoesNotFitTogetherIsNotTaken) {
  const auto tls = ServerTls::Open({.cert = made_.Path("server.pem"),
                                    .key = made_.Path("server.key"),
                                    .client_ca = made_.Path("ca.pem"),
                                    .reload = absl::Hours(1)});
  ASSERT_THAT(tls, IsOk());
  const auto refuses = [&](const std::string& field) {
    const absl::Status status = TakeNow((*tls)->Read());
    EXPECT_THAT(status, IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_TLS_FILE", field));
    return std::string(status.message());
  };
  const std::string cert = made_.Read("server.pem");
  const std::string key = made_.Read("server.key");
  made_.Write("server.key", made_.Read("ca.key"));
  EXPECT_THAT(refuses("tls.key"), testing::HasSubstr("not the key of the certificate"));
  made_.Write("server.key", "-----BEGIN PRIVATE KEY-----\nno\n");
  EXPECT_THAT(refuses("tls.key"), testing::HasSubstr("no private key"));
  made_.Write("server.key", key);
  made_.Write("server.pem", cert.substr(0, cert.size() / 2));
  EXPECT_THAT(refuses("tls.cert"), testing::HasSubstr("no certificate"));
  made_.Write("server.pem", cert);
  made_.Write("ca.pem", "nobody\n");
  EXPECT_THAT(refuses("tls.client_ca"), testing::HasSubstr("no certificate"));
  made_.Authority("ca");
  EXPECT_THAT(TakeNow((*tls)->Read()), IsOk());
  made_.Leaf("server", "ca", "localhost", "DNS:localhost", -1);
  EXPECT_THAT(refuses("tls.cert"), testing::HasSubstr("the certificate ended"));
}

// A file that is copied while it is read, or to a full disk: what is left begins well.
TEST_F(Tls, AFileThatWasCutInItsChainIsNotTaken) {
  const std::string first = made_.Read("server.pem"), whole = first + made_.Read("ca.pem");
  const std::string cas = made_.Read("ca.pem") + made_.Read("other-ca.pem");
  const std::string key = made_.Read("server.key");
  const auto check = [&](const std::string& cert, const std::string& client_ca) {
    return CheckTls({.cert = cert, .key = key, .client_ca = client_ca}, true, absl::Now()).status();
  };
  // Cut before its second certificate it is one of a single certificate; the newline at its end is nobody's.
  for (size_t size = first.size() + 1; size < whole.size() - 1; ++size) {
    ASSERT_THAT(check(whole.substr(0, size), cas),
                IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_TLS_FILE", "tls.cert"))
        << whole.substr(0, size);
  }
  for (size_t size = made_.Read("ca.pem").size() + 1; size < cas.size() - 1; ++size) {
    ASSERT_THAT(check(whole, cas.substr(0, size)),
                IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_TLS_FILE", "tls.client_ca"))
        << cas.substr(0, size);
  }
  EXPECT_THAT(check(first, cas), IsOk());
  EXPECT_THAT(check(whole.substr(0, whole.size() - 1), cas.substr(0, cas.size() - 1)), IsOk());
}

TEST_F(Tls, EveryCertificateOfAFileIsRead) {
  const std::string leaf = made_.Read("server.pem"), ca = made_.Read("ca.pem"), key = made_.Read("server.key");
  const auto check = [&](const std::string& cert, const std::string& client_ca) {
    return CheckTls({.cert = cert, .key = key, .client_ca = client_ca}, true, absl::Now()).status();
  };
  // Base64 as before, but no certificate any more.
  std::string damaged = ca;
  damaged.replace(damaged.find('\n') + 1, 4, "AAAA");
  EXPECT_THAT(check(leaf + damaged, ca), IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_TLS_FILE", "tls.cert"));
  EXPECT_THAT(check(leaf, ca + damaged),
              IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_TLS_FILE", "tls.client_ca"));
  EXPECT_THAT(std::string(check(leaf, ca + damaged).message()),
              testing::HasSubstr("what follows certificate 1 is damaged"));
  // What tools write beside them is passed over, and so is a key.
  const std::string told = "subject=CN = ca\n---\nSome text\n";
  EXPECT_THAT(check(told + leaf + told + ca + told, told + ca + told), IsOk());
  EXPECT_THAT(check(key + leaf + ca, ca + key), IsOk());
}

TEST_F(Tls, AServerWithoutItsCertificateDoesNotStart) {
  TlsOptions options = Options();
  options.key = made_.Path("none.key");
  EXPECT_THAT(ServerTls::Open(options), IsRefusal(absl::StatusCode::kNotFound, "NO_TLS_FILE", "tls.key"));
  options.key = made_.Path("ca.key");
  EXPECT_THAT(ServerTls::Open(options), IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_TLS_FILE", "tls.key"));
}

}  // namespace
}  // namespace ebb
