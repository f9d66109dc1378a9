// Sizes and durations as people write them in configuration.

#ifndef EBB_SERVER_UNITS_H_
#define EBB_SERVER_UNITS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace ebb {

// "4096", "64KiB", "4MiB", "2GiB", "1TiB": a whole number and at most one suffix; nothing if it is anything else or
// exceeds 64 bits.
std::optional<uint64_t> ParseSize(std::string_view text);

// The shortest spelling that ParseSize reads back: 4194304 is "4MiB".
std::string FormatSize(uint64_t bytes);

// "30s", "1m30s", "250ms", "0": finite and not negative; nothing if it is anything else. A unit is required.
std::optional<absl::Duration> ParseTime(std::string_view text);

}  // namespace ebb

#endif  // EBB_SERVER_UNITS_H_
