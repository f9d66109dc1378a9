#include "server/identity.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "policies/status.h"
#include "server/certificate_caller.h"
#include "server/convert.h"
#include "server/log.h"
#include "server/resource_name.h"
#include "server/small_file.h"

namespace ebb {
namespace {

constexpr char kTenantKey[] = "x-ebb-tenant";
constexpr char kTenantOfRefusal[] = "tenant";
constexpr char kAuthorizationKey[] = "authorization";
constexpr std::string_view kBearer = "bearer ";
constexpr size_t kTokenFileBytesMax = 1 << 20;

struct MethodRole {
  std::string_view method;
  Role role;
};

// Every method that anybody may call.
constexpr std::array kMethodRoles = {
    MethodRole{"SessionService/CreateSession", Role::kUser},
    MethodRole{"SessionService/ForkSession", Role::kUser},
    MethodRole{"SessionService/GetSession", Role::kUser},
    MethodRole{"SessionService/ListSessions", Role::kUser},
    MethodRole{"SessionService/DeleteSession", Role::kUser},
    MethodRole{"SessionService/SaveSession", Role::kUser},
    MethodRole{"SessionService/RestoreSession", Role::kUser},
    MethodRole{"SessionService/ListSnapshots", Role::kUser},
    MethodRole{"SessionService/DeleteSnapshot", Role::kUser},
    MethodRole{"InferenceService/Prefill", Role::kUser},
    MethodRole{"InferenceService/Decode", Role::kUser},
    MethodRole{"InferenceService/Generate", Role::kUser},
    MethodRole{"InferenceService/Verify", Role::kUser},
    MethodRole{"InferenceService/Accept", Role::kUser},
    MethodRole{"InferenceService/Edit", Role::kUser},
    MethodRole{"InferenceService/Score", Role::kUser},
    MethodRole{"InferenceService/Tokenize", Role::kUser},
    MethodRole{"InferenceService/Detokenize", Role::kUser},
    MethodRole{"InferenceService/ReportOutcome", Role::kUser},  // on a session of the caller's
    MethodRole{"EvictionService/SetPolicy", Role::kUser},
    MethodRole{"EvictionService/Evict", Role::kUser},
    MethodRole{"EvictionService/DescribeCache", Role::kUser},
    MethodRole{"EvictionService/WatchEvictions", Role::kUser},
    MethodRole{"EvictionService/PlanEviction", Role::kUser},
    MethodRole{"AdminService/ListPolicies", Role::kUser},  // the same for everybody, and nobody's
    MethodRole{"AdminService/GetStatus", Role::kAdmin},    // of all tenants together
    MethodRole{"AdminService/ListModels", Role::kAdmin},   // likewise
    MethodRole{"AdminService/ReloadConfig", Role::kAdmin},
    MethodRole{"AdminService/ListTenants", Role::kAdmin},  // tells of all, and the next decides for them
    MethodRole{"AdminService/SetTenant", Role::kAdmin},
    MethodRole{"AdminService/StartExperiment", Role::kAdmin},  // decides for tenants, as the next two do
    MethodRole{"AdminService/StopExperiment", Role::kAdmin},
    MethodRole{"AdminService/RampExperiment", Role::kAdmin},
    MethodRole{"AdminService/GetExperiment", Role::kAdmin},  // tells of them, as the next two do
    MethodRole{"AdminService/ListExperiments", Role::kAdmin},
    MethodRole{"AdminService/ExportExperiment", Role::kAdmin},
};

absl::StatusOr<std::string> ReadTokens(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kTokenFileBytesMax);
  if (!text.ok()) {
    return Refuse(absl::StatusCode::kNotFound,
                  absl::StrFormat("auth.token_file: cannot read %s: %s", path, std::string(text.status().message())),
                  {.reason = "NO_TOKEN_FILE", .field = "auth.token_file"});
  }
  if (text->size() > kTokenFileBytesMax) {
    return RefuseField("BAD_TOKEN_FILE", "auth.token_file", absl::StrFormat("%s has more than 1 MiB", path));
  }
  return text;
}

absl::StatusOr<BearerTokens> ParseTokens(const std::string& path, const std::string& text) {
  auto table = BearerTokens::Parse(text);
  if (table.ok()) return table;
  return RefuseField("BAD_TOKEN_FILE", "auth.token_file",
                     absl::StrFormat("%s, %s", path, std::string(table.status().message())));
}

std::vector<std::string> ValuesOf(const grpc::AuthContext& context, const char* property) {
  std::vector<std::string> values;
  for (const grpc::string_ref& value : context.FindPropertyValues(property)) {
    values.emplace_back(value.data(), value.size());
  }
  return values;
}

}  // namespace

std::string_view MetadataOf(const grpc::CallbackServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return {};
  return {found->second.data(), found->second.size()};
}

Role RoleFor(std::string_view method) {
  const auto* const found = std::find_if(kMethodRoles.begin(), kMethodRoles.end(),
                                         [&](const MethodRole& row) { return row.method == method; });
  return found == kMethodRoles.end() ? Role::kNobody : found->role;
}

absl::Status Allow(std::string_view method, const Caller& caller) {
  switch (RoleFor(method)) {
    case Role::kUser:
      return absl::OkStatus();
    case Role::kAdmin:
      if (caller.admin) return absl::OkStatus();
      return Refuse(absl::StatusCode::kPermissionDenied, absl::StrFormat("%s needs an admin's credential", method),
                    {.reason = "ADMIN_ONLY", .metadata = {{kTenantOfRefusal, caller.tenant}}});
    case Role::kNobody:
      break;
  }
  return Refuse(absl::StatusCode::kPermissionDenied, absl::StrFormat("%s is for nobody", method),
                {.reason = "CLOSED_METHOD"});
}

std::string TenantOf(const Refusal& refusal) {
  const auto known = refusal.metadata.find(kTenantOfRefusal);
  return known == refusal.metadata.end() ? "" : known->second;
}

LogLevel LevelOfCall(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ? LogLevel::kWarn : LogLevel::kInfo;
}

absl::StatusOr<std::unique_ptr<Identity>> Identity::Open(const AuthOptions& options) {
  std::unique_ptr<Identity> identity(new Identity(options));
  if (options.token) EBB_TRY(TakeNow(identity->Read()));
  return identity;
}

// By its content: a file may be replaced within the time that its date can tell.
absl::StatusOr<FileChange> Identity::Read() {
  EBB_ASSIGN(std::string text, ReadTokens(options_.token_file));
  if (text == text_) return FileChange();
  EBB_ASSIGN(BearerTokens tokens, ParseTokens(options_.token_file, text));
  return FileChange{.paths = {options_.token_file},
                    .take = [this, text = std::move(text), tokens = std::move(tokens)]() mutable {
                      Take(std::move(text), std::move(tokens));
                      return absl::OkStatus();
                    }};
}

void Identity::Take(std::string text, BearerTokens tokens) {
  text_ = std::move(text);
  LogInfo("tokens_read", {{"file", options_.token_file}, {"tokens", tokens.size()}});
  const std::lock_guard lock(mutex_);
  tokens_ = std::make_shared<const BearerTokens>(std::move(tokens));
}

absl::StatusOr<Caller> Identity::Of(std::string_view method, const grpc::CallbackServerContext& context) const {
  EBB_ASSIGN(Caller caller, Authenticate(context));
  EBB_TRY(Allow(method, caller));
  return caller;
}

absl::StatusOr<Caller> Identity::Authenticate(const grpc::CallbackServerContext& context) const {
  const std::string_view named = MetadataOf(context, kTenantKey);
  if (!options_.on()) {
    EBB_ASSIGN(std::string tenant, TenantFrom(named));
    return Caller{.tenant = std::move(tenant), .admin = true};
  }
  Caller caller;
  if (options_.certificate) {
    const auto peer = context.auth_context();
    if (!peer->IsPeerAuthenticated()) {  // the handshake would have failed
      return Refuse(absl::StatusCode::kUnauthenticated, "this server wants a client certificate",
                    {.reason = "NO_CREDENTIAL"});
    }
    if (!options_.token) {
      EBB_ASSIGN(caller, CallerOfCertificate(ValuesOf(*peer, GRPC_PEER_URI_PROPERTY_NAME),
                                             ValuesOf(*peer, GRPC_X509_CN_PROPERTY_NAME)));
    }
  }
  if (options_.token) {
    const size_t sent = context.client_metadata().count(kAuthorizationKey);
    if (sent == 0) {
      return Refuse(absl::StatusCode::kUnauthenticated,
                    "this server wants a token: metadata authorization: Bearer TOKEN", {.reason = "NO_CREDENTIAL"});
    }
    if (sent > 1) {
      return Refuse(absl::StatusCode::kUnauthenticated, "authorization: it was sent twice",
                    {.reason = "BAD_CREDENTIAL"});
    }
    EBB_ASSIGN(caller, CallerOfToken(MetadataOf(context, kAuthorizationKey)));
  }
  if (!named.empty() && named != caller.tenant) {
    return Refuse(
        absl::StatusCode::kPermissionDenied,
        absl::StrFormat("%s: the credential is of '%s'; leave the key out, or send that", kTenantKey, caller.tenant),
        {.reason = "OTHER_TENANT", .metadata = {{kTenantOfRefusal, caller.tenant}}});
  }
  return caller;
}

absl::StatusOr<Caller> Identity::CallerOfToken(std::string_view authorization) const {
  const std::string_view scheme = authorization.substr(0, kBearer.size());
  if (!absl::EqualsIgnoreCase({scheme.data(), scheme.size()}, {kBearer.data(), kBearer.size()})) {
    return Refuse(absl::StatusCode::kUnauthenticated, "authorization: it is Bearer and a token",
                  {.reason = "BAD_CREDENTIAL"});
  }
  std::shared_ptr<const BearerTokens> tokens;
  {
    const std::lock_guard lock(mutex_);
    tokens = tokens_;
  }
  const Caller* const caller = tokens->Find(authorization.substr(kBearer.size()));
  if (caller != nullptr) return *caller;
  return Refuse(absl::StatusCode::kUnauthenticated, "authorization: the token is not a valid one",
                {.reason = "BAD_CREDENTIAL"});
}

std::string Identity::TenantBy(std::string_view authorization, std::string_view named) const {
  if (!options_.on()) return TenantFrom(named).value_or("");
  const absl::StatusOr<Caller> caller = CallerOfToken(authorization);
  return caller.ok() ? caller->tenant : "";
}

}  // namespace ebb
