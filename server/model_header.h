// Whether a path leads to a model, by what can be said before it is loaded.

#ifndef EBB_SERVER_MODEL_HEADER_H_
#define EBB_SERVER_MODEL_HEADER_H_

#include <string>

#include "absl/status/status.h"

namespace ebb {

// Reads the header of a GGUF file, and of those that have the rest of it, or of a folder config.json, and no tensors:
// milliseconds, however large the model, or kFilePatience where nothing comes. What it lets through may still fail to
// load. NOT_FOUND and so on FILE_UNREADABLE; DATA_LOSS MODEL_DAMAGED; FAILED_PRECONDITION UNSUPPORTED_MODEL_FORMAT,
// UNSUPPORTED_ARCHITECTURE, UNSUPPORTED_MODEL_FEATURE. The message begins with the path of the file that is wrong.
absl::Status CheckModelHeader(const std::string& path);

}  // namespace ebb

#endif  // EBB_SERVER_MODEL_HEADER_H_
