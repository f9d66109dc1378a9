// Any bytes as a name, and as the names of a client certificate: the first byte says how many of the lines that follow
// are URIs, the others are common names. What is taken as a name is what the pattern says that refusals show, and whom
// a certificate names is that name, an admin only where a URI ends with it.

#include <algorithm>
#include <cstdint>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "policies/check.h"
#include "server/certificate_caller.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

void CheckName(std::string_view name) {
  static const std::regex pattern(kResourceNamePattern);
  EBB_CHECK(IsResourceName(name) == std::regex_match(name.begin(), name.end(), pattern));
}

void CheckCertificate(std::span<const std::string> uris, std::span<const std::string> common_names) {
  const auto caller = CallerOfCertificate(uris, common_names);
  if (!caller.ok()) return;
  EBB_CHECK(IsResourceName(caller->tenant));
  if (uris.empty()) {
    EBB_CHECK(common_names.size() == 1 && caller->tenant == common_names[0] && !caller->admin);
    return;
  }
  EBB_CHECK(uris.size() == 1);
  const std::string_view uri = uris[0];
  constexpr std::string_view kScheme = "spiffe://";
  const std::string end = "/tenant/" + caller->tenant + (caller->admin ? "/admin" : "");
  EBB_CHECK(uri.starts_with(kScheme) && uri.ends_with(end));
  const std::string_view domain = uri.substr(kScheme.size(), uri.size() - kScheme.size() - end.size());
  EBB_CHECK(!domain.empty() && domain.find('/') == std::string_view::npos);
}

// Who is called so is whom a certificate with this name is of, in each of the three ways.
void CheckNamed(const std::string& name) {
  const auto is = [&](std::span<const std::string> uris, std::span<const std::string> common_names, bool admin) {
    const auto caller = CallerOfCertificate(uris, common_names);
    EBB_CHECK(caller.ok() == IsResourceName(name));
    if (caller.ok()) EBB_CHECK(caller->tenant == name && caller->admin == admin);
  };
  if (name.ends_with("/admin")) return;  // which is no part of a name
  const std::string uri = "spiffe://ebb.example/tenant/" + name;
  is({}, std::vector{name}, false);
  is(std::vector{uri}, {}, false);
  is(std::vector{uri + "/admin"}, std::vector<std::string>{"another"}, true);
}

void CheckNames(std::string_view input) {
  CheckName(input);
  if (input.empty()) return;
  const std::vector<std::string> names = absl::StrSplit(std::string(input.substr(1)), '\n');
  const size_t uris = std::min(names.size(), static_cast<size_t>(static_cast<uint8_t>(input[0])));
  CheckCertificate(std::span(names).first(uris), std::span(names).subspan(uris));
  for (const std::string& name : names) {
    CheckName(name);
    CheckNamed(name);
  }
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::CheckNames({reinterpret_cast<const char*>(data), size});
  return 0;
}
