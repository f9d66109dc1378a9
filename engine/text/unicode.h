// Properties of characters (utf8proc knows them).

#ifndef EBB_ENGINE_TEXT_UNICODE_H_
#define EBB_ENGINE_TEXT_UNICODE_H_

#include <string_view>

namespace ebb {

// Letters in circles and squares, from first to last: symbols by their category, and yet Other_Alphabetic
// (PropList.txt).
struct CodeRange {
  char32_t first = 0;
  char32_t last = 0;
};
inline constexpr CodeRange kEnclosedLetters[] = {
    {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};

// Unicode's White_Space.
bool IsSpace(char32_t code);
// What words are made of: letters, marks, digits, connectors, joiners.
bool IsWordCharacter(char32_t code);

// Whether `text` begins, or ends, with a character of which `is` holds; not where it is empty or no UTF-8 there.
bool BeginsWith(std::string_view text, bool (*is)(char32_t));
bool EndsWith(std::string_view text, bool (*is)(char32_t));

// Bytes of the spaces that `text` begins, or ends, with.
size_t LeadingSpaces(std::string_view text);
size_t TrailingSpaces(std::string_view text);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_UNICODE_H_
