#include "server/address.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int kPortMax = 65535;

absl::Status Bad(std::string_view text, std::string_view what) {
  return Refuse(absl::StatusCode::kInvalidArgument,
                absl::StrFormat("'%s' is no address: %s; for example 127.0.0.1:7700", text, what),
                {.reason = "BAD_ADDRESS"});
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

absl::StatusOr<Address> ParseAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Bad(text, "it lacks a :port");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return Bad(text, "an IPv6 host needs brackets, [::1]:7700");
  }
  if (host.empty()) return Bad(text, "it lacks a host (every interface is 0.0.0.0)");
  if (std::any_of(host.begin(), host.end(), [](unsigned char c) { return c <= ' ' || c >= 0x7F; })) {
    return Bad(text, "its host has characters that no host has");
  }
  int port = -1;
  const bool numeric = !digits.empty() && std::all_of(digits.begin(), digits.end(), IsDigit);
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (!numeric || end.ec != std::errc() || port > kPortMax) return Bad(text, "its port is not in 0..65535");
  return Address{.host = std::string(host), .port = port};
}

std::string FormatAddress(const Address& address) {
  if (address.host.find(':') == std::string::npos) return absl::StrFormat("%s:%d", address.host, address.port);
  return absl::StrFormat("[%s]:%d", address.host, address.port);
}

}  // namespace ebb
