#include "server/grpc_status.h"

#include <gmock/gmock.h>

#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "policies/status.h"

namespace ebb {
namespace {

using testing::IsEmpty;
using testing::Pair;
using testing::StartsWith;
using testing::UnorderedElementsAre;

google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

// The details' one message of type T; REQUIRES that there is one.
template <typename T>
T Detail(const grpc::Status& status) {
  const google::rpc::Status details = Details(status);
  T found;
  int count = 0;
  for (const auto& any : details.details()) count += any.UnpackTo(&found) ? 1 : 0;
  EXPECT_EQ(count, 1) << T::descriptor()->full_name();
  return found;
}

TEST(ToGrpc, KeepsEveryCode) {
  for (int code = 1; code <= 16; ++code) {
    SCOPED_TRACE(code);
    const grpc::Status status = ToGrpc(absl::Status(static_cast<absl::StatusCode>(code), "what"));
    EXPECT_EQ(status.error_code(), code);
    EXPECT_EQ(status.error_message(), "what");
    EXPECT_EQ(Details(status).code(), code);
    EXPECT_EQ(Details(status).message(), "what");
  }
}

TEST(ToGrpc, IsOkWithoutDetailsForOk) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_THAT(ToGrpc(absl::OkStatus()).error_details(), IsEmpty());
}

TEST(ToGrpc, CarriesEveryPartOfARefusal) {
  const grpc::Status status = ToGrpc(Refuse(absl::StatusCode::kUnavailable, "no pages",
                                            {.reason = "NO_PAGES",
                                             .field = "session.budget",
                                             .retry = absl::Milliseconds(1500),
                                             .quota = "tenants/acme",
                                             .metadata = {{"free", "3"}, {"needed", "8"}}}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  const auto info = Detail<google::rpc::ErrorInfo>(status);
  EXPECT_EQ(info.reason(), "NO_PAGES");
  EXPECT_EQ(info.domain(), "ebb");
  EXPECT_THAT(info.metadata(), UnorderedElementsAre(Pair("free", "3"), Pair("needed", "8")));
  const auto request = Detail<google::rpc::BadRequest>(status);
  ASSERT_EQ(request.field_violations_size(), 1);
  EXPECT_EQ(request.field_violations(0).field(), "session.budget");
  EXPECT_EQ(request.field_violations(0).description(), "no pages");
  const auto retry = Detail<google::rpc::RetryInfo>(status);
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 500000000);
  const auto quota = Detail<google::rpc::QuotaFailure>(status);
  ASSERT_EQ(quota.violations_size(), 1);
  EXPECT_EQ(quota.violations(0).subject(), "tenants/acme");
}

TEST(ToGrpc, AddsTheTraceToAnErrorOnly) {
  const grpc::Status status = ToGrpc(RefuseField("MISSING", "evict", "what"), "4bf9");
  EXPECT_THAT(Detail<google::rpc::ErrorInfo>(status).metadata(), UnorderedElementsAre(Pair("trace_id", "4bf9")));
  EXPECT_THAT(ToGrpc(absl::OkStatus(), "4bf9").error_details(), IsEmpty());
}

TEST(ToGrpc, NamesTheCodeAsReasonWhereNobodyRefused) {
  const grpc::Status status = ToGrpc(absl::DataLossError("offset 7"));
  EXPECT_EQ(Detail<google::rpc::ErrorInfo>(status).reason(), "DATA_LOSS");
  EXPECT_EQ(Details(status).details_size(), 1);
}

TEST(ToGrpc, StaysBelowTheMetadataLimitWhateverARequestHeld) {
  const std::string bytes(100000, '\xFF');
  Refusal refusal = {.reason = "R", .field = bytes, .retry = absl::Seconds(1), .quota = bytes};
  for (int i = 0; i < 100; ++i) refusal.metadata[std::to_string(i) + bytes] = bytes;
  const grpc::Status status = ToGrpc(Refuse(absl::StatusCode::kNotFound, bytes, refusal));
  EXPECT_LT(status.error_message().size() * 3 + status.error_details().size() * 4 / 3, 8000u);
  EXPECT_THAT(status.error_message(), StartsWith("\xEF\xBF\xBD"));
  EXPECT_EQ(Detail<google::rpc::ErrorInfo>(status).metadata_size(), 8);
}

}  // namespace
}  // namespace ebb
