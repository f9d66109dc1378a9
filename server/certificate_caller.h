// Who shows a client certificate, as its names say.

#ifndef EBB_SERVER_CERTIFICATE_CALLER_H_
#define EBB_SERVER_CERTIFICATE_CALLER_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/tokens.h"

namespace ebb {

// Whose a verified client certificate is. The URI, if it has one, is spiffe://TRUST-DOMAIN/tenant/NAME, or
// .../tenant/NAME/admin; without one the subject's common name is the tenant's. UNAUTHENTICATED NAMELESS_CERTIFICATE.
absl::StatusOr<Caller> CallerOfCertificate(std::span<const std::string> uris,
                                           std::span<const std::string> common_names);

}  // namespace ebb

#endif  // EBB_SERVER_CERTIFICATE_CALLER_H_
