// Files that somebody wrote for the server, read whole: its configuration, tokens, certificates, experiments.

#ifndef EBB_SERVER_SMALL_FILE_H_
#define EBB_SERVER_SMALL_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ebb {

// Of a disk that is busy; one that takes longer for so little is away.
inline constexpr absl::Duration kFilePatience = absl::Seconds(5);

// The first bytes of the file at `path`: all where these are `bytes_max` at most, else one more, which tells that there
// are too many. NOT_FOUND with what the system says of it, for the caller to say which file that is; also of what is no
// regular file, and where nothing has come within `patience`: after that, at once until the file system has answered.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t bytes_max,
                                          absl::Duration patience = kFilePatience);

}  // namespace ebb

#endif  // EBB_SERVER_SMALL_FILE_H_
