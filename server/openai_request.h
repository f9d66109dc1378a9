// A body of the OpenAI API (chat completions, completions) as a request of ebb.v1.
//
// A field that is null is absent. A field that would change the answer and that is not understood is refused by its
// name, and so is one that nobody knows; docs/how-to/use-openai-clients.md lists what is taken and what is ignored.
// Pure; any thread may call.

#ifndef EBB_SERVER_OPENAI_REQUEST_H_
#define EBB_SERVER_OPENAI_REQUEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "ebb/v1/inference.pb.h"

namespace ebb {

enum class OpenAiRoute { kChat, kCompletion };

struct OpenAiRequest {
  OpenAiRoute route = OpenAiRoute::kChat;
  // Without session; `policy` and `model` are set where the caller gave one.
  v1::GenerateRequest generate = {};
  bool stream = false;
  bool include_usage = false;  // of a stream
  std::string session = {};    // id of one that is kept; empty: a throw-away one
  bool append = false;         // `messages` are new, all of them
  std::string end_user = {};   // of a session that is made; empty: nobody is named
};

// INVALID_ARGUMENT, with the path of the field as the caller wrote it: MALFORMED_BODY, MISSING, WRONG_TYPE,
// OUT_OF_RANGE, UNSUPPORTED_FIELD, UNKNOWN_ROLE, INVALID_NAME, those of PolicyFromJson. Ranges of what ebb.v1 has too,
// and what models there are, are the service's to check.
absl::StatusOr<OpenAiRequest> OpenAiRequestFrom(OpenAiRoute route, const std::string& body);

}  // namespace ebb

#endif  // EBB_SERVER_OPENAI_REQUEST_H_
