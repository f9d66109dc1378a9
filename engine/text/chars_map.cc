#include "engine/text/chars_map.h"

#include <utf8proc.h>

#include "absl/strings/str_format.h"
#include "engine/text/utf8.h"

namespace ebb {
namespace {

constexpr size_t kUnitBytes = 4;
constexpr size_t kGraphemeBytesMax = 5;  // of those that are looked up as a whole

uint32_t ReadUnit(std::string_view bytes) {
  uint32_t unit = 0;
  for (size_t i = 0; i < kUnitBytes; ++i) unit |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  return unit;
}

// Darts-clone's units: the byte that leads here and whether it is a leaf, whether a leaf follows, where children lie.
uint32_t Label(uint32_t unit) { return unit & 0x8000'00FFU; }
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1U) != 0; }
size_t Offset(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & 0x200U) >> 6); }
size_t LeafValue(uint32_t unit) { return unit & 0x7FFF'FFFFU; }

// Bytes of the first grapheme of `text` (UAX 29).
size_t GraphemeSize(std::string_view text) {
  utf8proc_int32_t state = 0;
  Utf8Unit unit = FirstUtf8(text);
  auto size = static_cast<size_t>(unit.size);
  while (size < text.size()) {
    const Utf8Unit next = FirstUtf8(text.substr(size));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(unit.code),
                                         static_cast<utf8proc_int32_t>(next.code), &state)) {
      break;
    }
    size += static_cast<size_t>(next.size);
    unit = next;
  }
  return size;
}

}  // namespace

absl::StatusOr<CharsMap> CharsMap::Make(std::string_view bytes) {
  if (bytes.size() < kUnitBytes) return absl::InvalidArgumentError("it is shorter than four bytes");
  const size_t trie_bytes = ReadUnit(bytes);
  bytes.remove_prefix(kUnitBytes);
  if (trie_bytes % kUnitBytes != 0 || trie_bytes == 0 || trie_bytes > bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("its trie of %d bytes does not fit the %d that follow", trie_bytes, bytes.size()));
  }
  CharsMap map;
  for (size_t at = 0; at < trie_bytes; at += kUnitBytes) map.trie_.push_back(ReadUnit(bytes.substr(at)));
  map.texts_ = bytes.substr(trie_bytes);
  if (ValidUtf8Size(map.texts_) != map.texts_.size()) return absl::InvalidArgumentError("its texts are not UTF-8");
  return map;
}

std::optional<std::string_view> CharsMap::Find(std::string_view text) const {
  size_t at = Offset(trie_[0]);
  for (const char byte : text) {
    if (byte == 0) break;
    at ^= static_cast<uint8_t>(byte);
    if (at >= trie_.size() || Label(trie_[at]) != static_cast<uint8_t>(byte)) break;
    const uint32_t unit = trie_[at];
    at ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    const size_t begin = at < trie_.size() ? LeafValue(trie_[at]) : texts_.size();
    // A place inside a character, or none: the file is damaged, and nothing is replaced.
    if (begin >= texts_.size() || (static_cast<uint8_t>(texts_[begin]) & 0xC0U) == 0x80U) break;
    const std::string_view rest = std::string_view(texts_).substr(begin);
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

std::string CharsMap::Apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::string_view grapheme = text.substr(0, GraphemeSize(text));
    text.remove_prefix(grapheme.size());
    if (grapheme.size() <= kGraphemeBytesMax) {
      if (const auto whole = Find(grapheme)) {
        out += *whole;
        continue;
      }
    }
    while (!grapheme.empty()) {
      const std::string_view character = grapheme.substr(0, static_cast<size_t>(FirstUtf8(grapheme).size));
      out += Find(character).value_or(character);
      grapheme.remove_prefix(character.size());
    }
  }
  return out;
}

}  // namespace ebb
