// Any bytes as a policy, in each way that clients spell one: a message of gRPC's; proto3 JSON, as the console and a
// tenant's configuration have it; JSON or a word, as the OpenAI port takes it. A refusal names a field of the policy;
// what is taken is told in full, and what is told is taken as the same, as a message and as JSON.

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/convert.h"
#include "server/policy_json.h"
#include "server/reply.h"
#include "tests/fuzz/spec_limits.h"

namespace ebb {
namespace {

using google::protobuf::util::MessageDifferencer;
using Json = nlohmann::json;

constexpr int kDepthMax = 64;  // as the OpenAI port has it

void CheckRefusal(const absl::Status& status, const std::string& field) {
  const Refusal refusal = GetRefusal(status);
  EBB_CHECK(!refusal.reason.empty());
  EBB_CHECK(refusal.field.starts_with(field));
  EBB_CHECK(absl::StartsWith(status.message(), refusal.field));
}

v1::PolicySpec Told(const v1::PolicySpec& spec) {
  const auto policy = ValidPolicyFrom(spec, FuzzedLimits());
  EBB_CHECK(policy.ok());
  return PolicyProto(*policy);
}

void CheckSpec(const v1::PolicySpec& spec) {
  const auto policy = ValidPolicyFrom(spec, FuzzedLimits());
  if (!policy.ok()) return CheckRefusal(policy.status(), "policy");
  const v1::PolicySpec told = PolicyProto(*policy);
  EBB_CHECK(MessageDifferencer::Equals(Told(told), told));
  std::string json;
  EBB_CHECK(google::protobuf::util::MessageToJsonString(told, &json).ok());
  const auto again = PolicyFromJson(Json::parse(json), "policy");
  EBB_CHECK(again.ok());
  EBB_CHECK(MessageDifferencer::Equals(Told(*again), told));
}

void CheckJson(const Json& json) {
  const auto spec = PolicyFromJson(json, "ebb.policy");
  if (!spec.ok()) return CheckRefusal(spec.status(), "ebb.policy");
  CheckSpec(*spec);
}

void CheckText(const std::string& text) {
  v1::PolicySpec spec;
  if (google::protobuf::util::JsonStringToMessage(text, &spec).ok()) CheckSpec(spec);
  bool is_deep = false;
  const auto look = [&is_deep](int depth, Json::parse_event_t /*event*/, Json& /*value*/) {
    is_deep = is_deep || depth > kDepthMax;
    return !is_deep;
  };
  const Json json = Json::parse(text, look, false);
  if (!is_deep && !json.is_discarded()) CheckJson(json);
  CheckJson(Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)));  // the bytes as a word
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::v1::PolicySpec spec;
  if (spec.ParseFromArray(data, static_cast<int>(size))) ebb::CheckSpec(spec);
  ebb::CheckText({reinterpret_cast<const char*>(data), size});
  return 0;
}
