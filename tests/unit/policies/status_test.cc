#include "policies/status.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

TEST(Refuse, CarriesEveryPart) {
  const absl::Status status = Refuse(absl::StatusCode::kUnavailable, "no pages: 3 free, 8 needed",
                                     {.reason = "NO_PAGES",
                                      .field = "session.budget",
                                      .retry = absl::Milliseconds(1500),
                                      .quota = "tenants/acme",
                                      .metadata = {{"free", "3"}, {"needed", "8"}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "no pages: 3 free, 8 needed");
  const Refusal refusal = GetRefusal(status);
  EXPECT_EQ(refusal.reason, "NO_PAGES");
  EXPECT_EQ(refusal.field, "session.budget");
  EXPECT_EQ(refusal.retry, absl::Milliseconds(1500));
  EXPECT_EQ(refusal.quota, "tenants/acme");
  EXPECT_THAT(refusal.metadata, ElementsAre(Pair("free", "3"), Pair("needed", "8")));
}

TEST(Refuse, LeavesAbsentPartsAbsent) {
  const Refusal refusal = GetRefusal(Refuse(absl::StatusCode::kAborted, "busy", {.reason = "SESSION_BUSY"}));
  EXPECT_EQ(refusal.reason, "SESSION_BUSY");
  EXPECT_THAT(refusal.field, IsEmpty());
  EXPECT_EQ(refusal.retry, std::nullopt);
  EXPECT_THAT(refusal.quota, IsEmpty());
  EXPECT_THAT(refusal.metadata, IsEmpty());
}

TEST(RefuseDeathTest, ARefusalIsAnErrorWithAReason) {
  EXPECT_DEATH((void)Refuse(absl::StatusCode::kOk, "", {.reason = "R"}), "broken invariant");
  EXPECT_DEATH((void)Refuse(absl::StatusCode::kAborted, "", {}), "broken invariant");
}

TEST(RefuseField, BeginsItsMessageWithTheField) {
  const absl::Status status = RefuseField("BUDGET_TOO_SMALL", "policy.trigger.budget", "3 is below 5");
  EXPECT_THAT(status, IsRefusal(absl::StatusCode::kInvalidArgument, "BUDGET_TOO_SMALL", "trigger.budget"));
  EXPECT_EQ(status.message(), "policy.trigger.budget: 3 is below 5");
}

TEST(GetRefusal, IsEmptyForAStatusFromElsewhere) {
  EXPECT_THAT(GetRefusal(absl::InternalError("disk")).reason, IsEmpty());
  EXPECT_THAT(GetRefusal(absl::OkStatus()).reason, IsEmpty());
}

TEST(AtField, PrefixesPathAndMessageAndKeepsTheRest) {
  const absl::Status inner = Refuse(absl::StatusCode::kNotFound, "scorer: no 'x'",
                                    {.reason = "UNKNOWN_SCORER", .field = "scorer", .metadata = {{"known", "h2o"}}});
  const absl::Status outer = AtField("policy", inner);
  EXPECT_EQ(outer.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(outer.message(), "policy.scorer: no 'x'");
  EXPECT_EQ(GetRefusal(outer).field, "policy.scorer");
  EXPECT_THAT(GetRefusal(outer).metadata, ElementsAre(Pair("known", "h2o")));
}

TEST(AtField, LeavesAloneWhatHasNoField) {
  const absl::Status plain = absl::InternalError("disk");
  EXPECT_EQ(AtField("policy", plain), plain);
  EXPECT_THAT(AtField("policy", absl::OkStatus()), IsOk());
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return RefuseField("ODD", "value", std::to_string(value));
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  EBB_ASSIGN(const int half, Half(value));
  EBB_ASSIGN(const int quarter, Half(half));
  return quarter;
}

absl::Status CheckQuarter(int value) {
  EBB_TRY(Quarter(value).status());
  return absl::OkStatus();
}

TEST(StatusMacros, ReturnTheFirstErrorElseGoOn) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_THAT(CheckQuarter(12), IsOk());
  EXPECT_THAT(Quarter(6), IsRefusal(absl::StatusCode::kInvalidArgument, "ODD", "value"));
  EXPECT_THAT(CheckQuarter(7), IsRefusal(absl::StatusCode::kInvalidArgument, "ODD", "value"));
}

TEST(StatusMatchers, TellCodeReasonAndFieldApart) {
  const absl::Status status = RefuseField("ODD", "value", "7");
  EXPECT_THAT(status, Not(IsOk()));
  EXPECT_THAT(absl::StatusOr<int>(7), IsOk());
  EXPECT_THAT(status, Not(IsRefusal(absl::StatusCode::kNotFound, "ODD", "value")));
  EXPECT_THAT(status, Not(IsRefusal(absl::StatusCode::kInvalidArgument, "EVEN", "value")));
  EXPECT_THAT(status, Not(IsRefusal(absl::StatusCode::kInvalidArgument, "ODD", "values")));
}

}  // namespace
}  // namespace ebb
