// What `ebb-lab calibrate` lets a model read: passages of a text, and the same with facts in them that are asked for at
// the end, or soon after they were told and once more at the end.
//
//   ... The passkey of Harold is 69687. ...   What is the passkey of Harold?   The passkey of Harold is 69687.
//
// Everything is drawn from a seed. Facts stand between sentences; questions and answers are turns of a chat where the
// model has a format for one that Ebb knows, and text otherwise.

#ifndef EBB_ENGINE_LAB_CALIBRATION_TEXTS_H_
#define EBB_ENGINE_LAB_CALIBRATION_TEXTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer.h"

namespace ebb::lab {

struct CalibrationTextOptions {
  int32_t of_each = 10;   // documents of each of the three kinds
  int32_t window = 1024;  // tokens of a passage; documents with facts are about as long. >= 256
  uint64_t seed = 1;
};

// Token ids of 3 * of_each documents, each kind by turns. INVALID_ARGUMENT where the text is shorter than a window.
absl::StatusOr<std::vector<std::vector<int32_t>>> MakeCalibrationTexts(const Tokenizer& tokenizer,
                                                                       const std::string& text,
                                                                       const CalibrationTextOptions& options);

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_CALIBRATION_TEXTS_H_
