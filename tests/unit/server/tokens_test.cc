#include "server/tokens.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// SHA-256 of each, as sha256sum prints it.
constexpr char kAbc[] = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";    // of abc
constexpr char kEmpty[] = "sha256:E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855";  // of nothing
constexpr char kTest[] = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";   // of test

std::string Problem(const std::string& text) {
  const auto table = BearerTokens::Parse(text);
  EXPECT_THAT(table, IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_TOKEN_FILE", ""));
  return std::string(table.status().message());
}

TEST(Tokens, AreFoundByWhatTheyHashTo) {
  const auto table =
      BearerTokens::Parse(std::string("# who\n\nacme ") + kAbc + "\r\n  ops\t" + kTest + " admin # on call\n");
  ASSERT_THAT(table, IsOk());
  EXPECT_EQ(table->size(), 2U);
  ASSERT_NE(table->Find("abc"), nullptr);
  EXPECT_EQ(table->Find("abc")->tenant, "acme");
  EXPECT_FALSE(table->Find("abc")->admin);
  ASSERT_NE(table->Find("test"), nullptr);
  EXPECT_EQ(table->Find("test")->tenant, "ops");
  EXPECT_TRUE(table->Find("test")->admin);
  EXPECT_EQ(table->Find("abcd"), nullptr);
  EXPECT_EQ(table->Find(""), nullptr);
  EXPECT_EQ(table->Find(kAbc), nullptr) << "who reads the file is not let in by what it says";
}

TEST(Tokens, ATenantMayHaveTwo) {
  const auto table = BearerTokens::Parse(std::string("acme ") + kAbc + "\nacme " + kTest);
  ASSERT_THAT(table, IsOk());
  EXPECT_EQ(table->Find("abc")->tenant, table->Find("test")->tenant);
}

TEST(Tokens, NoneLetNobodyIn) {
  const auto table = BearerTokens::Parse("# all gone\n");
  ASSERT_THAT(table, IsOk());
  EXPECT_EQ(table->Find("abc"), nullptr);
}

TEST(Tokens, ABadLineIsNamedAndNotShown) {
  EXPECT_THAT(Problem(std::string("acme ") + kAbc + "\nAcme " + kTest),
              HasSubstr("line 2: it begins with a tenant's name"));
  EXPECT_THAT(Problem("acme secret"),
              AllOf(HasSubstr("line 1: after the tenant comes sha256:"), Not(HasSubstr("secret"))));
  EXPECT_THAT(Problem("acme"), HasSubstr("sha256:"));
  EXPECT_THAT(Problem("acme sha256:12"), HasSubstr("64"));
  EXPECT_THAT(Problem(std::string("acme ") + kAbc + "0"), HasSubstr("64"));
  EXPECT_THAT(Problem(std::string("acme ") + kAbc + " root"), HasSubstr("admin, and nothing else"));
  EXPECT_THAT(Problem(std::string("acme ") + kAbc + " admin admin"), HasSubstr("admin, and nothing else"));
  EXPECT_THAT(Problem(std::string("acme ") + kAbc + "\nops " + kAbc + " admin"), HasSubstr("line 2: a line before it"));
}

TEST(Tokens, HexadecimalMayBeUpperCase) {
  const auto table = BearerTokens::Parse(std::string("acme ") + kEmpty);
  ASSERT_THAT(table, IsOk());
  EXPECT_NE(table->Find(""), nullptr);
}

}  // namespace
}  // namespace ebb
