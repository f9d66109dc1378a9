#include "tests/support/certificates.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "policies/check.h"

namespace ebb {
namespace {

const std::string kNewKey = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

}  // namespace

void Certificates::Authority(const std::string& name) const {
  Run(kNewKey + " -x509 -days 2 -subj /CN=" + name + " -keyout " + Path("new.key") + " -out " + Path("new.pem"));
  Rename(name);
}

void Certificates::Leaf(const std::string& name, const std::string& issuer, const std::string& common_name,
                        const std::string& alternative_name, int days) const {
  const std::string request = Path("new.csr");
  const std::string with = alternative_name.empty() ? "" : " -addext subjectAltName=" + alternative_name;
  Run(kNewKey + " -new -subj /CN=" + common_name + with + " -keyout " + Path("new.key") + " -out " + request);
  Run("x509 -req -in " + request + " -copy_extensions copy -days " + std::to_string(days) + " -CA " +
      Path(issuer + ".pem") + " -CAkey " + Path(issuer + ".key") + " -out " + Path("new.pem"));
  Rename(name);
}

std::string Certificates::Read(const std::string& file) const {
  std::ifstream stream(Path(file), std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void Certificates::Write(const std::string& file, const std::string& text) const {
  std::ofstream(Path(file + ".new"), std::ios::binary) << text;
  std::filesystem::rename(Path(file + ".new"), Path(file));
}

void Certificates::Run(const std::string& arguments) const {
  const std::string command = "openssl " + arguments + " >" + Path("openssl.log") + " 2>&1";
  EBB_CHECK(std::system(command.c_str()) == 0);  // NOLINT(cert-env33-c): every word of it is the test's own
}

void Certificates::Rename(const std::string& name) const {
  std::filesystem::rename(Path("new.key"), Path(name + ".key"));
  std::filesystem::rename(Path("new.pem"), Path(name + ".pem"));
}

}  // namespace ebb
