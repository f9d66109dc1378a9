// Takes connections of a port and hands them on.
//
// gRPC 1.51 stops listening for good once accept() finds no descriptor left, and so does httplib at other errors:
// whoever opens as many connections as the process may have files would end the service with that, even after closing
// them. So ports are listened to here. Before the descriptors run out connections are closed as they come, and the last
// ones stay free for all else that the process opens (the store, another port's connections, a new certificate). So are
// those that one address has, or begins, beyond its number. When connections end, others are taken again.

#ifndef EBB_SERVER_ACCEPTOR_H_
#define EBB_SERVER_ACCEPTOR_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/address.h"
#include "server/address_limit.h"
#include "server/clock.h"
#include "server/files.h"
#include "server/refused_connections.h"

namespace ebb {

struct AcceptorLimits {
  ConnectionLimits of_an_address = {};
  // Files that the port's connections leave to others, 0 .. 256; where the process may have fewer than 256, so many
  // 256ths of those. What is to be reached while another port is flooded leaves fewer than that one.
  int files_left = 64;
};

class Acceptor {
 public:
  // Listens at every address that the host has, on one port; 0.0.0.0 and [::] are both all addresses of IPv4 and IPv6.
  // The port is never shared with another process. UNAVAILABLE PORT_UNAVAILABLE, with `key`, the setting that says
  // where, as its field.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const Address& listen, const char* key,
                                                          const AcceptorLimits& limits = {});

  ~Acceptor() { Stop(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  const Address& address() const { return address_; }  // with the port in use

  // From now on each connection goes to `take`, on a thread of its own, one after the other; `refused` counts those
  // that were closed instead. Once. Connections that came before wait until then.
  void Start(std::function<void(int listener, OpenFile connection)> take, const RefusedConnections& refused);

  // Any thread. Likewise AddressLimit's.
  void SetLimits(const ConnectionLimits& of_an_address);

  // Takes no more, and nobody listens; connections that were taken stay.
  void Stop();

 private:
  Acceptor(const char* key, Address address, std::vector<OpenFile> listeners, OpenFile stop,
           const AcceptorLimits& limits);
  void Run();
  bool TakeOne(int listener);
  bool IsToldNow(absl::Time& last);
  void TellOfFiles();
  void TellOfAddress(const std::string& peer, Admission why);
  Admission Admit(const std::string& peer, int socket);

  const std::string key_;
  const Address address_;
  std::vector<OpenFile> listeners_;  // none once stopped
  const OpenFile stop_;              // readable: the thread ends
  const int descriptors_max_;        // a connection whose descriptor is not below it is closed
  const Clock clock_ = {};
  std::mutex limits_mutex_;
  AddressLimit of_an_address_ ABSL_GUARDED_BY(limits_mutex_);  // one that it does not admit, too
  std::function<void(int, OpenFile)> take_ = {};
  std::optional<RefusedConnections> refused_ = {};
  // When the log last said so.
  absl::Time told_of_files_ = absl::InfinitePast();
  absl::Time told_of_address_ = absl::InfinitePast();
  std::thread thread_;  // last: it uses what stands above
};

}  // namespace ebb

#endif  // EBB_SERVER_ACCEPTOR_H_
