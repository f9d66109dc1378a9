#include "client/homes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace ebb::client {
namespace {

using ::testing::HasSubstr;

constexpr char kSession[] = "sessions/s";
const grpc::Status kBroken(grpc::StatusCode::UNAVAILABLE, "connection refused");

grpc::Status Moved(const std::string& endpoint) {
  google::rpc::ErrorInfo info;
  info.set_reason("SESSION_MOVED");
  if (!endpoint.empty()) (*info.mutable_metadata())["endpoint"] = endpoint;
  google::rpc::Status rich;
  rich.add_details()->PackFrom(info);
  return {grpc::StatusCode::UNAVAILABLE, "elsewhere", rich.SerializeAsString()};
}

Homes Following(const std::vector<std::string>& servers) { return {"a:1", *Follow::Of(servers)}; }

TEST(Homes, OnlyWhoWasNamedIsFollowed) {
  struct Case {
    std::vector<std::string> follow;
    std::string endpoint;
    bool followed;
  };
  const std::vector<Case> cases = {
      {{}, "b:1", false},
      {{"b:1"}, "b:1", true},
      {{"b:1"}, "b:2", false},
      {{"b:1"}, "c:1", false},
      {{"*.x.org:1"}, "b.x.org:1", true},
      {{"*.x.org:1"}, "c.b.x.org:1", true},
      {{"*.x.org:1"}, "b.x.org:2", false},
      {{"*.x.org:1"}, "x.org:1", false},
      {{"*.x.org:1"}, "bx.org:1", false},
      {{"*.x.org:1"}, "b.x.org.evil.net:1", false},
      {{"*.x.org:1"}, "dns://evil.net/b.x.org:1", false},
      {{"*.x.org:1"}, "evil.net/.x.org:1", false},
      {{"*.x.org:1"}, "evil.net,b.x.org:1", false},
      {{"*.x.org:1"}, "unix:b.x.org:1", false},
      {{"*.x.org:1"}, ".x.org:1", false},
      {{"*.x.org:1"}, "", false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.endpoint);
    Homes homes = Following(c.follow);
    EXPECT_EQ(homes.Heed(kSession, "a:1", Moved(c.endpoint)), c.followed) << "followed at once, or as the server says";
    EXPECT_EQ(homes.Of(kSession), c.followed ? c.endpoint : "a:1");
  }
}

TEST(Homes, WhatNamesNoServerIsRefused) {
  for (const char* wrong : {"b", "*:1", "*.*:1", "b.*:1", ":1", "b:", "b:x", "a*.org:1", "*.:1", ""}) {
    SCOPED_TRACE(wrong);
    const auto follow = Follow::Of({"a:1", wrong});
    ASSERT_FALSE(follow.ok());
    EXPECT_EQ(follow.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(follow.status().message(), HasSubstr("neither host:port nor *.domain:port"));
  }
}

TEST(Homes, WhereNobodyAnswersTheNextIsAsked) {
  Homes ring = Following({"b:1", "c:1"});
  EXPECT_FALSE(ring.Heed(kSession, "a:1", kBroken)) << "not at once";
  EXPECT_EQ(ring.Of(kSession), "b:1");
  ring.Heed(kSession, "b:1", kBroken);
  EXPECT_EQ(ring.Of(kSession), "c:1");
  ring.Heed(kSession, "c:1", kBroken);
  EXPECT_EQ(ring.Of(kSession), "a:1");

  // The same list for all clients, whoever they begin with.
  Homes listed = Following({"a:1", "b:1", "b:1", "c:1"});
  listed.Heed(kSession, "a:1", kBroken);
  EXPECT_EQ(listed.Of(kSession), "b:1");
  listed.Heed(kSession, "b:1", kBroken);
  EXPECT_EQ(listed.Of(kSession), "c:1");

  Homes domain = Following({"*.x.org:1"});
  domain.Heed(kSession, "a:1", Moved("b.x.org:1"));
  domain.Heed(kSession, "b.x.org:1", kBroken);
  EXPECT_EQ(domain.Of(kSession), "a:1");

  Homes alone = Following({});
  alone.Heed(kSession, "a:1", kBroken);
  EXPECT_EQ(alone.Of(kSession), "a:1");

  Homes late = Following({"b:1"});
  late.Heed(kSession, "a:1", {grpc::StatusCode::DEADLINE_EXCEEDED, "too late"});
  EXPECT_EQ(late.Of(kSession), "a:1");
}

TEST(Homes, WhoDidNotAnswerIsNotCalledAtOnce) {
  Homes homes = Following({"b:1"});
  homes.Heed(kSession, "a:1", kBroken);
  EXPECT_FALSE(homes.Heed(kSession, "b:1", Moved("a:1")));
  EXPECT_EQ(homes.Of(kSession), "a:1");
  homes.Heard("a:1");
  homes.Heed(kSession, "a:1", Moved("b:1"));
  EXPECT_TRUE(homes.Heed(kSession, "b:1", Moved("a:1")));
}

TEST(Homes, CallsAboutNoSessionGoWhereTheyWent) {
  Homes homes = Following({"b:1"});
  homes.Heed(kSession, "a:1", Moved("b:1"));
  EXPECT_EQ(homes.Of(kSession), "b:1");
  EXPECT_EQ(homes.Of(""), "a:1");
  EXPECT_EQ(homes.Of("sessions/other"), "a:1");
  EXPECT_FALSE(homes.Heed("", "a:1", Moved("b:1")));
  EXPECT_EQ(homes.Of(""), "a:1");
}

TEST(Homes, RemembersTenThousandAndForgetsTheOldest) {
  Homes homes = Following({"b:1"});
  const auto name = [](int i) { return "sessions/" + std::to_string(i); };
  for (int i = 0; i < 10'000; ++i) homes.Heed(name(i), "a:1", Moved("b:1"));
  EXPECT_EQ(homes.Of(name(0)), "b:1");
  homes.Heed(name(0), "b:1", Moved("a:1"));  // one is back, so there is room for one
  homes.Heed(name(10'000), "a:1", Moved("b:1"));
  EXPECT_EQ(homes.Of(name(1)), "b:1");
  homes.Heed(name(10'001), "a:1", Moved("b:1"));
  EXPECT_EQ(homes.Of(name(1)), "a:1");
  EXPECT_EQ(homes.Of(name(10'001)), "b:1");
}

}  // namespace
}  // namespace ebb::client
