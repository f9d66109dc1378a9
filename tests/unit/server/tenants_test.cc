#include "server/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "policies/status.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr absl::Time kNow = absl::UnixEpoch();

std::shared_ptr<const TenantTable> Table(const TenantTable& table) {
  return std::make_shared<const TenantTable>(table);
}

TEST(Quotas, EachIsRefusedUnderAReasonOfItsOwnWithItsNumbers) {
  std::set<std::string> reasons;
  for (const QuotaRow& row : kQuotas) {
    const absl::Status status = OverQuota(row.quota, "acme", {.used = 3, .wanted = 2, .limit = 4});
    SCOPED_TRACE(status);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    const Refusal refusal = GetRefusal(status);
    EXPECT_EQ(refusal.quota, "tenants/acme");
    EXPECT_FALSE(refusal.retry);
    EXPECT_THAT(refusal.metadata, ElementsAre(Pair("limit", "4"), Pair("quota", "tenants.acme." + std::string(row.key)),
                                              Pair("used", "3"), Pair("wanted", "2")));
    reasons.insert(refusal.reason);
  }
  EXPECT_EQ(reasons.size(), kQuotas.size());
}

TEST(TenantBook, CountsAgainstTheLimits) {
  Metrics metrics({});
  TenantBook book(Table({.listed = {{"acme", {.sessions_max = 2}}}}), kNow, metrics);
  TenantAccount& acme = book.Of("acme", kNow);
  EXPECT_THAT(acme.Check(Quota::kSessions, 2), IsOk());
  EXPECT_THAT(acme.Check(Quota::kSessions, 3), IsRefusal(absl::StatusCode::kResourceExhausted, "TENANT_SESSIONS", ""));
  acme.Count(Quota::kSessions, 2);
  const absl::Status over = acme.Check(Quota::kSessions, 1);
  EXPECT_EQ(over.message(), "tenant acme has 2 open sessions; 1 more is over its tenants.acme.sessions_max, 2");
  acme.Count(Quota::kSessions, -1);
  EXPECT_THAT(acme.Check(Quota::kSessions, 1), IsOk());
  EXPECT_THAT(book.Of("other", kNow).Check(Quota::kSessions, 1000), IsOk());
  EXPECT_EQ(metrics.tenant("acme").quota_used[0]->value(), 1);
  EXPECT_EQ(metrics.tenant("acme").quota_limit[0]->value(), 2);
}

TEST(TenantBook, ASmallerQuotaTakesNothingAwayAndLetsNothingIn) {
  Metrics metrics({});
  TenantBook book(Table({.listed = {{"acme", {.weight = 2, .calls_max = 4}}}}), kNow, metrics);
  TenantAccount& acme = book.Of("acme", kNow);
  acme.Count(Quota::kCalls, 4);
  std::vector<std::pair<std::string, int32_t>> told;
  book.SetTable(Table({.listed = {{"acme", {.weight = 5, .calls_max = 2}}}}), kNow,
                [&](const TenantAccount& account) { told.emplace_back(account.name(), account.limits().weight); });
  EXPECT_THAT(told, ElementsAre(Pair("acme", 5)));
  EXPECT_EQ(acme.used(Quota::kCalls), 4);
  EXPECT_FALSE(acme.Check(Quota::kCalls, 1).ok());
  acme.Count(Quota::kCalls, -2);
  EXPECT_FALSE(acme.Check(Quota::kCalls, 1).ok());
  acme.Count(Quota::kCalls, -1);
  EXPECT_THAT(acme.Check(Quota::kCalls, 1), IsOk());
  book.SetTable(Table({}), kNow, [](const TenantAccount&) {});
  EXPECT_THAT(acme.Check(Quota::kCalls, 100), IsOk()) << "no longer configured";
  EXPECT_EQ(acme.limits().weight, 1);
}

TEST(TenantBook, WhoIsNotListedHasWhatUnlistedOnesHave) {
  Metrics metrics({});
  TenantBook book(Table({.listed = {{"acme", {}}}, .unlisted = {.weight = 2, .calls_max = 1}}), kNow, metrics);
  TenantAccount& stranger = book.Of("stranger", kNow);
  EXPECT_EQ(stranger.limits().weight, 2);
  EXPECT_THAT(stranger.Check(Quota::kCalls, 1), IsOk());
  EXPECT_THAT(stranger.Check(Quota::kCalls, 2), IsRefusal(absl::StatusCode::kResourceExhausted, "TENANT_CALLS", ""));
  EXPECT_THAT(book.Of("another", kNow).Check(Quota::kCalls, 1), IsOk()) << "each has its own";
  EXPECT_THAT(book.Of("acme", kNow).Check(Quota::kCalls, 100), IsOk());
  stranger.Count(Quota::kCalls, 1);
  std::vector<std::pair<std::string, int32_t>> told;
  book.SetTable(Table({.unlisted = {.weight = 3, .calls_max = 2}}), kNow,
                [&](const TenantAccount& account) { told.emplace_back(account.name(), account.limits().weight); });
  EXPECT_THAT(told, ElementsAre(Pair("acme", 3), Pair("another", 3), Pair("stranger", 3)));
  EXPECT_THAT(stranger.Check(Quota::kCalls, 1), IsOk());
  EXPECT_FALSE(stranger.Check(Quota::kCalls, 2).ok());
}

TEST(TenantBook, TokensThatAreOwedOutliveWhatTookThem) {
  Metrics metrics({});
  TenantBook book(Table({.listed = {{"acme", {.tokens_per_minute = 60}}}}), kNow, metrics);
  book.Of("acme", kNow).TakeTokens(90, kNow);
  const absl::Status over = book.Of("acme", kNow).CheckTokens(kNow);
  EXPECT_THAT(over, IsRefusal(absl::StatusCode::kResourceExhausted, "TENANT_TOKENS", ""));
  EXPECT_EQ(GetRefusal(over).retry, absl::Seconds(31));
  EXPECT_EQ(over.message(),
            "tenant acme has 90 tokens of this minute taken; 1 more is over its tenants.acme.tokens_per_minute, 60; "
            "there is room in 31s");
  EXPECT_THAT(book.Of("acme", kNow).CheckTokens(kNow + absl::Seconds(31)), IsOk());
}

TEST(TenantBook, CountsOfSeveralModelsAreChecked) {
  Metrics metrics({});
  Metrics metrics_beside({.server = &metrics});
  const auto uses = std::make_shared<TenantUses>();
  const auto table = Table({.listed = {{"acme", {.sessions_max = 3, .tokens_per_minute = 60}}}});
  TenantBook book(table, kNow, metrics, uses);
  {
    TenantBook beside(table, kNow, metrics_beside, uses);
    beside.Of("acme", kNow).Count(Quota::kSessions, 2);
    book.Of("acme", kNow).Count(Quota::kSessions, 1);
    EXPECT_FALSE(book.Of("acme", kNow).Check(Quota::kSessions, 1).ok());
    EXPECT_FALSE(beside.Of("acme", kNow).Check(Quota::kSessions, 1).ok());
    EXPECT_EQ(metrics.tenant("acme").quota_used[0]->value(), 1) << "its own";
    beside.Of("acme", kNow).TakeTokens(90, kNow);
    EXPECT_FALSE(book.Of("acme", kNow).CheckTokens(kNow).ok());
  }
  EXPECT_EQ(book.Of("acme", kNow).used(Quota::kSessions), 1) << "what a model had is given back with it";
  EXPECT_FALSE(book.Of("acme", kNow).CheckTokens(kNow).ok()) << "what it took is taken";
  TenantBook late(Table({.listed = {{"acme", {.tokens_per_minute = 120}}}}), kNow, metrics_beside, uses);
  EXPECT_EQ(book.Of("acme", kNow).tokens_taken(kNow), 90) << "a model of another rate changes no more than that";
}

TEST(TenantUses, SnapshotsOfTenantsWithoutALabelOfTheirOwnAreShownTogether) {
  Metrics metrics({.tenants_max = 2});  // default and acme
  TenantUses uses;
  const auto shown = [&](const std::string& tenant) {
    return metrics.tenant(tenant).quota_used[static_cast<size_t>(Quota::kSnapshotBytes)]->value();
  };
  for (const auto& [tenant, bytes] : {std::pair("acme", 7), std::pair("x", 5), std::pair("y", 3), std::pair("x", 4)}) {
    uses.SetSnapshots(tenant, bytes, metrics.tenant(tenant));
  }
  EXPECT_EQ(shown("acme"), 7);
  EXPECT_EQ(shown("x"), 7) << "4 and 3";
  uses.SetSnapshots("x", 0, metrics.tenant("x"));
  EXPECT_EQ(shown("y"), 3);
}

// Names cost nothing: anybody may send any.
TEST(TenantBook, ForgetsTenantsThatHaveNothing) {
  Metrics metrics({});
  TenantBook book(Table({.listed = {{"acme", {}}}, .unlisted = {.calls_max = 4}}), kNow, metrics);
  TenantAccount& kept = book.Of("kept", kNow);
  kept.Count(Quota::kSessions, 1);
  const TenantId id = kept.id();
  for (int i = 0; i < 1000; ++i) book.Of("passer-by-" + std::to_string(i), kNow);
  EXPECT_EQ(book.Of("kept", kNow).id(), id);
  EXPECT_LE(book.size(), 130u);
}

}  // namespace
}  // namespace ebb
