// How many connections an address may have at once, so that no single one holds all that there are, and how many it may
// begin, so that no single one keeps gRPC busy with what comes before calls.
//
// gRPC closes connections and tells nobody. So each is known again by the cookie that the kernel gave its socket, and
// those that are gone are found when their address has used up its number.

#ifndef EBB_SERVER_ADDRESS_LIMIT_H_
#define EBB_SERVER_ADDRESS_LIMIT_H_

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/token_bucket.h"

namespace ebb {

// Whose connections count together: an IPv4 address, also where it is told as one of IPv6 (::ffff:a.b.c.d), or the
// first 64 bits of an IPv6 address, since whoever has one of those has them all. "unknown" for any other family.
std::string NameOfPeer(const sockaddr_storage& peer);

// Of each address; 0: any number.
struct ConnectionLimits {
  size_t at_once = 0;
  int64_t begun_a_minute = 0;

  bool operator==(const ConnectionLimits&) const = default;
};

enum class Admission { kAdmitted, kTooMany, kTooOften };

// One thread at a time.
class AddressLimit {
 public:
  explicit AddressLimit(const ConnectionLimits& limits) : limits_(limits) {}

  // From the next connection on. What an address has beyond its number stays; what it began while it might have any
  // number is not counted.
  void SetLimits(const ConnectionLimits& limits) { limits_ = limits; }

  // Whether `peer`, a NameOfPeer, may have this connection, which counts from then on until its socket is closed, by
  // whomever. Connections that were closed just now may still count for kLookEvery. One that is refused has not begun.
  Admission Admit(const std::string& peer, int socket, absl::Time now);

  static constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

  size_t addresses() const { return of_.size(); }  // that it keeps books of

 private:
  struct Connection {
    int socket;
    uint64_t cookie;
  };
  struct Connections {
    std::vector<Connection> counted = {};
    absl::Time looked = absl::InfinitePast();  // when those that are closed were last taken out
    TokenBucket begun = {};
  };
  static constexpr size_t kAddresses = 1024;
  static void RemoveClosed(std::vector<Connection>& counted);
  bool HasRoom(Connections& connections, absl::Time now) const;
  void ForgetWhoHasNone(absl::Time now);

  ConnectionLimits limits_;
  absl::flat_hash_map<std::string, Connections> of_ = {};
  size_t addresses_max_ = kAddresses;  // then those that say nothing are forgotten
};

}  // namespace ebb

#endif  // EBB_SERVER_ADDRESS_LIMIT_H_
