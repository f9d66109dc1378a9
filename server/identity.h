// Who calls, and what they may call: decided here, for every RPC of every service, before anything of it runs.
//
//   absl::StatusOr<Caller> caller = identity.Of("SessionService/GetSession", context);
//
// Everything is denied unless it is allowed: a method that is not in the table of identity.cc is nobody's.

#ifndef EBB_SERVER_IDENTITY_H_
#define EBB_SERVER_IDENTITY_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "policies/status.h"
#include "server/live_file.h"
#include "server/log_line.h"
#include "server/tokens.h"

namespace ebb {

// Which credentials a call needs. Where both are, the token says who calls, and the certificate from where.
struct AuthOptions {
  bool token = false;        // `authorization: Bearer TOKEN`, of token_file
  bool certificate = false;  // of a client, signed by TlsOptions::client_ca
  std::string token_file = {};
  absl::Duration reload = absl::Seconds(10);  // between two looks at token_file

  bool on() const { return token || certificate; }
};

// Whom a method is for.
enum class Role { kNobody, kUser, kAdmin };

// Of "SessionService/GetSession"; kNobody where the table has no such method.
Role RoleFor(std::string_view method);

// PERMISSION_DENIED ADMIN_ONLY, which tells the caller's `tenant`, CLOSED_METHOD.
absl::Status Allow(std::string_view method, const Caller& caller);

// Of a call that was refused so: whose it is, empty where that is not known.
std::string TenantOf(const Refusal& refusal);
// Of its line in the log: a warning where it was refused for who made it, whatever becomes of other calls' lines.
LogLevel LevelOfCall(const absl::Status& status);

class Identity {
 public:
  // Errors of Read.
  static absl::StatusOr<std::unique_ptr<Identity>> Open(const AuthOptions& options);

  // Any thread. Without authentication, everybody is the admin of the tenant that x-ebb-tenant names. UNAUTHENTICATED
  // NO_CREDENTIAL, BAD_CREDENTIAL, NAMELESS_CERTIFICATE; PERMISSION_DENIED CLOSED_METHOD, and with the `tenant` that
  // calls ADMIN_ONLY, OTHER_TENANT; INVALID_ARGUMENT INVALID_TENANT.
  absl::StatusOr<Caller> Of(std::string_view method, const grpc::CallbackServerContext& context) const;

  // Whose the value of `authorization` is. UNAUTHENTICATED BAD_CREDENTIAL. Any thread.
  absl::StatusOr<Caller> CallerOfToken(std::string_view authorization) const;

  // Whose a request is that comes with these: the value of `authorization` and the name in x-ebb-tenant. Empty where
  // that lets nobody in. What such a request may do is Of's to say. REQUIRES: no client certificates. Any thread.
  std::string TenantBy(std::string_view authorization, std::string_view named) const;

  // The token file as it is now. INVALID_ARGUMENT BAD_TOKEN_FILE, NOT_FOUND NO_TOKEN_FILE. One thread at a time, for
  // this and for taking it. REQUIRES: AuthOptions::token.
  absl::StatusOr<FileChange> Read();

  bool on() const { return options_.on(); }

 private:
  explicit Identity(const AuthOptions& options) : options_(options) {}
  absl::StatusOr<Caller> Authenticate(const grpc::CallbackServerContext& context) const;
  void Take(std::string text, BearerTokens tokens);

  const AuthOptions options_;
  std::optional<std::string> text_ = {};  // of the file, as it was last taken
  mutable std::mutex mutex_;
  std::shared_ptr<const BearerTokens> tokens_ ABSL_GUARDED_BY(mutex_) = std::make_shared<const BearerTokens>();
};

// Empty if it was not sent; the first if it was sent several times.
std::string_view MetadataOf(const grpc::CallbackServerContext& context, const char* key);

}  // namespace ebb

#endif  // EBB_SERVER_IDENTITY_H_
