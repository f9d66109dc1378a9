// What a client shows to the server, and how it knows the server: read from files, so that no secret is in an argument
// or a variable.

#ifndef EBB_CLIENT_CREDENTIALS_H_
#define EBB_CLIENT_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ebb::client {

// Paths; empty: none.
struct CredentialFiles {
  bool tls = false;             // also where one of the next three is given
  std::string ca = {};          // PEM: who may have signed the server's certificate; default: whom the system trusts
  std::string cert = {};        // PEM: the client's own, with those that lead to its CA
  std::string key = {};         // PEM, of `cert`
  std::string token_file = {};  // one line, the token
};

struct Credentials {
  std::shared_ptr<grpc::ChannelCredentials> channel = {};  // null: plain HTTP/2
  std::string token = {};                                  // sent as `authorization: Bearer TOKEN`; empty: not sent
};

// Reads them now; files that are replaced later are for the next client. NOT_FOUND for one that cannot be read;
// INVALID_ARGUMENT for a token that is none, or a certificate without its key. Messages hold nothing of a file.
absl::StatusOr<Credentials> ReadCredentials(const CredentialFiles& files);

}  // namespace ebb::client

#endif  // EBB_CLIENT_CREDENTIALS_H_
