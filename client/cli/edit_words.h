// How the commands that edit sessions speak of modes and answers.

#ifndef EBB_CLIENT_CLI_EDIT_WORDS_H_
#define EBB_CLIENT_CLI_EDIT_WORDS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "command_line/command_line.h"
#include "ebb/v1/inference.pb.h"

namespace ebb::cli {

// --mode and --window.
void AddEditMode(Command command, std::string& mode, std::optional<uint32_t>& window);

// REQUIRES: what --mode takes.
v1::EditMode EditModeOf(const std::string& mode);

// "12 tokens computed anew, 500 reused of which 480 are stale, 3.1 ms: stale".
std::string EditSummary(const v1::EditResponse& response);

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_EDIT_WORDS_H_
