#include "server/units.h"

#include <array>
#include <charconv>

#include "absl/strings/string_view.h"

namespace ebb {
namespace {

struct Unit {
  std::string_view suffix;
  uint64_t bytes;
};
constexpr std::array<Unit, 5> kUnits = {
    {{"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {"", 1}}};

}  // namespace

std::optional<uint64_t> ParseSize(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  const std::string_view suffix = text.substr(static_cast<size_t>(end - text.data()));
  for (const Unit& unit : kUnits) {
    if (suffix != unit.suffix) continue;
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(number, unit.bytes, &bytes)) return std::nullopt;
    return bytes;
  }
  return std::nullopt;
}

std::string FormatSize(uint64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes > 0 && bytes % unit.bytes == 0) return std::to_string(bytes / unit.bytes).append(unit.suffix);
  }
  return "0";
}

std::optional<absl::Duration> ParseTime(std::string_view text) {
  absl::Duration time;
  if (!absl::ParseDuration(absl::string_view(text.data(), text.size()), &time)) return std::nullopt;
  if (time < absl::ZeroDuration() || time == absl::InfiniteDuration()) return std::nullopt;
  return time;
}

}  // namespace ebb
