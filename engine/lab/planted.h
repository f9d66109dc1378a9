// Passkeys planted in a text at a chosen depth, for any model and any text:
//
//   ...text... The passkey of Clara is 90557. ...text...\n\nWhat is the passkey of Clara? The passkey of Clara is
//
// Facts stand between sentences; others of the same form, about other names, lie anywhere as distractors.

#ifndef EBB_ENGINE_LAB_PLANTED_H_
#define EBB_ENGINE_LAB_PLANTED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/lab/protocols.h"
#include "engine/text/tokenizer.h"

namespace ebb::lab {

struct Planted {
  int32_t length = 900;     // tokens of a prompt
  double depth = 0.5;       // of the asked fact, 0 (the text's first sentence end) .. 1 (its last)
  int32_t prompts = 10;     // prompt i is of other text, names and digits, whatever the depth
  int32_t distractors = 3;  // 0 .. 7
  int64_t seed = 0;
};

// INVALID_ARGUMENT where facts and question leave no room for text, the text is too short for `prompts` different
// stretches, or one has no sentence end. REQUIRES: ranges as above.
absl::StatusOr<std::vector<Prompt>> PlantPasskeys(const Tokenizer& tokenizer, const std::string& text,
                                                  const Planted& planted);

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_PLANTED_H_
