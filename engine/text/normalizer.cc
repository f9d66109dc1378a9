#include "engine/text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "engine/text/unicode.h"
#include "engine/text/utf8.h"
#include "policies/check.h"

namespace ebb {
namespace {

using Kind = NormalizerStep::Kind;

constexpr char32_t kCapitalDottedI = 0x130;  // the one character whose small form is two: i and a dot above

bool IsAscii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

struct FreeMemory {
  void operator()(utf8proc_uint8_t* text) const { std::free(text); }  // utf8proc's are of malloc
};

std::string NormalForm(std::string_view text, int options) {
  if (IsAscii(text)) return std::string(text);  // has one form
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &made, static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
  const std::unique_ptr<utf8proc_uint8_t, FreeMemory> owned(made);
  EBB_CHECK(size >= 0);  // valid UTF-8 has normal forms
  return std::string(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
}

// `change(code, bytes, out)` writes what one character becomes.
template <typename Change>
std::string EachCharacter(std::string_view text, const Change& change) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8(text);
    change(unit.code, text.substr(0, static_cast<size_t>(unit.size)), out);
    text.remove_prefix(static_cast<size_t>(unit.size));
  }
  return out;
}

std::string Lowercase(std::string_view text) {
  return EachCharacter(text, [](char32_t code, std::string_view, std::string& out) {
    if (code == kCapitalDottedI) {
      out += "i\xCC\x87";
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))), out);
    }
  });
}

std::string StripAccents(std::string_view text) {
  return EachCharacter(text, [](char32_t code, std::string_view bytes, std::string& out) {
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
    const bool mark =
        category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
    if (!mark) out += bytes;
  });
}

std::string Replace(std::string_view text, const Regex& pattern, std::string_view content) {
  std::string out;
  size_t done = 0;
  const Regex::Found found = pattern.FindAll(text);
  for (const Regex::Match& match : found.matches) {
    out += text.substr(done, match.begin - done);
    out += content;
    done = match.end;
  }
  out += text.substr(done);
  return out;
}

std::string ApplyStep(const NormalizerStep& step, std::string text, Before before) {
  switch (step.kind) {
    case Kind::kNfc:
      return NormalForm(text, UTF8PROC_COMPOSE);
    case Kind::kNfd:
      return NormalForm(text, UTF8PROC_DECOMPOSE);
    case Kind::kNfkc:
      return NormalForm(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case Kind::kNfkd:
      return NormalForm(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    case Kind::kLowercase:
      return Lowercase(text);
    case Kind::kStripAccents:
      return StripAccents(text);
    case Kind::kStripLeft:
      return text.substr(LeadingSpaces(text));
    case Kind::kStripRight:
      return text.substr(0, text.size() - TrailingSpaces(text));
    case Kind::kPrepend:
      return text.empty() || before == Before::kText ? text : step.content + text;
    case Kind::kReplace:
      return Replace(text, *step.pattern, step.content);
    case Kind::kCharsMap:
      return step.chars_map->Apply(text);
  }
  return text;
}

}  // namespace

std::string Normalizer::Prefix() const {
  std::string prefix;
  for (const NormalizerStep& step : steps_) {
    if (step.kind == Kind::kPrepend) prefix.insert(0, step.content);
  }
  return prefix;
}

std::string Normalizer::Apply(std::string_view text, Before before) const {
  std::string normal(text);
  for (const NormalizerStep& step : steps_) normal = ApplyStep(step, std::move(normal), before);
  return normal;
}

}  // namespace ebb
