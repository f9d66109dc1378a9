// Spans of a session's log replaced by other tokens on its warm cache (POLICIES 9): what is asked, and what will be
// done. How it is done is SessionOnEngine's to know; Engine::BeginEdit is the door.

#ifndef EBB_ENGINE_EDIT_H_
#define EBB_ENGINE_EDIT_H_

#include <cstdint>
#include <limits>
#include <vector>

namespace ebb {

enum class EditMode {
  kRecomputeTail,  // every cached token from the first edit on is run again
  kReposition,     // tokens behind an edit keep their K and V, and move; the log's last is run again
  kRecomputeSpan,  // likewise, but the first `window` behind each edit are run again, too, in their slots
};

// How the cache compares with a fresh session's of the same policy that is given the edited log.
enum class EditExactness {
  kExact,    // the same K and V, bit for bit where the slots lie as there
  kEvicted,  // tokens are missing; what was run saw all that the cache holds
  kStale,    // K and V of some tokens behind an edit are those of the text before it
};

// Tokens [start, end) of the log, and what takes their place.
struct EditSpan {
  int32_t start = 0, end = 0;
  std::vector<int32_t> tokens = {};
};

struct EditRequest {
  std::vector<EditSpan> spans = {};  // ascending and apart; indices of the log before the edit
  EditMode mode = EditMode::kRecomputeTail;
  int32_t window = 0;    // of kRecomputeSpan, >= 0
  bool restore = false;  // of kRecomputeTail: all of the log is run again, into an empty cache
};

inline constexpr int32_t kNothingStale = std::numeric_limits<int32_t>::max();

// What an edit comes to for one session, as it stands.
struct EditPlan {
  EditMode mode = EditMode::kRecomputeTail;
  bool restore = false;
  std::vector<int32_t> log = {};       // the edited log
  std::vector<int32_t> former = {};    // [log] each token's index in the log before; -1: it is new
  std::vector<int32_t> work = {};      // indices of the tokens to run, ascending; the log's last is among them
  int32_t from = 0;                    // kRecomputeTail: tokens from here on leave the cache first
  int32_t stale_from = kNothingStale;  // index of the first token whose K and V may be another text's
  EditExactness exactness = EditExactness::kExact;
  int32_t inserted = 0, removed = 0;  // tokens of the log
  int32_t reused = 0;                 // tokens of the longest lane that keep their K and V
  int32_t stale = 0;                  // of these, those at stale_from or later

  // The tokens to run, in order.
  std::vector<int32_t> WorkTokens() const {
    std::vector<int32_t> tokens;
    for (const int32_t index : work) tokens.push_back(log[index]);
    return tokens;
  }
};

}  // namespace ebb

#endif  // EBB_ENGINE_EDIT_H_
