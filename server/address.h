// "host:port" as flags, configuration and logs spell it: 127.0.0.1:7700, [::1]:7700, localhost:0.

#ifndef EBB_SERVER_ADDRESS_H_
#define EBB_SERVER_ADDRESS_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ebb {

struct Address {
  std::string host = {};  // a name or a number, IPv6 without its brackets; never empty
  int port = 0;           // 0 .. 65535; 0: any free one
};

// INVALID_ARGUMENT with reason BAD_ADDRESS, saying what is missing. An IPv6 host needs brackets, a host is required:
// listening everywhere is spelled 0.0.0.0 or [::], never by leaving it out.
absl::StatusOr<Address> ParseAddress(std::string_view text);

std::string FormatAddress(const Address& address);

}  // namespace ebb

#endif  // EBB_SERVER_ADDRESS_H_
