// Certificates for tests, made by the openssl command in a folder of their own.
//
//   const Certificates made;
//   made.Authority("ca");                                    // ca.pem, ca.key
//   made.Leaf("server", "ca", "localhost", "DNS:localhost"); // server.pem, server.key

#ifndef EBB_TESTS_SUPPORT_CERTIFICATES_H_
#define EBB_TESTS_SUPPORT_CERTIFICATES_H_

#include <string>

#include "tests/support/temporary_folder.h"

namespace ebb {

class Certificates {
 public:
  // Each replaces `name`.pem and `name`.key, as a rename does. A failure ends the test program.
  void Authority(const std::string& name) const;
  // Signed by the authority `issuer`. `alternative_name`: DNS:localhost, URI:spiffe://...; empty for none. `days` may
  // be negative: then it has ended.
  void Leaf(const std::string& name, const std::string& issuer, const std::string& common_name,
            const std::string& alternative_name = {}, int days = 2) const;

  std::string Path(const std::string& file) const { return folder_.path() + "/" + file; }
  std::string Read(const std::string& file) const;
  void Write(const std::string& file, const std::string& text) const;

 private:
  void Run(const std::string& arguments) const;
  void Rename(const std::string& name) const;

  TemporaryFolder folder_;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_CERTIFICATES_H_
