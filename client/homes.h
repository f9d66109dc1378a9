// Which server has which session, where several share them: as SESSION_MOVED says, among servers that the caller has
// named. Pure but for a lock: it calls nobody.

#ifndef EBB_CLIENT_HOMES_H_
#define EBB_CLIENT_HOMES_H_

#include <grpcpp/support/status.h>

#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb::client {

// Who may be called beside a client's own server, and be sent token and prompts. Default: nobody.
class Follow {
 public:
  Follow() = default;
  // Each `host:port`, or `*.domain:port` for every host of the domain. INVALID_ARGUMENT for one that is neither.
  static absl::StatusOr<Follow> Of(const std::vector<std::string>& servers);

  bool nobody() const { return named_.empty() && domains_.empty(); }

 private:
  friend class Homes;
  struct Domain {
    std::string ending = {};  // of a host, with its first dot
    std::string port = {};
  };
  std::vector<std::string> named_ = {};
  std::vector<Domain> domains_ = {};
};

// Any thread.
class Homes {
 public:
  // `own` is where calls go that are about no session (an empty name, here and below), and about one that was never
  // said to be elsewhere.
  Homes(const std::string& own, const Follow& follow);

  // Whom to ask about a session.
  std::string Of(const std::string& session) const;
  // A server has answered.
  void Heard(const std::string& address);
  // Remembers where to ask next, `address` having refused so: whom SESSION_MOVED names, and where nobody answers the
  // next of those that are named in full. True where the call may be tried there at once, whatever RetryInfo says.
  bool Heed(const std::string& session, const std::string& address, const grpc::Status& status);

 private:
  bool MayCall(const std::string& address) const;
  void Put(const std::string& session, const std::string& address);  // REQUIRES: mutex_ is held

  std::string own_;
  std::vector<std::string> ring_;  // own_, and who is named in full
  std::vector<Follow::Domain> domains_;
  bool follows_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> at_ = {};  // by session; not those at own_
  std::deque<std::string> order_ = {};          // the keys of at_, the oldest first
  std::set<std::string> silent_ = {};           // who did not answer the last time
};

}  // namespace ebb::client

#endif  // EBB_CLIENT_HOMES_H_
