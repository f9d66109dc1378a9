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
  AddressLimit limit(2);
  const absl::Time now = absl::UnixEpoch();
  std::vector<OpenFile> open(4);
  for (OpenFile& each : open) each = Socket();
  EXPECT_TRUE(limit.Admits("a", open[0].get(), now));
  EXPECT_TRUE(limit.Admits("a", open[1].get(), now));
  EXPECT_FALSE(limit.Admits("a", open[2].get(), now));
  EXPECT_FALSE(limit.Admits("a", open[2].get(), now + absl::Hours(1)));
  EXPECT_TRUE(limit.Admits("b", open[3].get(), now));
}

TEST(AddressLimitTest, AClosedConnectionMakesRoomAlsoWhereItsDescriptorIsAnothers) {
  AddressLimit limit(2);
  absl::Time now = absl::UnixEpoch();
  const OpenFile kept = Socket();
  OpenFile closed = Socket();
  const int descriptor = closed.get();
  ASSERT_TRUE(limit.Admits("a", kept.get(), now));
  ASSERT_TRUE(limit.Admits("a", descriptor, now));
  closed = OpenFile();
  OpenFile next = Socket();
  ASSERT_EQ(next.get(), descriptor) << "the lowest that is free";
  EXPECT_TRUE(limit.Admits("a", descriptor, now));
  const OpenFile more = Socket();
  now += AddressLimit::kLookEvery;
  EXPECT_FALSE(limit.Admits("a", more.get(), now));
  next = OpenFile();
  EXPECT_FALSE(limit.Admits("a", more.get(), now)) << "it has just looked";
  now += AddressLimit::kLookEvery;
  EXPECT_TRUE(limit.Admits("a", more.get(), now));
}

TEST(AddressLimitTest, AddressesWithoutAConnectionAreForgottenAndOthersAreNot) {
  AddressLimit limit(1);
  const absl::Time now = absl::UnixEpoch();
  const OpenFile kept = Socket();
  ASSERT_TRUE(limit.Admits("kept", kept.get(), now));
  for (int i = 0; i < 5000; ++i) {
    const OpenFile brief = Socket();
    ASSERT_TRUE(limit.Admits(std::to_string(i), brief.get(), now));
  }
  EXPECT_LE(limit.addresses(), 1024U);
  const OpenFile another = Socket();
  EXPECT_FALSE(limit.Admits("kept", another.get(), now + absl::Hours(1)));
}

TEST(AddressLimitTest, ZeroIsAnyNumber) {
  AddressLimit limit(0);
  const OpenFile open = Socket();
  for (int i = 0; i < 10000; ++i) ASSERT_TRUE(limit.Admits("a", open.get(), absl::UnixEpoch()));
  EXPECT_EQ(limit.addresses(), 0U);
}

}  // namespace
}  // namespace ebb
