#include "server/trace_context.h"

#include <gtest/gtest.h>

#include <string>

namespace ebb {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kSpan = "00f067aa0ba902b7";

TEST(ParseTraceparent, ReadsBothIds) {
  for (const std::string& header :
       {"00-" + kTrace + "-" + kSpan + "-01", "00-" + kTrace + "-" + kSpan + "-00",
        "cc-" + kTrace + "-" + kSpan + "-01", "cc-" + kTrace + "-" + kSpan + "-01-what later versions add"}) {
    SCOPED_TRACE(header);
    EXPECT_EQ(ParseTraceparent(header).trace_id, kTrace);
    EXPECT_EQ(ParseTraceparent(header).span_id, kSpan);
  }
}

TEST(ParseTraceparent, TakesNothingFromAHeaderThatIsWrong) {
  const std::string zeros(32, '0');
  for (const std::string& header :
       {std::string(), std::string("00"), "00-" + kTrace + "-" + kSpan, "00-" + kTrace + "-" + kSpan + "-1",
        "00-" + kTrace + "-" + kSpan + "-01-more", "cc-" + kTrace + "-" + kSpan + "-01more",
        "ff-" + kTrace + "-" + kSpan + "-01", "0g-" + kTrace + "-" + kSpan + "-01",
        "00-" + kTrace + "-" + kSpan + "-0x", "00-" + zeros + "-" + kSpan + "-01",
        "00-" + kTrace + "-" + zeros.substr(16) + "-01", "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kSpan + "-01",
        "00_" + kTrace + "-" + kSpan + "-01", "00-" + kTrace + "_" + kSpan + "-01",
        "00-" + kTrace + "-" + kSpan + "_01", "00-" + kTrace.substr(1) + "\n-" + kSpan + "-01"}) {
    SCOPED_TRACE(header);
    EXPECT_EQ(ParseTraceparent(header).trace_id, "");
    EXPECT_EQ(ParseTraceparent(header).span_id, "");
  }
}

}  // namespace
}  // namespace ebb
