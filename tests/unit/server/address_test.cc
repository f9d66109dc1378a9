#include "server/address.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

TEST(ParseAddress, ReadsHostsOfEveryKind) {
  for (const std::string text : {"127.0.0.1:7700", "localhost:0", "[::1]:65535", "[::]:1", "ebb-2.ebb.ns:80"}) {
    const auto address = ParseAddress(text);
    ASSERT_THAT(address, IsOk()) << text;
    EXPECT_EQ(FormatAddress(*address), text);
  }
  EXPECT_EQ(ParseAddress("[::1]:7")->host, "::1");
  EXPECT_EQ(ParseAddress("[::1]:7")->port, 7);
}

TEST(ParseAddress, RefusesWhatLacksAPartOrExceedsItsRange) {
  for (const std::string text : {"", "127.0.0.1", ":7700", "[]:7700", "::1:7700", "host:", "host:65536", "host:-1",
                                 "host:+1", "host:1 ", "ho st:1", "host:99999999999999999999", "h\n:1"}) {
    EXPECT_THAT(ParseAddress(text), IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_ADDRESS", "")) << text;
  }
}

}  // namespace
}  // namespace ebb
