#include "engine/text/utf8_stream.h"

#include <utility>

#include "engine/text/utf8.h"

namespace ebb {

std::string Utf8Stream::Add(std::string_view bytes) {
  held_ += bytes;
  std::string_view rest = held_;
  std::string text;
  while (!rest.empty()) {
    const Utf8Unit unit = FirstUtf8(rest);
    if (unit.kind == Utf8Kind::kCut) break;
    text += unit.kind == Utf8Kind::kCharacter ? rest.substr(0, unit.size) : kReplacementCharacter;
    rest.remove_prefix(unit.size);
  }
  held_.erase(0, held_.size() - rest.size());
  return text;
}

std::string Utf8Stream::Flush() { return SanitisedUtf8(std::exchange(held_, {})); }

}  // namespace ebb
