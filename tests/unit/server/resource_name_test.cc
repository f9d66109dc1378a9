#include "server/resource_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ebb {
namespace {

TEST(IsResourceName, FollowsItsPattern) {
  for (const std::string& name :
       std::vector<std::string>{"a", "0", "default", "eu.acme-1", "a_b", std::string(63, 'x')}) {
    EXPECT_TRUE(IsResourceName(name)) << name;
  }
  for (const std::string& name : std::vector<std::string>{"", "-a", ".a", "_a", "A", "aB", "a b", "a/b", "\xC3\xBC",
                                                          std::string(64, 'x'), std::string("a\0", 2)}) {
    EXPECT_FALSE(IsResourceName(name)) << name;
  }
}

// The test vectors of the hash's authors (Fowler, Noll, Vo).
TEST(SeedFor, IsTheHashOfTheName) {
  EXPECT_EQ(SeedFor(""), 0xCBF29CE484222325U);
  EXPECT_EQ(SeedFor("a"), 0xAF63DC4C8601EC8CU);
  EXPECT_EQ(SeedFor("foobar"), 0x85944171F73967E8U);
}

}  // namespace
}  // namespace ebb
