#include "server/certificate_caller.h"

#include <string_view>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

// NAME or NAME/admin of spiffe://TRUST-DOMAIN/tenant/NAME; empty if it is none.
std::string_view NameInUri(std::string_view uri) {
  constexpr std::string_view kScheme = "spiffe://";
  constexpr std::string_view kTenant = "/tenant/";
  if (!uri.starts_with(kScheme)) return {};
  const size_t path = uri.find('/', kScheme.size());
  if (path == std::string_view::npos || path == kScheme.size() || !uri.substr(path).starts_with(kTenant)) return {};
  return uri.substr(path + kTenant.size());
}

}  // namespace

absl::StatusOr<Caller> CallerOfCertificate(std::span<const std::string> uris,
                                           std::span<const std::string> common_names) {
  constexpr std::string_view kAdmin = "/admin";
  const std::span<const std::string> names = uris.empty() ? common_names : uris;
  std::string_view name;
  bool admin = false;
  if (names.size() == 1) name = uris.empty() ? names[0] : NameInUri(names[0]);
  if (!uris.empty() && name.ends_with(kAdmin)) {
    admin = true;
    name.remove_suffix(kAdmin.size());
  }
  if (IsResourceName(name)) return Caller{.tenant = std::string(name), .admin = admin};
  return Refuse(
      absl::StatusCode::kUnauthenticated,
      absl::StrFormat("the client certificate names no tenant: it needs one URI, "
                      "spiffe://TRUST-DOMAIN/tenant/NAME or that with /admin, or no URI and the tenant's name, "
                      "%s, for its common name",
                      kResourceNamePattern),
      {.reason = "NAMELESS_CERTIFICATE"});
}

}  // namespace ebb
