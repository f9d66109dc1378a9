// Any bytes as the body of a chat completion, and of a completion. A refusal names a field that the body has, or lacks;
// what is taken can be sent on; how a body is laid out, and fields that are null, change nothing; and a field that
// nobody knows is refused.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/openai_request.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

constexpr char kUnknown[] = "~";  // no field

// All that is read out of a body, or why it is refused.
std::string Describe(const absl::StatusOr<OpenAiRequest>& request) {
  if (!request.ok()) return GetRefusal(request.status()).reason + " " + std::string(request.status().message());
  const std::string flags = {request->stream ? 's' : '-', request->include_usage ? 'u' : '-',
                             request->append ? 'a' : '-'};
  return flags + request->session + "\n" + request->generate.DebugString();
}

void CheckRefusal(const absl::Status& status, const Json& body) {
  const Refusal refusal = GetRefusal(status);
  EBB_CHECK(!refusal.reason.empty());
  EBB_CHECK(!refusal.field.empty());
  EBB_CHECK(absl::StartsWith(status.message(), refusal.field));
  bool is_there = refusal.reason == "MISSING";
  for (const auto& [name, value] : body.items()) is_there = is_there || refusal.field.starts_with(name);
  EBB_CHECK(is_there);
}

void CheckBody(OpenAiRoute route, const std::string& text) {
  const auto request = OpenAiRequestFrom(route, text);
  if (!request.ok() && GetRefusal(request.status()).reason == "MALFORMED_BODY") {
    EBB_CHECK(GetRefusal(request.status()).field.empty());
    return;
  }
  Json body = Json::parse(text, nullptr, false);
  EBB_CHECK(body.is_object());
  if (request.ok()) {
    v1::GenerateRequest sent;
    EBB_CHECK(sent.ParseFromString(request->generate.SerializeAsString()));
  } else {
    CheckRefusal(request.status(), body);
  }
  EBB_CHECK(Describe(OpenAiRequestFrom(route, body.dump(1))) == Describe(request));
  if (body.contains(kUnknown)) return;
  body[kUnknown] = nullptr;
  EBB_CHECK(Describe(OpenAiRequestFrom(route, body.dump())) == Describe(request));
  body[kUnknown] = 1;
  const auto more = OpenAiRequestFrom(route, body.dump());
  EBB_CHECK(!more.ok());
  if (request.ok()) EBB_CHECK(GetRefusal(more.status()).field == kUnknown);
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  ebb::CheckBody(ebb::OpenAiRoute::kChat, text);
  ebb::CheckBody(ebb::OpenAiRoute::kCompletion, text);
  return 0;
}
