// Sessions as a Redis keeps them that several servers share. Who may write to one is decided there, in scripts, each of
// which Redis runs as a whole.
//
//   PREFIX epoch                          counts up; a server that begins or takes a session gets the next number
//   PREFIX server:SERVER                  the server's address; there as long as its lease runs
//   PREFIX sessions                       set of all TENANT/ID
//   PREFIX session:TENANT/ID              hash: owner, epoch; first and last, numbers of its files; damaged: why
//   PREFIX session:TENANT/ID:journal:N    string: as the file of that name (server/session_files.h)
//   PREFIX session:TENANT/ID:snapshot:N   list: its slices
//   PREFIX history                        stream: who wrote what to which session, at which epoch; the last of them
//
// A server writes to a session with the number that it got: the fencing token. A script writes nothing where owner or
// number are others by now, so that a server that was paused for longer than its lease harms nobody. Each write says
// where it goes, too: done twice, since its answer was lost, it is done once; and a Redis that came back with less than
// it had acknowledged is found out.

#ifndef EBB_SERVER_REDIS_SESSIONS_H_
#define EBB_SERVER_REDIS_SESSIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/redis_connection.h"
#include "server/session_files.h"

namespace ebb {

// The commands of one server. Pure.
class RedisKeys {
 public:
  RedisKeys(std::string prefix, std::string server) : prefix_(std::move(prefix)), server_(std::move(server)) {}

  const std::string& server() const { return server_; }

  // Answers of the scripts begin with a word:
  //   OK       done, now or when it was sent before; begin adds the epoch, take epoch, first and last
  //   FENCED   another server's by now; adds its address, empty when its lease is over
  //   MISSING  there is no such session
  //   LOST     what was written before is not all there; of a journal, the session is DAMAGED from then on
  //
  // The snapshot that a session is to begin with goes to a place of the server's own first, slice by slice.
  RedisCommand Stage(std::string_view slice, size_t index) const;
  // TAKEN with the address: the name is another session's. `number`, of the server's beginnings, knows a second try.
  RedisCommand Begin(const SessionName& name, int64_t number) const;
  // Lists TENANT/ID of all that can be taken.
  RedisCommand Free() const;
  // FREE, else as Take.
  RedisCommand Where(const SessionName& name) const;
  // OWNED with the address of a server whose lease runs; DAMAGED with why. A session of this server's own is taken,
  // too.
  RedisCommand Take(const SessionName& name) const;
  RedisCommand Check(const SessionName& name, const JournalPlace& place) const;
  RedisCommand Append(const SessionName& name, const JournalPlace& place, std::string_view bytes) const;
  // The next journal begins.
  RedisCommand Renew(const SessionName& name, const JournalPlace& place) const;
  RedisCommand AddSlice(const SessionName& name, uint64_t epoch, uint32_t number, size_t index,
                        std::string_view slice) const;
  // The snapshot of this number is whole: what is older goes.
  RedisCommand Settle(const SessionName& name, uint64_t epoch, uint32_t number, size_t slices) const;
  RedisCommand Remove(const SessionName& name, uint64_t epoch) const;
  // Nobody's, or with `damaged` nobody's for good.
  RedisCommand Release(const SessionName& name, uint64_t epoch, const std::string& damaged) const;

  // nil where `only_renew` and the lease was over.
  RedisCommand Lease(const std::string& address, absl::Duration lease, bool only_renew) const;
  RedisCommand EndLease() const;
  RedisCommand Journal(const SessionName& name, uint32_t number) const;
  RedisCommand Slice(const SessionName& name, uint32_t number, size_t index) const;

 private:
  RedisCommand Script(std::string_view body, const SessionName& name, uint64_t epoch,
                      std::vector<std::string> more = {}) const;
  std::string Key(const SessionName& name, const char* kind, uint32_t number) const;

  std::string prefix_;
  std::string server_;
};

// TENANT/ID and back. Nothing for what no server wrote.
std::string NameInRedis(const SessionName& name);
std::optional<SessionName> NameFromRedis(std::string_view text);

// What a session that was taken is to be brought back from. DATA_LOSS JOURNAL_DAMAGED, naming key and byte; UNAVAILABLE
// STORE_FAILED.
absl::StatusOr<SessionPieces> ReadPieces(RedisConnection& connection, const RedisKeys& keys, const SessionName& name,
                                         const JournalPlace& place);

}  // namespace ebb

#endif  // EBB_SERVER_REDIS_SESSIONS_H_
