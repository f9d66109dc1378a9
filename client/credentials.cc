#include "client/credentials.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace ebb::client {
namespace {

// Nothing for no path.
absl::StatusOr<std::string> Read(const std::string& path) {
  if (path.empty()) return std::string();
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.is_open() && !file.bad() && errno == 0) return text;
  return absl::NotFoundError(absl::StrFormat("cannot read %s: %s", path, std::strerror(errno)));
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  auto text = Read(path);
  if (!text.ok()) return text;
  std::string token(absl::StripAsciiWhitespace(*text));
  // gRPC would end the program over a header with anything else.
  const bool is_token = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7F; });
  if (!path.empty() && (token.empty() || !is_token)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s does not hold one line with a token", path));
  }
  return token;
}

}  // namespace

absl::StatusOr<Credentials> ReadCredentials(const CredentialFiles& files) {
  Credentials credentials;
  auto token = ReadToken(files.token_file);
  if (!token.ok()) return token.status();
  credentials.token = *std::move(token);
  if (!files.tls && files.ca.empty() && files.cert.empty() && files.key.empty()) return credentials;
  if (files.cert.empty() != files.key.empty()) {
    return absl::InvalidArgumentError("a client's certificate and its key go together: give both, or none");
  }
  const auto ca = Read(files.ca);
  const auto cert = Read(files.cert);
  const auto key = Read(files.key);
  for (const auto* text : {&ca, &cert, &key}) {
    if (!text->ok()) return text->status();
  }
  credentials.channel = grpc::SslCredentials({.pem_root_certs = *ca, .pem_private_key = *key, .pem_cert_chain = *cert});
  return credentials;
}

}  // namespace ebb::client
