#include "client/homes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "client/error.h"

namespace ebb::client {
namespace {

constexpr size_t kSessionsMax = 10'000;  // that are remembered

// Host and port at the last colon; without one all is port.
std::pair<std::string_view, std::string_view> Split(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return {std::string_view(), address};
  return {address.substr(0, colon), address.substr(colon + 1)};
}

// Of an address that a domain may match: no scheme, no path.
bool IsHost(std::string_view host) {
  const auto inner = [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '-'; };
  return !host.empty() && absl::ascii_isalnum(host.front()) && absl::ascii_isalnum(host.back()) &&
         std::all_of(host.begin(), host.end(), inner);
}

}  // namespace

absl::StatusOr<Follow> Follow::Of(const std::vector<std::string>& servers) {
  Follow follow;
  for (const std::string& server : servers) {
    const auto [host, port] = Split(server);
    const bool domain = host.starts_with("*.");
    const std::string_view rest = domain ? host.substr(2) : host;
    const bool is_port = !port.empty() && std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
    if (!is_port || rest.empty() || rest.find('*') != std::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrFormat("'%s' is no server to follow: it is neither host:port nor *.domain:port", server));
    }
    if (domain) {
      follow.domains_.push_back({.ending = std::string(host.substr(1)), .port = std::string(port)});
    } else {
      follow.named_.push_back(server);
    }
  }
  return follow;
}

Homes::Homes(const std::string& own, const Follow& follow)
    : own_(own), ring_({own}), domains_(follow.domains_), follows_(!follow.nobody()) {
  for (const std::string& server : follow.named_) {  // each once, so that it has one successor
    if (std::find(ring_.begin(), ring_.end(), server) == ring_.end()) ring_.push_back(server);
  }
}

std::string Homes::Of(const std::string& session) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = at_.find(session);
  return found == at_.end() ? own_ : found->second;
}

void Homes::Heard(const std::string& address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  silent_.erase(address);
}

bool Homes::Heed(const std::string& session, const std::string& address, const grpc::Status& status) {
  const ErrorDetails details = ReadDetails(status);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!details.reason.empty()) silent_.erase(address);
  if (!follows_ || session.empty()) return false;
  if (details.reason == "SESSION_MOVED") {
    const auto endpoint = details.metadata.find("endpoint");
    if (endpoint == details.metadata.end() || endpoint->second == address || !MayCall(endpoint->second)) return false;
    Put(session, endpoint->second);
    return !silent_.contains(endpoint->second);
  }
  if (!details.reason.empty() || status.error_code() != grpc::StatusCode::UNAVAILABLE) return false;
  silent_.insert(address);
  const auto place = std::find(ring_.begin(), ring_.end(), address);
  const bool last = place == ring_.end() || std::next(place) == ring_.end();
  Put(session, last ? own_ : *std::next(place));
  return false;
}

bool Homes::MayCall(const std::string& address) const {
  if (std::find(ring_.begin(), ring_.end(), address) != ring_.end()) return true;
  const std::pair<std::string_view, std::string_view> parts = Split(address);  // a binding is not captured
  return IsHost(parts.first) && std::any_of(domains_.begin(), domains_.end(), [&](const auto& of) {
           return parts.second == of.port && parts.first.ends_with(of.ending);
         });
}

void Homes::Put(const std::string& session, const std::string& address) {
  if (address == own_) {
    if (at_.erase(session) > 0) order_.erase(std::find(order_.begin(), order_.end(), session));
    return;
  }
  if (!at_.insert_or_assign(session, address).second) return;
  order_.push_back(session);
  if (order_.size() <= kSessionsMax) return;
  at_.erase(order_.front());
  order_.pop_front();
}

}  // namespace ebb::client
