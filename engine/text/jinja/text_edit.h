// What Python's string methods do, on text that remembers its origins. Positions are in characters where Python's are.

#ifndef EBB_ENGINE_TEXT_JINJA_TEXT_EDIT_H_
#define EBB_ENGINE_TEXT_JINJA_TEXT_EDIT_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/text/jinja/text.h"

namespace ebb::jinja {

// The characters that Python counts as white space: Unicode's, and the separators of ASCII.
inline constexpr std::string_view kWhiteSpace =
    " \t\n\r\v\f\x1C\x1D\x1E\x1F\u0085\u00A0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200A"
    "\u2028\u2029\u202F\u205F\u3000";

// Bytes at which the characters begin, and the size of the text.
std::vector<size_t> CharacterBounds(std::string_view text);

enum class Sides { kLeft = 1, kRight = 2, kBoth = 3 };

// Without the characters of `set` at these sides.
Text Trimmed(const Text& text, std::string_view set, Sides sides);

// The first `most` occurrences of `from` replaced; all if `most` is negative.
Text Replaced(const Text& text, std::string_view from, const Text& to, int64_t most);

// Cut at `separator`, or, where that is empty, at white space of any length. At most `most` cuts, from the left or from
// the right; any number if `most` is negative.
std::vector<Text> Split(const Text& text, std::string_view separator, int64_t most, Sides from);

std::vector<Text> SplitLines(const Text& text);

// A title of Python's begins a word behind what is no letter, a headline (Jinja's filter `title`) behind white space, a
// hyphen or an opening bracket.
enum class Case { kUpper, kLower, kTitle, kHeadline, kCapitalized };

Text Cased(const Text& text, Case wanted);

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_TEXT_EDIT_H_
