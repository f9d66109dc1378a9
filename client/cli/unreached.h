// What to say where no server answers: gRPC tells what its transport met, which a person has to be told the reason of.

#ifndef EBB_CLIENT_CLI_UNREACHED_H_
#define EBB_CLIENT_CLI_UNREACHED_H_

#include <string>

#include "client/credentials.h"

namespace ebb::cli {

// Sentences on one line: what is likely wrong with `address` or with how it was called, what would be right,
// and gRPC's own words, which decide.
std::string DescribeUnreached(const std::string& address, const client::CredentialFiles& shown,
                              const std::string& words);

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_UNREACHED_H_
