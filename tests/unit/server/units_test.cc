#include "server/units.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>

namespace ebb {
namespace {

TEST(ParseSize, ReadsWholeNumbersWithBinaryUnits) {
  EXPECT_EQ(ParseSize("0"), 0u);
  EXPECT_EQ(ParseSize("4096"), 4096u);
  EXPECT_EQ(ParseSize("64KiB"), 65536u);
  EXPECT_EQ(ParseSize("4MiB"), 4194304u);
  EXPECT_EQ(ParseSize("2GiB"), 2147483648u);
  EXPECT_EQ(ParseSize("1TiB"), 1099511627776u);
}

TEST(ParseSize, RefusesEverythingElse) {
  for (const std::string text : {"", "KiB", "-1", "+1", "1.5GiB", "4MB", "4M", "4 MiB", "4mib", "0x10", "1KiBKiB",
                                 "18446744073709551616", "16777216TiB"}) {
    EXPECT_EQ(ParseSize(text), std::nullopt) << text;
  }
}

TEST(FormatSize, IsReadBack) {
  EXPECT_EQ(FormatSize(0), "0");
  EXPECT_EQ(FormatSize(4194304), "4MiB");
  for (const uint64_t bytes :
       {uint64_t{1}, uint64_t{1023}, uint64_t{1} << 40, uint64_t{3} << 29, std::numeric_limits<uint64_t>::max()}) {
    EXPECT_EQ(ParseSize(FormatSize(bytes)), bytes);
  }
}

TEST(ParseTime, ReadsFiniteTimesWithUnits) {
  EXPECT_EQ(ParseTime("250ms"), absl::Milliseconds(250));
  EXPECT_EQ(ParseTime("1m30s"), absl::Seconds(90));
  EXPECT_EQ(ParseTime("0"), absl::ZeroDuration());
  for (const std::string text : {"", "30", "-1s", "inf", "-inf", "1d", "s", "1 s", "9999999999999999h"}) {
    EXPECT_EQ(ParseTime(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace ebb
