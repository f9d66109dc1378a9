// TLS of the gRPC port, and of the OpenAI port. Certificates may be replaced while streams run: the files are looked at
// again and again (server/reload.h), and what is whole and fits together serves the connections that come from then on.

#ifndef EBB_SERVER_TLS_H_
#define EBB_SERVER_TLS_H_

#include <grpcpp/grpcpp.h>
#include <openssl/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/files.h"
#include "server/live_file.h"

namespace ebb {

// PEM files.
struct TlsOptions {
  std::string cert = {};                      // the server's, then those that lead to its CA
  std::string key = {};                       // of `cert`, not encrypted
  std::string client_ca = {};                 // who may sign clients' certificates; empty: clients need none
  absl::Duration reload = absl::Seconds(10);  // between two looks at the files
};

// What a set of PEM texts is good for. INVALID_ARGUMENT BAD_TLS_FILE, the field being the configuration's key: tls.cert
// is no certificate, has ended or has not begun by `now`, or tls.key is not its key; tls.client_ca has no certificate;
// either has more after its first that is damaged or cut off.
struct TlsTexts {
  std::string cert = {};
  std::string key = {};
  std::string client_ca = {};  // empty only where there is none

  bool operator==(const TlsTexts&) const = default;
};
// When the first certificate of `texts.cert` ends.
absl::StatusOr<absl::Time> CheckTls(const TlsTexts& texts, bool wants_client_ca, absl::Time now);

class ServerTls {
 public:
  // Errors of Read.
  static absl::StatusOr<std::unique_ptr<ServerTls>> Open(const TlsOptions& options);

  // For one port; what is taken is in use a second later at most.
  std::shared_ptr<grpc::ServerCredentials> credentials() const { return credentials_; }

  // For another port of OpenSSL's: has a connection that begins present the certificate that is in use. False, and
  // there is no connection, if OpenSSL will not. Any thread.
  bool Present(SSL& connection) const;

  // When the certificate that is in use ends. Any thread.
  absl::Time certificate_end() const { return absl::FromUnixSeconds(end_seconds_); }

  // The files as they are now. Errors of CheckTls and NOT_FOUND NO_TLS_FILE. One thread at a time, for this and for
  // taking them.
  absl::StatusOr<FileChange> Read();

 private:
  explicit ServerTls(const TlsOptions& options);
  void Take(TlsTexts texts, absl::Time end);

  const TlsOptions options_;
  mutable absl::Mutex mutex_;
  TlsTexts texts_ ABSL_GUARDED_BY(mutex_) = {};  // in use
  std::atomic<int64_t> end_seconds_ = 0;
  // gRPC reads these, files that only this process has, so that it never meets half of a pair.
  OpenFile pair_;
  OpenFile client_ca_;
  std::shared_ptr<grpc::ServerCredentials> credentials_ = {};
};

}  // namespace ebb

#endif  // EBB_SERVER_TLS_H_
