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

}  // namespace
}  // namespace ebb
