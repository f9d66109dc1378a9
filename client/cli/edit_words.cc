#include "client/cli/edit_words.h"

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace ebb::cli {
namespace {

const std::map<std::string, v1::EditMode>& Modes() {
  static const auto* const modes = new std::map<std::string, v1::EditMode>{
      {"tail", v1::EDIT_MODE_RECOMPUTE_TAIL},
      {"reposition", v1::EDIT_MODE_REPOSITION},
      {"span", v1::EDIT_MODE_RECOMPUTE_SPAN},
  };
  return *modes;
}

}  // namespace

void AddEditMode(Command command, std::string& mode, std::optional<uint32_t>& window) {
  command
      .add_option("--mode", mode,
                  "What is computed anew: all that follows (tail), the new tokens (reposition), or these and some "
                  "behind them (span)")
      .one_of(Modes())
      .capture_default_str();
  command.add_option("--window", window, "Tokens behind an edit that --mode span computes anew (default 64)");
}

v1::EditMode EditModeOf(const std::string& mode) { return Modes().at(mode); }

std::string EditSummary(const v1::EditResponse& response) {
  const std::string exactness = v1::EditExactness_Name(response.exactness()).substr(sizeof("EDIT_EXACTNESS_") - 1);
  return absl::StrFormat("%d tokens computed anew, %d reused of which %d are stale, %.1f ms: %s",
                         response.tokens_recomputed(), response.tokens_reused(), response.tokens_stale(),
                         response.elapsed_ms(), absl::AsciiStrToLower(exactness));
}

}  // namespace ebb::cli
