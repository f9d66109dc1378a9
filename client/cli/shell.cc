#include "client/cli/shell.h"

#include <google/protobuf/util/json_util.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/unreached.h"
#include "client/error.h"

namespace ebb::cli {
namespace {

// With the delays of a RetryPolicy some twenty seconds, in which another server has taken the session of one that died
// (store.lease is 10 s unless somebody says otherwise).
constexpr int32_t kAttemptsToFollow = 10;
constexpr absl::Duration kUnexplainedWaitMax = absl::Seconds(1);

// Without a port gRPC asks 443, where no ebbd is. Its own forms of names (unix:..., dns:///...) are left to it.
bool MayHavePort(const std::string& address) {
  const size_t host_end = address.rfind(']') == std::string::npos ? 0 : address.rfind(']');
  return address.find_first_of(":/", host_end) != std::string::npos;
}

// A wait that somebody at a terminal would wonder about.
void SayWait(const grpc::Status& refused, absl::Duration wait) {
  if (wait >= kUnexplainedWaitMax) {
    std::fprintf(stderr, "ebb: %s; tried again in %s\n", client::Describe(refused).c_str(),
                 absl::FormatDuration(wait).c_str());
  }
}

}  // namespace

client::Client Shell::Connect() const {
  if (!MayHavePort(address)) {
    throw UsageError("--addr",
                     absl::StrFormat("'%s' has no port; say %s:7700 if ebbd listens where it does unless told "
                                     "otherwise",
                                     address, address));
  }
  client::ClientOptions options;
  options.address = address;
  options.tenant = tenant;
  options.retry.attempts = 3;
  options.retry.patience = ReadTime("--patience", patience);
  options.keepalive = ReadTime("--keepalive", keepalive);
  if (options.keepalive <= absl::ZeroDuration()) throw UsageError("--keepalive", keepalive + " is not above 0");
  if (!json) options.on_wait = SayWait;
  if (!follow.empty()) {
    auto servers = client::Follow::Of(follow);
    if (!servers.ok()) throw UsageError("--follow", std::string(servers.status().message()));
    options.follow = *std::move(servers);
    options.retry.attempts = kAttemptsToFollow;
    options.resume = options.retry;
  }
  auto read = client::ReadCredentials(credentials);
  if (!read.ok()) throw UsageError(std::string(read.status().message()));
  options.credentials = *std::move(read);
  return client::Client(options);
}

namespace {

void PrintError(const nlohmann::json& error) {
  const auto replace = nlohmann::json::error_handler_t::replace;
  std::fprintf(stderr, "%s\n", nlohmann::json{{"error", error}}.dump(-1, ' ', false, replace).c_str());
}

}  // namespace

bool Shell::Check(const grpc::Status& status) {
  if (status.ok()) return true;
  const client::ErrorDetails details = client::ReadDetails(status);
  // UNAVAILABLE without ErrorInfo comes from the transport, not from an ebbd.
  const bool unreachable = status.error_code() == grpc::StatusCode::UNAVAILABLE && details.reason.empty();
  exit_code = unreachable ? kUnreachable : kRefused;
  const std::string message =
      unreachable ? DescribeUnreached(address, credentials, status.error_message()) : status.error_message();
  if (json) {
    nlohmann::json error = {{"code", client::CodeName(status.error_code())}, {"message", message}};
    if (!details.reason.empty()) error["reason"] = details.reason;
    if (!details.field.empty()) error["field"] = details.field;
    if (details.retry) error["retry_seconds"] = absl::ToDoubleSeconds(*details.retry);
    if (!details.metadata.empty()) error["metadata"] = details.metadata;
    PrintError(error);
  } else if (unreachable) {
    std::fprintf(stderr, "ebb: %s\n", message.c_str());
  } else {
    std::fprintf(stderr, "ebb: %s\n", client::Describe(status).c_str());
  }
  return false;
}

void Shell::Misused(const std::string& message) {
  exit_code = kUsage;
  if (json) {
    PrintError(
        {{"code", client::CodeName(grpc::StatusCode::INVALID_ARGUMENT)}, {"reason", "USAGE"}, {"message", message}});
  } else {
    std::fprintf(stderr, "ebb: %s\n", message.c_str());
  }
}

void Shell::Failed(const std::string& code, const std::string& reason, const std::string& message) {
  exit_code = kRefused;
  if (!json) {
    std::fprintf(stderr, "ebb: %s\n", message.c_str());
    return;
  }
  nlohmann::json error = {{"code", code}, {"message", message}};
  if (!reason.empty()) error["reason"] = reason;
  PrintError(error);
}

void Shell::PrintJson(const google::protobuf::Message& message) const {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
}

std::string WhatIsWrong(const Stopped& stopped) {
  if (stopped.commands.empty()) return stopped.text;
  for (const std::string& word : stopped.unread) {
    if (word.starts_with('-')) continue;
    return absl::StrFormat("there is no command '%s'; use %s", word, absl::StrJoin(stopped.commands, ", "));
  }
  if (stopped.lacks_command) {
    return absl::StrFormat("a command is missing; use %s", absl::StrJoin(stopped.commands, ", "));
  }
  return stopped.text;
}

std::string SessionName(const std::string& typed) {
  return typed.rfind("sessions/", 0) == 0 ? typed : "sessions/" + typed;
}

Flag AddModel(Command command, std::string& model, const std::string& use) {
  return command
      .add_option("--model", model, use + ", as `ebb models` names it; default: the one that the server started with")
      .type_name("NAME");
}

absl::Duration ReadTime(const std::string& flag, const std::string& text) {
  absl::Duration time;
  const bool is_time = absl::ParseDuration(text, &time) && time < absl::InfiniteDuration();
  if (!is_time) throw UsageError(flag, text + " is not a time such as 90s or 1h30m");
  return time;
}

std::string Bytes(double bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, bytes, kUnits[unit]);
}

}  // namespace ebb::cli
