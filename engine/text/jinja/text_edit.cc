#include "engine/text/jinja/text_edit.h"

#include <utf8proc.h>

#include <algorithm>
#include <string>
#include <utility>

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

namespace {

// Whether `set` has the character that begins at bounds[character].
bool IsIn(std::string_view set, const Text& text, const std::vector<size_t>& bounds, size_t character) {
  const size_t begin = bounds[character];
  const std::string_view bytes = std::string_view(text.bytes()).substr(begin, bounds[character + 1] - begin);
  return FirstUtf8(bytes).kind == Utf8Kind::kCharacter && set.find(bytes) != std::string_view::npos;
}

}  // namespace

Text Trimmed(const Text& text, std::string_view set, Sides sides) {
  const std::vector<size_t> bounds = CharacterBounds(text.bytes());
  const auto in_set = [&](size_t character) { return IsIn(set, text, bounds, character); };
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

// What is left when no more cuts are allowed keeps its white space, but for that at the side the cuts come from.
std::vector<Text> SplitAtSpace(const Text& text, int64_t most, Sides from) {
  const std::vector<size_t> bounds = CharacterBounds(text.bytes());
  std::vector<std::pair<size_t, size_t>> words;  // begin, end
  bool inside = false;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const bool before = std::exchange(inside, !IsIn(kWhiteSpace, text, bounds, i));
    if (inside && !before) words.emplace_back(bounds[i], 0);
    if (inside) words.back().second = bounds[i + 1];
  }
  if (const auto count = static_cast<int64_t>(words.size()); most >= 0 && count > most) {
    if (from == Sides::kLeft) {
      words.resize(static_cast<size_t>(most) + 1);
      words.back().second = text.size();
    } else {
      words.erase(words.begin(), words.end() - most - 1);
      words.front().first = 0;
    }
  }
  std::vector<Text> parts;
  for (const auto& [begin, end] : words) parts.push_back(text.Sub(begin, end - begin));
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
  constexpr std::string_view kEnds = "\n\r\v\f\x1C\x1D\x1E\u0085\u2028\u2029";
  const std::vector<size_t> bounds = CharacterBounds(text.bytes());
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    if (!IsIn(kEnds, text, bounds, i)) continue;
    lines.push_back(text.Sub(begin, bounds[i] - begin));
    if (std::string_view(text.bytes()).substr(bounds[i]).starts_with("\r\n")) ++i;
    begin = bounds[i + 1];
  }
  if (begin < text.size()) lines.push_back(text.Sub(begin, text.size() - begin));
  return lines;
}

Text Cased(const Text& text, Case wanted) {
  const std::string_view bytes = text.bytes();
  const std::vector<size_t> bounds = CharacterBounds(bytes);
  Text out;
  bool inside = false;  // a word has begun
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const Utf8Unit unit = FirstUtf8(bytes.substr(bounds[i]));
    if (unit.kind != Utf8Kind::kCharacter) {
      out.Append(text.Sub(bounds[i], static_cast<size_t>(unit.size)));
      inside = false;
      continue;
    }
    const auto code = static_cast<utf8proc_int32_t>(unit.code);
    const bool of_words = wanted == Case::kTitle || wanted == Case::kHeadline;
    const bool upper = wanted == Case::kUpper || (of_words && !inside) || (wanted == Case::kCapitalized && i == 0);
    std::string changed;
    AppendUtf8(static_cast<char32_t>(upper ? utf8proc_toupper(code) : utf8proc_tolower(code)), changed);
    out.Append(changed, text.origin(bounds[i]));
    const utf8proc_category_t category = utf8proc_category(code);
    inside = wanted == Case::kHeadline ? !IsIn("-({[<", text, bounds, i) && !IsIn(kWhiteSpace, text, bounds, i)
                                       : category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
  }
  return out;
}

}  // namespace ebb::jinja
