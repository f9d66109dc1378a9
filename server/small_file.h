// Files that somebody wrote for the server, read whole: its configuration, tokens, certificates, experiments.

#ifndef EBB_SERVER_SMALL_FILE_H_
#define EBB_SERVER_SMALL_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace ebb {

// The first bytes of the file at `path`: all where these are `bytes_max` at most, else one more, which tells that there
// are too many. NOT_FOUND with what the system says of it, for the caller to say which file that is.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t bytes_max);

}  // namespace ebb

#endif  // EBB_SERVER_SMALL_FILE_H_
