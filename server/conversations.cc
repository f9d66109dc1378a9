#include "server/conversations.h"

#include <openssl/sha.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {
namespace {

// No tenant's name has a slash.
std::string KeyOf(const v1::Session& session) { return absl::StrCat(session.tenant(), "/", session.name()); }

int64_t CreatedAt(const v1::Session& session) {
  return session.create_time().seconds() * 1'000'000'000 + session.create_time().nanos();
}

}  // namespace

void Said::Add(const std::string& role, const std::string& content) {
  std::string bytes(reinterpret_cast<const char*>(digest.data()), digest.size());
  bytes += role;
  bytes += '\0';
  bytes += role == "assistant" ? std::string(absl::StripAsciiWhitespace(content)) : content;
  SHA256(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), digest.data());
  ++messages;
}

std::optional<Said> Conversations::Find(const v1::Session& session) {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(KeyOf(session));
  if (found == by_key_.end()) return std::nullopt;
  const Known& known = *found->second;
  if (known.created != CreatedAt(session) || known.generation != session.generation()) return std::nullopt;
  known_.splice(known_.begin(), known_, found->second);
  return known.said;
}

void Conversations::Put(const v1::Session& session, uint64_t generation, const Said& said) {
  const std::string key = KeyOf(session);
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    known_.erase(found->second);
    by_key_.erase(found);
  }
  known_.push_front({.key = key, .created = CreatedAt(session), .generation = generation, .said = said});
  by_key_[key] = known_.begin();
  if (known_.size() <= most_) return;
  by_key_.erase(known_.back().key);
  known_.pop_back();
}

absl::StatusOr<size_t> MessagesHad(const v1::Chat& chat, const std::optional<Said>& had, const std::string& session) {
  if (!had) {
    return Refuse(absl::StatusCode::kAborted,
                  absl::StrFormat("messages: what sessions/%s has had is not known here: an answer was broken off, "
                                  "another port wrote to it, or the server was started anew; send new messages alone "
                                  "with ebb.append, or take another session",
                                  session),
                  {.reason = "CONVERSATION_UNKNOWN", .field = "messages"});
  }
  Said said;
  for (int i = 0; i < chat.messages_size() && said.messages < had->messages; ++i) {
    said.Add(chat.messages(i).role(), chat.messages(i).content());
  }
  if (said == *had && static_cast<size_t>(chat.messages_size()) > had->messages) return had->messages;
  return Refuse(
      absl::StatusCode::kAborted,
      absl::StrFormat("messages: sessions/%s has had %d messages, answers included; the list has to begin with "
                      "them, as they were, and go on",
                      session, had->messages),
      {.reason = "CONVERSATION_DIFFERS", .field = "messages"});
}

}  // namespace ebb
