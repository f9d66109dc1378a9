#include "server/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/log.h"
#include "server/small_file.h"

namespace ebb {
namespace {

constexpr size_t kPemBytesMax = 1 << 20;
constexpr unsigned int kGrpcLooksEvery = 1;  // seconds, at what is in memory

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

absl::Status BadFile(const std::string& field, const std::string& what) {
  ERR_clear_error();
  return RefuseField("BAD_TLS_FILE", field, what);
}

Bio Memory(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// REQUIRES: the reading of PEM blocks has just come to none.
bool IsAtEnd() {
  const unsigned long error = ERR_peek_last_error();
  return ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
}

constexpr absl::string_view kMarks[] = {"-----BEGIN ", "-----END "};

// Whether each PEM block of a text is whole, whatever it holds. Between blocks there may be any text; a reader takes a
// first line that was cut off for such, so lines that look like a block's first or last are counted.
bool HasWholeBlocks(const std::string& text) {
  const Bio bio = Memory(text);
  int64_t lines = 0;
  char* name = nullptr;
  char* header = nullptr;
  unsigned char* data = nullptr;
  for (long size = 0; PEM_read_bio(bio.get(), &name, &header, &data, &size) == 1; lines -= 2) {
    OPENSSL_free(name);
    OPENSSL_free(header);
    OPENSSL_free(data);
  }
  if (!IsAtEnd()) return false;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const bool is_last = line.data() + line.size() == text.data() + text.size();
    const bool is_mark = std::ranges::any_of(kMarks, [&](absl::string_view mark) {
      return absl::StartsWith(line, mark) || (is_last && !line.empty() && absl::StartsWith(mark, line));
    });
    if (is_mark) ++lines;
  }
  return lines == 0;
}

// All that a PEM text has, one at least: what reads it for a connection stops at the first that it cannot read, and
// would leave out the others without a word.
absl::StatusOr<std::vector<Certificate>> ReadCertificates(const std::string& text, const std::string& field) {
  ERR_clear_error();
  const Bio bio = Memory(text);
  std::vector<Certificate> all;
  for (;;) {
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) break;
    all.push_back(std::move(next));
  }
  if (all.empty()) return BadFile(field, "the file has no certificate in PEM");
  if (!IsAtEnd() || !HasWholeBlocks(text)) {
    return BadFile(field, absl::StrFormat("what follows certificate %d is damaged, or was cut off", all.size()));
  }
  ERR_clear_error();  // the end of the text is one
  return all;
}

// An encrypted key is refused: OpenSSL would ask the terminal for its password.
int NoPassword(char* /*buffer*/, int /*size*/, int /*writes*/, void* /*data*/) { return -1; }

absl::Time TimeFrom(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

absl::StatusOr<std::string> ReadPem(const std::string& path, const std::string& field) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kPemBytesMax);
  if (!text.ok()) {
    return Refuse(absl::StatusCode::kNotFound,
                  absl::StrFormat("%s: cannot read %s: %s", field, path, std::string(text.status().message())),
                  {.reason = "NO_TLS_FILE", .field = field});
  }
  if (text->size() > kPemBytesMax) return BadFile(field, "it has more than 1 MiB");
  return text;
}

OpenFile InMemory(const char* name) {
  OpenFile file(memfd_create(name, MFD_CLOEXEC));
  EBB_CHECK(file.ok());
  return file;
}

std::string PathOf(const OpenFile& file) { return absl::StrFormat("/proc/self/fd/%d", file.get()); }

// Read by gRPC as a whole: it is written in one go, and PEM ends where it says so, so that what a longer text before it
// may have left behind is cut off afterwards.
void Write(const OpenFile& file, const std::string& text) {
  EBB_CHECK(pwrite(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  EBB_CHECK(ftruncate(file.get(), static_cast<off_t>(text.size())) == 0);
}

}  // namespace

absl::StatusOr<absl::Time> CheckTls(const TlsTexts& texts, bool wants_client_ca, absl::Time now) {
  EBB_ASSIGN(const std::vector<Certificate> certificates, ReadCertificates(texts.cert, "tls.cert"));
  const Certificate& certificate = certificates.front();
  const Key key(PEM_read_bio_PrivateKey(Memory(texts.key).get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) return BadFile("tls.key", "the file has no private key in PEM, or one that is encrypted");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return BadFile("tls.key", "it is not the key of the certificate in tls.cert");
  }
  const absl::Time begin = TimeFrom(X509_get0_notBefore(certificate.get()));
  const absl::Time end = TimeFrom(X509_get0_notAfter(certificate.get()));
  if (now > end)
    return BadFile("tls.cert", absl::StrFormat("the certificate ended %s", absl::FormatTime(end, absl::UTCTimeZone())));
  if (now < begin)
    return BadFile("tls.cert",
                   absl::StrFormat("the certificate begins %s", absl::FormatTime(begin, absl::UTCTimeZone())));
  if (wants_client_ca) EBB_TRY(ReadCertificates(texts.client_ca, "tls.client_ca").status());
  return end;
}

absl::StatusOr<std::unique_ptr<ServerTls>> ServerTls::Open(const TlsOptions& options) {
  std::unique_ptr<ServerTls> tls(new ServerTls(options));
  EBB_TRY(TakeNow(tls->Read()));
  using grpc::experimental::FileWatcherCertificateProvider;
  const std::string pair = PathOf(tls->pair_);
  const bool wants_clients = !options.client_ca.empty();
  const auto provider = wants_clients ? std::make_shared<FileWatcherCertificateProvider>(
                                            pair, pair, PathOf(tls->client_ca_), kGrpcLooksEvery)
                                      : std::make_shared<FileWatcherCertificateProvider>(pair, pair, kGrpcLooksEvery);
  grpc::experimental::TlsServerCredentialsOptions grpc_options(provider);
  grpc_options.watch_identity_key_cert_pairs();
  if (wants_clients) grpc_options.watch_root_certs();
  grpc_options.set_cert_request_type(wants_clients ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                   : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  tls->credentials_ = grpc::experimental::TlsServerCredentials(grpc_options);
  return tls;
}

ServerTls::ServerTls(const TlsOptions& options)
    : options_(options), pair_(InMemory("ebb-tls-pair")), client_ca_(InMemory("ebb-tls-client-ca")) {}

absl::StatusOr<FileChange> ServerTls::Read() {
  TlsTexts texts;
  EBB_ASSIGN(texts.cert, ReadPem(options_.cert, "tls.cert"));
  EBB_ASSIGN(texts.key, ReadPem(options_.key, "tls.key"));
  if (!options_.client_ca.empty()) {
    EBB_ASSIGN(texts.client_ca, ReadPem(options_.client_ca, "tls.client_ca"));
  }
  FileChange change;
  {
    absl::MutexLock lock(&mutex_);
    if (texts == texts_) return change;
    if (texts.cert != texts_.cert) change.paths.push_back(options_.cert);
    if (texts.key != texts_.key) change.paths.push_back(options_.key);
    if (texts.client_ca != texts_.client_ca) change.paths.push_back(options_.client_ca);
  }
  EBB_ASSIGN(const absl::Time end, CheckTls(texts, !options_.client_ca.empty(), absl::Now()));
  change.take = [this, texts = std::move(texts), end]() mutable {
    Take(std::move(texts), end);
    return absl::OkStatus();
  };
  return change;
}

void ServerTls::Take(TlsTexts texts, absl::Time end) {
  Write(client_ca_, texts.client_ca);
  Write(pair_, texts.key + "\n" + texts.cert);  // readers of PEM take the part they look for
  {
    absl::MutexLock lock(&mutex_);
    texts_ = std::move(texts);
  }
  end_seconds_ = absl::ToUnixSeconds(end);
  LogInfo("certificate_taken", {{"file", options_.cert}, {"ends", absl::FormatTime(end, absl::UTCTimeZone())}},
          "for connections from now on");
}

bool ServerTls::Present(SSL& connection) const {
  TlsTexts texts;
  {
    absl::MutexLock lock(&mutex_);
    texts = texts_;
  }
  const Bio certificates = Memory(texts.cert);
  const auto next = [&] { return Certificate(PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr)); };
  const Certificate own = next();
  const Key key(PEM_read_bio_PrivateKey(Memory(texts.key).get(), nullptr, NoPassword, nullptr));
  bool fine = SSL_use_certificate(&connection, own.get()) == 1 && SSL_use_PrivateKey(&connection, key.get()) == 1;
  for (Certificate above = next(); fine && above != nullptr; above = next()) {
    fine = SSL_add1_chain_cert(&connection, above.get()) == 1;
  }
  ERR_clear_error();  // the end of the text is one
  return fine;
}

}  // namespace ebb
