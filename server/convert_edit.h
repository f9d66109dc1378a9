// EditRequest of ebb.v1 to plain structs, checked, and what came of it back. Pure; any thread may call.

#ifndef EBB_SERVER_CONVERT_EDIT_H_
#define EBB_SERVER_CONVERT_EDIT_H_

#include "absl/status/statusor.h"
#include "ebb/v1/inference.pb.h"
#include "engine/text/tokenizer.h"
#include "server/call.h"

namespace ebb {

// INVALID_ARGUMENT with a field path: TOO_MANY, OUT_OF_RANGE (window), WINDOW_NEEDS_SPAN, UNKNOWN_ENUM_VALUE,
// TOKEN_OUT_OF_RANGE, PROMPT_TOO_LONG. What depends on the session, the engine checks.
absl::StatusOr<EditJob> EditFrom(const v1::EditRequest& proto, const Tokenizer& tokenizer);

// Fills what the edit itself says.
void FillEdit(const EditDone& done, v1::EditResponse& response);

}  // namespace ebb

#endif  // EBB_SERVER_CONVERT_EDIT_H_
