// What of a stream on a session has come, and what to ask for after it broke.
//
// A token that was sent is in the session's log whatever breaks the stream, and Decode with `resume_from` sends what is
// in it again. So a broken stream is followed from its answer's first token, and what had come already is left out:
// stop texts and characters that the break cut in two come out whole. Each token that comes again is compared with the
// one that came before. Pure: it talks to nobody. One thread.

#ifndef EBB_CLIENT_PROGRESS_H_
#define EBB_CLIENT_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ebb/v1/inference.pb.h"
#include "ebb/v1/session.pb.h"

namespace ebb::client {

// What of a Prefill, Decode or Generate decides how it goes on.
struct Asked {
  bool reads = false;                                    // a prompt
  bool decodes = false;                                  // an answer
  bool logprobs = false;                                 // of the answer's tokens
  std::optional<int64_t> prompt_tokens = {};             // where the prompt is token ids
  std::optional<uint32_t> block_size = {};               // where the request says one
  std::optional<uint64_t> expected_generation = {};      // likewise
  static Asked For(const v1::PrefillRequest& request);   // each of a call on a named session
  static Asked For(const v1::DecodeRequest& request);    // REQUIRES: no resume_from
  static Asked For(const v1::GenerateRequest& request);  // REQUIRES: at most one answer
};

// The request for the next stream.
struct NextStream {
  uint64_t expected_generation = 0;          // ties it to the session as it stands
  int64_t prompt_skip = 0;                   // token ids of the prompt that are in the session
  std::optional<uint64_t> resume_from = {};  // Decode from there takes the place of what was asked
};

class Progress {
 public:
  explicit Progress(const Asked& asked);

  // The first stream's request, the session being as `before`: so it is known where the answer begins.
  NextStream Begin(const v1::Session& before);

  // Leaves what is new in a message; false when nothing is. ABORTED where it has other tokens than came before.
  bool Take(v1::PrefillResponse& message);
  absl::StatusOr<bool> Take(v1::DecodeResponse& message);

  // The last message has come: whatever becomes of the stream, there is nothing more to say.
  bool is_whole() const { return is_whole_; }

  // What to ask for next, the session being as `now`; nothing when all has come, but for a prompt's last message, which
  // `last_block` then is. ABORTED where the answer cannot go on exactly where it stopped.
  absl::StatusOr<std::optional<NextStream>> AfterBreak(const v1::Session& now);
  const std::optional<v1::PrefillResponse>& last_block() const { return last_block_; }

 private:
  // The whole prompt of which `read` tokens are in the session.
  bool PromptIsIn(int64_t read, const v1::Session& now) const;

  Asked asked_;
  v1::Session before_ = {};
  uint64_t generation_ = 0;            // of the session when the stream that runs now was asked for
  std::optional<int64_t> total_ = {};  // tokens of the prompt
  int64_t done_ = 0;                   // of these, in the session before the stream that runs now
  std::vector<uint32_t> tokens_ = {};  // of the answer
  std::string text_ = {};              // likewise
  size_t token_at_ = 0, text_at_ = 0;  // what of the answer this stream has sent
  uint64_t sequence_ = 0;              // of the answer's next message
  bool is_whole_ = false;
  std::optional<v1::PrefillResponse> last_block_ = {};
};

}  // namespace ebb::client

#endif  // EBB_CLIENT_PROGRESS_H_
