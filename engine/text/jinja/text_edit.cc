#include "engine/text/jinja/text_edit.h"

#include <utf8proc.h>

#include <algorithm>
#include <string>

#include "engine/text/utf8.h"

namespace ebb::jinja {

std::vector<size_t> CharacterBounds(std::string_view text) {
  std::vector<size_t> bounds;
  size_t at = 0;
  while (at < text.size()) {
    bounds.push_back(at);
    at += static_cast<size_t>(FirstUtf8(text.substr(at)).size);
  }
  bounds.push_back(text.size());
  return bounds;
}

Text Trimmed(const Text& text, std::string_view set, Sides sides) {
  const std::string_view bytes = text.bytes();
  const std::vector<size_t> bounds = CharacterBounds(bytes);
  const auto in_set = [&](size_t character) {
    return set.find(bytes.substr(bounds[character], bounds[character + 1] - bounds[character])) !=
           std::string_view::npos;
  };
  size_t first = 0;
  size_t last = bounds.size() - 1;
  if (sides != Sides::kRight) {
    while (first < last && in_set(first)) ++first;
  }
  if (sides != Sides::kLeft) {
    while (last > first && in_set(last - 1)) --last;
  }
  return text.Sub(bounds[first], bounds[last] - bounds[first]);
}

Text Replaced(const Text& text, std::string_view from, const Text& to, int64_t most) {
  const std::string_view bytes = text.bytes();
  Text out;
  if (from.empty()) {  // before every character, and at the end
    const std::vector<size_t> bounds = CharacterBounds(bytes);
    for (size_t i = 0; i < bounds.size(); ++i) {
      if (most < 0 || static_cast<int64_t>(i) < most) out.Append(to);
      if (i + 1 < bounds.size()) out.Append(text.Sub(bounds[i], bounds[i + 1] - bounds[i]));
    }
    return out;
  }
  size_t done = 0;
  for (int64_t count = 0; most < 0 || count < most; ++count) {
    const size_t found = bytes.find(from, done);
    if (found == std::string_view::npos) break;
    out.Append(text.Sub(done, found - done));
    out.Append(to);
    done = found + from.size();
  }
  out.Append(text.Sub(done));
  return out;
}

namespace {

std::vector<Text> SplitAtSpace(const Text& text, int64_t most, Sides from) {
  std::vector<Text> parts;
  Text rest = Trimmed(text, kWhiteSpace, from);
  while (!rest.empty()) {
    const std::string_view bytes = rest.bytes();
    const size_t cut = from == Sides::kLeft ? bytes.find_first_of(kWhiteSpace) : bytes.find_last_of(kWhiteSpace);
    if (cut == std::string_view::npos || (most >= 0 && static_cast<int64_t>(parts.size()) == most)) {
      parts.push_back(rest);
      break;
    }
    parts.push_back(from == Sides::kLeft ? rest.Sub(0, cut) : rest.Sub(cut + 1));
    rest = Trimmed(from == Sides::kLeft ? rest.Sub(cut) : rest.Sub(0, cut), kWhiteSpace, from);
  }
  if (from == Sides::kRight) std::ranges::reverse(parts);
  return parts;
}

}  // namespace

std::vector<Text> Split(const Text& text, std::string_view separator, int64_t most, Sides from) {
  if (separator.empty()) return SplitAtSpace(text, most, from);
  const std::string_view bytes = text.bytes();
  std::vector<Text> parts;
  size_t begin = 0;
  size_t end = bytes.size();
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const std::string_view rest = bytes.substr(begin, end - begin);
    const size_t found = from == Sides::kLeft ? rest.find(separator) : rest.rfind(separator);
    if (found == std::string_view::npos) break;
    if (from == Sides::kLeft) {
      parts.push_back(text.Sub(begin, found));
      begin += found + separator.size();
    } else {
      parts.push_back(text.Sub(begin + found + separator.size(), end - begin - found - separator.size()));
      end = begin + found;
    }
  }
  parts.push_back(text.Sub(begin, end - begin));
  if (from == Sides::kRight) std::ranges::reverse(parts);
  return parts;
}

std::vector<Text> SplitLines(const Text& text) {
  std::vector<Text> lines;
  const std::string_view bytes = text.bytes();
  size_t begin = 0;
  while (begin < bytes.size()) {
    const size_t end = std::min(bytes.find_first_of("\r\n", begin), bytes.size());
    lines.push_back(text.Sub(begin, end - begin));
    begin = end + (bytes.substr(end).starts_with("\r\n") ? 2 : 1);
  }
  return lines;
}

Text Cased(const Text& text, Case wanted) {
  const std::string_view bytes = text.bytes();
  const std::vector<size_t> bounds = CharacterBounds(bytes);
  Text out;
  bool inside = false;  // a letter stands before
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const Utf8Unit unit = FirstUtf8(bytes.substr(bounds[i]));
    if (unit.kind != Utf8Kind::kCharacter) {
      out.Append(text.Sub(bounds[i], static_cast<size_t>(unit.size)));
      inside = false;
      continue;
    }
    const auto code = static_cast<utf8proc_int32_t>(unit.code);
    const bool upper =
        wanted == Case::kUpper || (wanted == Case::kTitle && !inside) || (wanted == Case::kCapitalized && i == 0);
    std::string changed;
    AppendUtf8(static_cast<char32_t>(upper ? utf8proc_toupper(code) : utf8proc_tolower(code)), changed);
    out.Append(changed, text.origin(bounds[i]));
    const utf8proc_category_t category = utf8proc_category(code);
    inside = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
  }
  return out;
}

}  // namespace ebb::jinja
