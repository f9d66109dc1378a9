#include "engine/text/byte_alphabet.h"

#include <array>

#include "engine/text/utf8.h"

namespace ebb {
namespace {

constexpr int kBytes = 256;
constexpr int16_t kNoByte = -1;

// Bytes that print in Latin-1 stand for themselves, the others take the code points from 256 on, in order.
bool PrintsInLatin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteAlphabet {
  std::array<std::string, kBytes> text_of_byte = {};
  std::array<int16_t, 2 * kBytes> byte_of_code = {};  // kNoByte where the code point stands for none
};

ByteAlphabet MakeByteAlphabet() {
  ByteAlphabet alphabet;
  alphabet.byte_of_code.fill(kNoByte);
  char32_t next = kBytes;
  for (int byte = 0; byte < kBytes; ++byte) {
    const char32_t code = PrintsInLatin1(byte) ? static_cast<char32_t>(byte) : next++;
    AppendUtf8(code, alphabet.text_of_byte[byte]);
    alphabet.byte_of_code[code] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

const ByteAlphabet& Alphabet() {
  static const ByteAlphabet alphabet = MakeByteAlphabet();
  return alphabet;
}

}  // namespace

std::string PrintableOfBytes(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += Alphabet().text_of_byte[static_cast<uint8_t>(byte)];
  return text;
}

std::optional<std::string> BytesOfPrintable(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8(text);
    if (unit.kind != Utf8Kind::kCharacter || unit.code >= Alphabet().byte_of_code.size()) return std::nullopt;
    const int16_t byte = Alphabet().byte_of_code[unit.code];
    if (byte == kNoByte) return std::nullopt;
    bytes += static_cast<char>(byte);
    text.remove_prefix(static_cast<size_t>(unit.size));
  }
  return bytes;
}

}  // namespace ebb
