// Which model a session's name belongs to, and who else may have it when.

#include "server/session_names.h"

#include <gtest/gtest.h>

namespace ebb {
namespace {

const SessionName kName = {"acme", "chat"};
constexpr ModelId kModel = 1, kOther = 2;

TEST(SessionNames, WhatDidNotComeWithItsModelIsFree) {
  SessionNames names;
  names.Expect(kName, kModel);
  EXPECT_FALSE(names.Claim(kName, kOther));
  names.ExpectNoMore(kModel);
  EXPECT_TRUE(names.Claim(kName, kOther));
}

TEST(SessionNames, WhatAModelLostWhileItWasLoadedIsStillItsOwn) {
  SessionNames names;
  names.Expect(kName, kModel);
  ASSERT_TRUE(names.Claim(kName, kModel));
  names.ExpectBack(kName, kModel);
  names.ExpectNoMore(kModel);
  EXPECT_FALSE(names.Claim(kName, kOther));
  EXPECT_TRUE(names.Claim(kName, kModel));
  EXPECT_FALSE(names.Claim(kName, kModel)) << "it is back";
}

}  // namespace
}  // namespace ebb
