#include "client/error.h"

#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace ebb::client {
namespace {

TEST(ReadDetails, FindsReasonFieldRetryAndMetadata) {
  google::rpc::ErrorInfo info;
  info.set_reason("BUDGET_TOO_SMALL");
  (*info.mutable_metadata())["smallest"] = "69";
  google::rpc::BadRequest request;
  request.add_field_violations()->set_field("policy.trigger.budget");
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_nanos(500'000'000);
  google::rpc::Status rich;
  for (const google::protobuf::Message* detail :
       std::initializer_list<const google::protobuf::Message*>{&info, &request, &retry}) {
    rich.add_details()->PackFrom(*detail);
  }
  const grpc::Status status(grpc::StatusCode::INVALID_ARGUMENT, "too small", rich.SerializeAsString());

  const ErrorDetails details = ReadDetails(status);
  EXPECT_EQ(details.reason, "BUDGET_TOO_SMALL");
  EXPECT_EQ(details.field, "policy.trigger.budget");
  EXPECT_EQ(details.retry, absl::Milliseconds(500));
  EXPECT_EQ(details.metadata.at("smallest"), "69");
  EXPECT_EQ(Describe(status), "INVALID_ARGUMENT BUDGET_TOO_SMALL: too small (retry in 500ms)");
}

TEST(ReadDetails, IsEmptyForDetailsItCannotRead) {
  const ErrorDetails details = ReadDetails({grpc::StatusCode::INTERNAL, "x", "\xff\xff not a proto"});
  EXPECT_TRUE(details.reason.empty());
  EXPECT_FALSE(details.retry.has_value());
}

TEST(WhatCameOf, ACallThatWasSentAwayIsUnavailableAndAllElseAsItIs) {
  using grpc::Status, grpc::StatusCode;
  EXPECT_EQ(WhatCameOf({StatusCode::CANCELLED, "CANCELLED"}).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(WhatCameOf({StatusCode::CANCELLED, "CANCEL"}).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(WhatCameOf({StatusCode::CANCELLED, "the session was deleted"}).error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(WhatCameOf({StatusCode::CANCELLED, "CANCEL", "details"}).error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(WhatCameOf({StatusCode::ABORTED, "CANCEL"}).error_code(), StatusCode::ABORTED);
  EXPECT_TRUE(WhatCameOf(Status::OK).ok());
}

TEST(CodeName, NamesEveryCodeAndNumbersTheRest) {
  EXPECT_EQ(CodeName(grpc::StatusCode::OK), "OK");
  EXPECT_EQ(CodeName(grpc::StatusCode::UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_EQ(CodeName(static_cast<grpc::StatusCode>(30)), "CODE_30");
}

}  // namespace
}  // namespace ebb::client
