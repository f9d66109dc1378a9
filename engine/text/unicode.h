// Properties of characters (utf8proc knows them).

#ifndef EBB_ENGINE_TEXT_UNICODE_H_
#define EBB_ENGINE_TEXT_UNICODE_H_

#include <string_view>

namespace ebb {

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
