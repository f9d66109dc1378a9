#include "server/address_limit.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/files.h"

namespace ebb {
namespace {

sockaddr_storage Peer(const std::string& text) {
  sockaddr_storage peer = {};
  auto& v4 = reinterpret_cast<sockaddr_in&>(peer);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(peer);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr), 1) << text;
    v6.sin6_family = AF_INET6;
  }
  return peer;
}

OpenFile Socket() { return OpenFile(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

TEST(NameOfPeerTest, IsOneForAllAddressesOfOneClient) {
  EXPECT_EQ(NameOfPeer(Peer("192.0.2.7")), "192.0.2.7");
  EXPECT_EQ(NameOfPeer(Peer("::ffff:192.0.2.7")), "192.0.2.7");
  EXPECT_EQ(NameOfPeer(Peer("2001:db8:1:2:3:4:5:6")), "2001:db8:1:2::");
  EXPECT_EQ(NameOfPeer(Peer("2001:db8:1:2:ffff::1")), "2001:db8:1:2::");
  EXPECT_NE(NameOfPeer(Peer("2001:db8:1:3::1")), NameOfPeer(Peer("2001:db8:1:2::1")));
  EXPECT_EQ(NameOfPeer(Peer("::1")), "::1");
  sockaddr_storage local = {};
  local.ss_family = AF_UNIX;
  EXPECT_EQ(NameOfPeer(local), "unknown");
}

TEST(AddressLimitTest, AnAddressHasItsNumberAndTakesNoneOfAnothers) {
  AddressLimit limit({.at_once = 2});
  const absl::Time now = absl::UnixEpoch();
  std::vector<OpenFile> open(4);
  for (OpenFile& each : open) each = Socket();
  EXPECT_EQ(limit.Admit("a", open[0].get(), now), Admission::kAdmitted);
  EXPECT_EQ(limit.Admit("a", open[1].get(), now), Admission::kAdmitted);
  EXPECT_EQ(limit.Admit("a", open[2].get(), now), Admission::kTooMany);
  EXPECT_EQ(limit.Admit("a", open[2].get(), now + absl::Hours(1)), Admission::kTooMany);
  EXPECT_EQ(limit.Admit("b", open[3].get(), now), Admission::kAdmitted);
}

TEST(AddressLimitTest, AClosedConnectionMakesRoomAlsoWhereItsDescriptorIsAnothers) {
  AddressLimit limit({.at_once = 2});
  absl::Time now = absl::UnixEpoch();
  const OpenFile kept = Socket();
  OpenFile closed = Socket();
  const int descriptor = closed.get();
  ASSERT_EQ(limit.Admit("a", kept.get(), now), Admission::kAdmitted);
  ASSERT_EQ(limit.Admit("a", descriptor, now), Admission::kAdmitted);
  closed = OpenFile();
  OpenFile next = Socket();
  ASSERT_EQ(next.get(), descriptor) << "the lowest that is free";
  EXPECT_EQ(limit.Admit("a", descriptor, now), Admission::kAdmitted);
  const OpenFile more = Socket();
  now += AddressLimit::kLookEvery;
  EXPECT_EQ(limit.Admit("a", more.get(), now), Admission::kTooMany);
  next = OpenFile();
  EXPECT_EQ(limit.Admit("a", more.get(), now), Admission::kTooMany) << "it has just looked";
  now += AddressLimit::kLookEvery;
  EXPECT_EQ(limit.Admit("a", more.get(), now), Admission::kAdmitted);
}

TEST(AddressLimitTest, AddressesWithoutAConnectionAreForgottenAndOthersAreNot) {
  AddressLimit limit({.at_once = 1});
  const absl::Time now = absl::UnixEpoch();
  const OpenFile kept = Socket();
  ASSERT_EQ(limit.Admit("kept", kept.get(), now), Admission::kAdmitted);
  for (int i = 0; i < 5000; ++i) {
    const OpenFile brief = Socket();
    ASSERT_EQ(limit.Admit(std::to_string(i), brief.get(), now), Admission::kAdmitted);
  }
  EXPECT_LE(limit.addresses(), 1024U);
  const OpenFile another = Socket();
  EXPECT_EQ(limit.Admit("kept", another.get(), now + absl::Hours(1)), Admission::kTooMany);
}

TEST(AddressLimitTest, AnAddressBeginsItsNumberInAMinuteHoweverSoonTheyEnd) {
  AddressLimit limit({.begun_a_minute = 60});
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 60; ++i) {
    const OpenFile brief = Socket();
    ASSERT_EQ(limit.Admit("a", brief.get(), now), Admission::kAdmitted) << i;
  }
  const OpenFile open = Socket();
  EXPECT_EQ(limit.Admit("a", open.get(), now), Admission::kTooOften);
  EXPECT_EQ(limit.Admit("b", open.get(), now), Admission::kAdmitted);
  now += absl::Seconds(2);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(limit.Admit("a", open.get(), now), Admission::kAdmitted) << "one a second";
  EXPECT_EQ(limit.Admit("a", open.get(), now), Admission::kTooOften);
}

TEST(AddressLimitTest, WhatIsRefusedForTheirNumberHasNotBegun) {
  AddressLimit limit({.at_once = 1, .begun_a_minute = 2});
  absl::Time now = absl::UnixEpoch();
  OpenFile open = Socket();
  ASSERT_EQ(limit.Admit("a", open.get(), now), Admission::kAdmitted);
  for (int i = 0; i < 5; ++i) {
    const OpenFile more = Socket();
    EXPECT_EQ(limit.Admit("a", more.get(), now), Admission::kTooMany);
  }
  open = OpenFile();
  now += AddressLimit::kLookEvery;
  open = Socket();
  EXPECT_EQ(limit.Admit("a", open.get(), now), Admission::kAdmitted);
  EXPECT_EQ(limit.Admit("a", open.get(), now), Admission::kTooOften);
}

TEST(AddressLimitTest, WhoHasBegunManyIsNotForgottenBeforeTheyAreHadAgain) {
  AddressLimit limit({.begun_a_minute = 1});
  const absl::Time now = absl::UnixEpoch();
  const OpenFile open = Socket();
  ASSERT_EQ(limit.Admit("many", open.get(), now), Admission::kAdmitted);
  for (int i = 0; i < 5000; ++i) limit.Admit(std::to_string(i), open.get(), now);
  EXPECT_EQ(limit.Admit("many", open.get(), now), Admission::kTooOften);
  for (int i = 0; i < 10000; ++i) limit.Admit(std::to_string(i), open.get(), now + absl::Minutes(2 * i));
  EXPECT_LT(limit.addresses(), 10000U);
}

TEST(AddressLimitTest, AnotherNumberCountsForTheNextConnection) {
  AddressLimit limit({.at_once = 1});
  absl::Time now = absl::UnixEpoch();
  const OpenFile first = Socket(), second = Socket();
  ASSERT_EQ(limit.Admit("a", first.get(), now), Admission::kAdmitted);
  ASSERT_EQ(limit.Admit("a", second.get(), now), Admission::kTooMany);
  limit.SetLimits({.at_once = 2, .begun_a_minute = 1});
  EXPECT_EQ(limit.Admit("a", second.get(), now), Admission::kAdmitted);
  const OpenFile third = Socket();
  EXPECT_EQ(limit.Admit("a", third.get(), now), Admission::kTooOften);
  limit.SetLimits({.at_once = 1});
  now += AddressLimit::kLookEvery;
  EXPECT_EQ(limit.Admit("a", third.get(), now), Admission::kTooMany);
  limit.SetLimits({});
  EXPECT_EQ(limit.Admit("a", third.get(), now), Admission::kAdmitted);
}

TEST(AddressLimitTest, ZeroIsAnyNumber) {
  AddressLimit limit({});
  const OpenFile open = Socket();
  for (int i = 0; i < 10000; ++i) ASSERT_EQ(limit.Admit("a", open.get(), absl::UnixEpoch()), Admission::kAdmitted);
  EXPECT_EQ(limit.addresses(), 0U);
}

}  // namespace
}  // namespace ebb
