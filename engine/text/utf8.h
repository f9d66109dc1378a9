// UTF-8, one character at a time, as The Unicode Standard 3.9 (table 3-7) defines it: no overlong forms, no surrogates,
// nothing past U+10FFFF.

#ifndef EBB_ENGINE_TEXT_UTF8_H_
#define EBB_ENGINE_TEXT_UTF8_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace ebb {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind {
  kCharacter,  // a whole character
  kInvalid,    // bytes that no continuation can make valid: the longest such prefix of a character (3.9, "maximal
               // subpart")
  kCut,        // the text ends inside a character
};

struct Utf8Unit {
  Utf8Kind kind = Utf8Kind::kCharacter;
  int32_t size = 0;   // bytes, 1..4
  char32_t code = 0;  // of a whole character
};

// What `text` begins with. REQUIRES: text is not empty.
Utf8Unit FirstUtf8(std::string_view text);

// Bytes of `text`'s longest prefix that is valid UTF-8.
size_t ValidUtf8Size(std::string_view text);

// `text` with U+FFFD for each unit that is not a whole character.
std::string SanitisedUtf8(std::string_view text);

// REQUIRES: `code` is a Unicode scalar value.
void AppendUtf8(char32_t code, std::string& text);

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_UTF8_H_
