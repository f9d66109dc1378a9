// The file beside a model in which `ebb-lab calibrate` keeps what the scorer `calibrated` goes by (calibrated.h). JSON:
//
//   {"format": "ebb calibration", "version": 1,
//    "model": "9f3c...",                        fingerprint of the model it was learned on
//    "source": "...",                           from what, for people
//    "features": ["key_length", ...],           what the weights belong to, in this order; any of FeatureNames()
//    "layers": 6, "kv_heads": 4,
//    "with_attention": [[bias, weight...]...],  a row for each lane, layer by layer
//    "unseen":         [[bias, weight...]...]}  the same without the feature `attention`, whose weight is 0

#ifndef EBB_ENGINE_MODEL_CALIBRATION_FILE_H_
#define EBB_ENGINE_MODEL_CALIBRATION_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/architecture.h"
#include "policies/calibration.h"

namespace ebb {

// models/a.gguf -> models/a.calibration.json.
std::string CalibrationPath(const std::string& model_path);

// The file's calibration if it is this model's. FAILED_PRECONDITION CALIBRATION_MISSING where there is no such file,
// CALIBRATION_FOREIGN naming both models, both with the file's name and not its folder; DATA_LOSS CALIBRATION_DAMAGED
// naming file, place and what was expected.
CalibrationOr ReadCalibration(const std::string& path, const ModelConfig& model);

// The same of a text that stands in such a file.
CalibrationOr ParseCalibration(const std::string& path, const std::string& text, const ModelConfig& model);

// Writes one whose weights belong to `features`; those of other features are 0. UNAVAILABLE when the file cannot be
// written. REQUIRES: the lanes are the model's.
absl::Status WriteCalibration(const std::string& path, const ModelConfig& model, const std::vector<Feature>& features,
                              const std::string& source, const Calibration& calibration);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_CALIBRATION_FILE_H_
