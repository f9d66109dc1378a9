#include "engine/text/utf8.h"

#include "policies/check.h"

namespace ebb {
namespace {

// What a first byte announces: how many bytes follow, and the range of the second, which is where overlong forms,
// surrogates and numbers past U+10FFFF show.
struct Lead {
  int32_t following = -1;  // -1: no character begins so
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
  char32_t bits = 0;  // the first byte's share of the code
};

Lead ReadLead(uint8_t byte) {
  if (byte < 0x80) return {.following = 0, .bits = byte};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {.following = 1, .bits = byte & 0x1FU};
  if (byte < 0xF0) {
    return {.following = 2,
            .second_min = static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80),
            .second_max = static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF),
            .bits = byte & 0x0FU};
  }
  if (byte < 0xF5) {
    return {.following = 3,
            .second_min = static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80),
            .second_max = static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF),
            .bits = byte & 0x07U};
  }
  return {};
}

}  // namespace

Utf8Unit FirstUtf8(std::string_view text) {
  EBB_CHECK(!text.empty());
  const Lead lead = ReadLead(static_cast<uint8_t>(text[0]));
  if (lead.following < 0) return {.kind = Utf8Kind::kInvalid, .size = 1};
  char32_t code = lead.bits;
  for (int32_t i = 1; i <= lead.following; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {.kind = Utf8Kind::kCut, .size = i};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {.kind = Utf8Kind::kInvalid, .size = i};
    code = (code << 6) | (byte & 0x3FU);
  }
  return {.kind = Utf8Kind::kCharacter, .size = lead.following + 1, .code = code};
}

size_t ValidUtf8Size(std::string_view text) {
  size_t size = 0;
  while (size < text.size()) {
    const Utf8Unit unit = FirstUtf8(text.substr(size));
    if (unit.kind != Utf8Kind::kCharacter) break;
    size += unit.size;
  }
  return size;
}

std::string SanitisedUtf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8(text);
    clean += unit.kind == Utf8Kind::kCharacter ? text.substr(0, unit.size) : kReplacementCharacter;
    text.remove_prefix(unit.size);
  }
  return clean;
}

void AppendUtf8(char32_t code, std::string& text) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | (code >> 12));
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace ebb
