// The directory of sessions as clients see it: opened once, listed in pages, gone when their time is up.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::ElementsAreArray;
using ::testing::SizeIs;

class SessionsTest : public testing::Test {
 protected:
  static bool Exists(TestClient& client, const std::string& name) {
    v1::GetSessionRequest request;
    request.set_name(name);
    v1::Session session;
    const grpc::Status status = client.sessions().GetSession(client.Context().get(), request, &session);
    if (!status.ok()) {
      EXPECT_EQ(ReadDetails(status).reason, "UNKNOWN_SESSION");
    }
    return status.ok();
  }

  static v1::ListSessionsResponse Page(TestClient& client, uint32_t size, const std::string& token) {
    v1::ListSessionsRequest request;
    request.set_page_size(size);
    request.set_page_token(token);
    v1::ListSessionsResponse response;
    const grpc::Status status = client.sessions().ListSessions(client.Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << client::Describe(status);
    return response;
  }

  // Names of all sessions, page after page; `sizes` gets the length of each page.
  static std::vector<std::string> ListAll(TestClient& client, uint32_t page_size, std::vector<int>* sizes = nullptr) {
    std::vector<std::string> names;
    std::string token;
    do {
      const v1::ListSessionsResponse page = Page(client, page_size, token);
      for (const v1::Session& session : page.sessions()) names.push_back(session.name());
      if (sizes != nullptr) sizes->push_back(page.sessions_size());
      token = page.next_page_token();
    } while (!token.empty());
    return names;
  }

  static std::string Named(TestClient& client, const std::string& id) {
    v1::CreateSessionRequest request = SessionWith(StreamingPolicy(16), 8);
    request.set_session_id(id);
    return client.Create(request).name();
  }

  TestServer server_;
  TestClient client_{server_.address(), "acme"};
  TestClient other_{server_.address(), "other"};
};

TEST_F(SessionsTest, AreListedInPagesInTheOrderOfTheirNames) {
  std::vector<std::string> names;
  for (int i = 0; i < 25; ++i) names.push_back(Named(client_, absl::StrFormat("s%d", i * 7 % 25)));
  Named(other_, "s3");
  std::ranges::sort(names);
  std::vector<int> sizes;
  EXPECT_THAT(ListAll(client_, 10, &sizes), ElementsAreArray(names));
  EXPECT_THAT(sizes, testing::ElementsAre(10, 10, 5));
  sizes.clear();
  EXPECT_THAT(ListAll(client_, 25, &sizes), ElementsAreArray(names));
  EXPECT_THAT(sizes, testing::ElementsAre(25)) << "a full last page needs no empty one after it";
  EXPECT_THAT(ListAll(client_, 0), ElementsAreArray(names)) << "the default size";
  EXPECT_THAT(ListAll(other_, 10), SizeIs(1));
}

TEST_F(SessionsTest, ThatComeAndGoBetweenPagesMoveNobodyElse) {
  for (const char* id : {"b", "d", "f", "h", "j"}) Named(client_, id);
  const v1::ListSessionsResponse first = Page(client_, 2, "");
  ASSERT_THAT(first.sessions(), SizeIs(2));  // b, d
  Named(client_, "a");                       // before what was listed
  Named(client_, "g");                       // after it
  EXPECT_TRUE(client_.Delete("sessions/d").ok());
  EXPECT_TRUE(client_.Delete("sessions/h").ok());
  const v1::ListSessionsResponse second = Page(client_, 10, first.next_page_token());
  std::vector<std::string> rest;
  for (const v1::Session& session : second.sessions()) rest.push_back(session.name());
  EXPECT_THAT(rest, testing::ElementsAre("sessions/f", "sessions/g", "sessions/j"));
}

TEST_F(SessionsTest, OfOneRequestIdAreOne) {
  v1::CreateSessionRequest request = SessionWith(StreamingPolicy(16), 8);
  request.set_request_id("retried");
  std::vector<std::string> names(8);
  std::vector<std::thread> threads;
  for (std::string& name : names) {
    threads.emplace_back([&] { name = client_.Create(request).name(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(std::set<std::string>(names.begin(), names.end()), SizeIs(1));
  EXPECT_THAT(ListAll(client_, 10), SizeIs(1));
  EXPECT_NE(other_.Create(request).name(), names[0]) << "another tenant's request is another one";
  EXPECT_EQ(client_.Status().work().sessions(), 2U);
  EXPECT_TRUE(client_.Delete(names[0]).ok());
  EXPECT_NE(client_.Create(request).name(), names[0]) << "the first is gone";
}

// The one test here that waits: a time to live is at least a second. A session in a call outlives one that is not,
// however long the machine takes, and goes when its call has ended.
TEST_F(SessionsTest, GoWhenTheirTimeIsUpUnlessACallHoldsThem) {
  v1::CreateSessionRequest request = SessionWith(StreamingPolicy(16), 8);
  request.mutable_ttl()->set_seconds(1);
  request.set_session_id("busy");
  const std::string busy = "sessions/busy";
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> stream;
  v1::GenerateResponse message;
  do {  // on a busy machine its time may be up before its call begins
    v1::Session session;
    client_.Create(request, &session);
    context = client_.Context();
    stream = client_.inference().Generate(context.get(), GenerateText(busy, "Once", kEndless));
  } while (!stream->Read(&message));
  request.set_session_id("idle");
  const std::string idle = client_.Create(request).name();
  const std::string lasting = Named(client_, "lasting");
  std::thread reader([&] {
    while (stream->Read(&message)) continue;
  });
  while (Exists(client_, idle)) continue;
  EXPECT_TRUE(Exists(client_, busy));
  EXPECT_THAT(ListAll(client_, 10), testing::ElementsAre(busy, lasting));
  context->TryCancel();
  reader.join();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (Exists(client_, busy)) continue;
  EXPECT_TRUE(client_.Delete(lasting).ok());
  EXPECT_EQ(client_.Status().cache().pages_reserved(), 0U);
}

}  // namespace
}  // namespace ebb
