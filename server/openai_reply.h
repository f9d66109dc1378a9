// What ebb.v1 answers, in the OpenAI API's words: a body, or the events of a stream. Pure; an object belongs to one
// thread.

#ifndef EBB_SERVER_OPENAI_REPLY_H_
#define EBB_SERVER_OPENAI_REPLY_H_

#include <grpcpp/support/status.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "ebb/v1/inference.pb.h"
#include "server/openai_request.h"

namespace ebb {

// An error as the OpenAI API has it: {"error": {"message", "type", "param", "code"}}; code is our reason.
struct OpenAiError {
  int http = 500;
  std::string body = {};
  std::optional<absl::Duration> retry = {};  // none: trying the same again changes nothing
};
OpenAiError OpenAiErrorFrom(const grpc::Status& status);

class OpenAiReply {
 public:
  struct Head {
    std::string id = {};  // without its prefix
    int64_t created = 0;  // Unix time
    std::string model = {};
  };
  OpenAiReply(const OpenAiRequest& request, Head head);

  // What the message adds to a stream: some events, or nothing. Without `stream`, nothing: it is gathered.
  std::string Add(const v1::GenerateResponse& message);
  // The end of a stream, or the whole body.
  std::string End() const;

  // Of the first answer, so far.
  const std::string& text() const { return answers_[0].text; }
  uint64_t generation() const { return generation_; }  // of its session, once it ended

 private:
  struct Answer {
    std::string text = {};
    nlohmann::json logprobs = {};  // null: none were asked for
    size_t characters = 0;         // that its tokens spelled so far
    v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED;
    bool begun = false;  // its first event is out
  };

  bool chat() const { return route_ == OpenAiRoute::kChat; }
  nlohmann::json Envelope(bool chunk) const;
  nlohmann::json LogprobsOf(const v1::DecodeResponse& decode, Answer& answer) const;
  nlohmann::json Usage() const;
  std::string Event(nlohmann::json choices) const;

  const OpenAiRoute route_;
  const bool stream_, include_usage_, logprobs_;
  const Head head_;
  std::vector<Answer> answers_;
  v1::Usage usage_ = {};  // of the first answer
  uint64_t completion_tokens_ = 0;
  uint64_t generation_ = 0;
};

}  // namespace ebb

#endif  // EBB_SERVER_OPENAI_REPLY_H_
