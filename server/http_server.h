// HTTP/1.1, plain or with TLS, where nobody holds a thread who has not asked for anything yet.
//
// httplib gives a connection a thread from its first byte on, for as long as each single read succeeds in time: a few
// clients that send a request a byte at a time have all threads of a port, and its end waits for them; and it reads a
// head however long it is. Here a connection waits without a thread until the head of its request is there (with TLS:
// the first message of the handshake), a head has 16 KiB, and what has a time is a head, a body and each piece of an
// answer as a whole. One request a connection. For each range of a page that a head names the library would make a
// copy, however many there are: it never sees the header Range, and answers with the whole page.

#ifndef EBB_SERVER_HTTP_SERVER_H_
#define EBB_SERVER_HTTP_SERVER_H_

#include <httplib.h>
#include <openssl/ssl.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/acceptor.h"
#include "server/address.h"
#include "server/clock.h"
#include "server/files.h"

namespace ebb {

struct HttpLimits {
  absl::Duration head = absl::Seconds(10);  // from its connection until a request's head is there
  absl::Duration body = absl::Seconds(10);  // from then on until its body is
  absl::Duration piece = absl::Seconds(5);  // until a client takes what was written at once, and 1 s more for 64 KiB
  size_t waiting_max = 1024;                // connections without a head: then the one that has waited longest goes
  size_t queue_max = 64;                    // with one, for which there is no thread yet: further ones are closed
};

class HttpServer final : public httplib::Server {
 public:
  // `set_up_tls` fits a context for all connections; none: plain HTTP. Handlers are set as for any httplib::Server,
  // and called on `threads` threads.
  HttpServer(int threads, const HttpLimits& limits, const std::function<bool(SSL_CTX&)>& set_up_tls = {});
  ~HttpServer() override;

  // As httplib's, but that a target (path and query) of more bytes never comes to a route: 414, without a body, as the
  // library itself answers one of 8 KiB. Routes are regular expressions, and those of the standard library recurse for
  // each character, until a thread's stack ends.
  static constexpr size_t kTargetBytesMax = 1024;
  static std::string TargetIsTooLong();  // in words
  void set_pre_routing_handler(HandlerWithResponse handler);

  // Listens when it returns, at the address with the port in use. The errors of Acceptor::Listen. Once.
  absl::StatusOr<Address> Start(const Address& listen, const char* key, const AcceptorLimits& limits,
                                const RefusedConnections& refused);

  // Takes no more; connections without a whole request are closed, answers may go on for `patience`, then they are cut
  // off. Once, and by the destructor, without patience, unless it was called.
  void Stop(absl::Duration patience);

 private:
  void Take(OpenFile connection);  // the acceptor's thread
  void Look();
  void Close(socket_t waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasHead(socket_t socket) const;
  void Serve(socket_t socket, absl::Time head_until);

  const Clock clock_ = {};
  const HttpLimits limits_;
  const size_t served_max_;
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> tls_;  // null: plain HTTP
  const OpenFile events_, stops_;                                // of what waits; readable once it is to end
  httplib::ThreadPool workers_;
  absl::Mutex mutex_;
  std::map<socket_t, absl::Time> waiting_ ABSL_GUARDED_BY(mutex_) = {};  // for their head, until then
  std::set<socket_t> served_ ABSL_GUARDED_BY(mutex_) = {};
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread looking_;
  std::unique_ptr<Acceptor> acceptor_;  // null until it is started; last: it uses what stands above
};

}  // namespace ebb

#endif  // EBB_SERVER_HTTP_SERVER_H_
