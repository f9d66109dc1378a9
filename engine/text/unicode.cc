#include "engine/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>

#include "engine/text/utf8.h"

namespace ebb {
namespace {

utf8proc_category_t CategoryOf(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

bool IsEnclosedLetter(char32_t code) {
  return std::ranges::any_of(kEnclosedLetters,
                             [code](const CodeRange& range) { return code >= range.first && code <= range.last; });
}

// The last character of `text`; of size 0 where there is none.
Utf8Unit LastUtf8(std::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(4, text.size()); ++size) {
    const Utf8Unit unit = FirstUtf8(text.substr(text.size() - size));
    if (unit.kind == Utf8Kind::kCharacter && static_cast<size_t>(unit.size) == size) return unit;
  }
  return {};
}

}  // namespace

bool IsSpace(char32_t code) {
  if ((code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85) return true;
  if (code < 0x80) return false;
  const utf8proc_category_t category = CategoryOf(code);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool IsWordCharacter(char32_t code) {
  const utf8proc_category_t category = CategoryOf(code);
  const bool letter_or_mark = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ME;
  return letter_or_mark || category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC || code == 0x200C || code == 0x200D || IsEnclosedLetter(code);
}

bool BeginsWith(std::string_view text, bool (*is)(char32_t)) {
  if (text.empty()) return false;
  const Utf8Unit unit = FirstUtf8(text);
  return unit.kind == Utf8Kind::kCharacter && is(unit.code);
}

bool EndsWith(std::string_view text, bool (*is)(char32_t)) {
  const Utf8Unit unit = LastUtf8(text);
  return unit.size > 0 && is(unit.code);
}

size_t LeadingSpaces(std::string_view text) {
  size_t size = 0;
  while (BeginsWith(text.substr(size), IsSpace)) size += static_cast<size_t>(FirstUtf8(text.substr(size)).size);
  return size;
}

size_t TrailingSpaces(std::string_view text) {
  size_t end = text.size();
  while (EndsWith(text.substr(0, end), IsSpace)) end -= static_cast<size_t>(LastUtf8(text.substr(0, end)).size);
  return text.size() - end;
}

}  // namespace ebb
