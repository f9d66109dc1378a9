// What the OpenAI port knows of the sessions that it keeps: which messages each has had, as a digest, and which
// generation that made of it.
//
// A client of that API sends its whole list of messages every time. A session has a log of tokens, from which no
// message can be read back with certainty (an answer may end in half a turn), so who wrote the log remembers what it
// wrote. A digest and a generation tell all that is to be known: whether the list goes on from there, and whether
// somebody else wrote meanwhile.

#ifndef EBB_SERVER_CONVERSATIONS_H_
#define EBB_SERVER_CONVERSATIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "ebb/v1/inference.pb.h"
#include "ebb/v1/session.pb.h"

namespace ebb {

// Messages that were said, in order.
struct Said {
  size_t messages = 0;
  std::array<uint8_t, 32> digest = {};  // SHA-256 of the digest before and the last message; all 0 before the first

  // White space around an answer does not count: clients trim it.
  void Add(const std::string& role, const std::string& content);
  bool operator==(const Said&) const = default;
};

class Conversations {
 public:
  // Of more than `most` sessions, those that were longest unused are forgotten.
  explicit Conversations(size_t most) : most_(most) {}

  // Any thread. What `session` has had, if it still has the generation that this left.
  std::optional<Said> Find(const v1::Session& session);
  void Put(const v1::Session& session, uint64_t generation, const Said& said);

 private:
  struct Known {
    std::string key = {};
    int64_t created = 0;  // ns; a session of the same name that was opened later is another
    uint64_t generation = 0;
    Said said = {};
  };

  const size_t most_;
  std::mutex mutex_;
  std::list<Known> known_ ABSL_GUARDED_BY(mutex_);  // newest first
  std::map<std::string, std::list<Known>::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
};

// How many of `chat`'s messages, the first ones, are in the session already; what is left is new. `had`: none if it is
// not known. ABORTED with field messages: CONVERSATION_UNKNOWN; CONVERSATION_DIFFERS where the list does not begin with
// what was said, or has nothing new.
absl::StatusOr<size_t> MessagesHad(const v1::Chat& chat, const std::optional<Said>& had, const std::string& session);

}  // namespace ebb

#endif  // EBB_SERVER_CONVERSATIONS_H_
