#include "server/bounded_text.h"

#include "engine/text/utf8.h"
#include "policies/check.h"

namespace ebb {
namespace {

constexpr std::string_view kEllipsis = "...";

}  // namespace

std::string BoundedText(std::string_view text, size_t bytes_max) {
  EBB_CHECK(bytes_max >= kEllipsis.size());
  std::string bounded;
  size_t cut = 0;  // the longest prefix of `bounded` that leaves room for the ellipsis
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8(text);
    const auto size = static_cast<size_t>(unit.size);
    const std::string_view character = unit.kind == Utf8Kind::kCharacter ? text.substr(0, size) : kReplacementCharacter;
    if (bounded.size() + character.size() > bytes_max) return bounded.substr(0, cut).append(kEllipsis);
    bounded += character;
    if (bounded.size() + kEllipsis.size() <= bytes_max) cut = bounded.size();
    text.remove_prefix(size);
  }
  return bounded;
}

}  // namespace ebb
