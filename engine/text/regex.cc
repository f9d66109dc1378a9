#include "engine/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "engine/text/unicode.h"
#include "engine/text/utf8.h"
#include "policies/status.h"

namespace ebb {
namespace {

// Unicode's White_Space, where PCRE2's \s counts U+180E too; and Oniguruma's \w: letters and, to these, what counts as
// some (kEnclosedLetters), marks, digits, connectors. What stands between the brackets of a class.
constexpr std::string_view kSpaces = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWordCharacters = R"(\p{L}\p{Nl}\p{M}\p{Nd}\p{Pc})";

constexpr uint32_t kSearchKibibytesMax = 64 * 1024;

struct Shorthand {
  char letter = 0;
  std::string_view inside = {};  // a class
};
constexpr std::array<Shorthand, 5> kShorthands = {
    {{'s', kSpaces}, {'w', kWordCharacters}, {'d', R"(\p{Nd})"}, {'h', "0-9A-Fa-f"}, {'v', R"(\x{B})"}}};

// What may follow "(?".
constexpr std::array<std::string_view, 8> kGroups = {":", "=", "!", "<=", "<!", ">", "i:", "i)"};

class OnigurumaReader {
 public:
  explicit OnigurumaReader(std::string_view pattern) : rest_(pattern), size_(pattern.size()) {}

  absl::StatusOr<std::string> Rewrite() {
    while (!rest_.empty()) EBB_TRY(Next());
    if (class_depth_ > 0) return NotUnderstood("a class without its end");
    return std::move(out_);
  }

 private:
  absl::Status NotUnderstood(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrFormat("byte %d: %s is not understood", size_ - rest_.size(), what));
  }

  void Copy(size_t bytes) {
    out_ += rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
  }

  absl::Status Next() {
    const char c = rest_[0];
    if (c == '\\') return Escape();
    if (class_depth_ > 0) {
      if (rest_.starts_with("&&") || rest_.starts_with("[^") || rest_.starts_with("[:") || rest_.starts_with("-[")) {
        return NotUnderstood(absl::StrFormat("%s in a class", rest_.substr(0, 2)));
      }
      if (c == '[' || (c == ']' && class_depth_ > 1)) {  // a class in a class adds what it has
        class_depth_ += c == '[' ? 1 : -1;
        rest_.remove_prefix(1);
        return absl::OkStatus();
      }
      if (c == ']') --class_depth_;
    } else if (c == '[') {
      class_depth_ = 1;
      Copy(rest_.starts_with("[^") ? 2 : 1);
      if (rest_.starts_with("]")) return NotUnderstood("an empty class");
      return absl::OkStatus();
    } else if (rest_.starts_with("(?")) {
      for (const std::string_view group : kGroups) {
        if (!rest_.substr(2).starts_with(group)) continue;
        // To Oniguruma it takes in the alternatives that follow: a(?i)b|c is a(?i:b|c).
        if (group == "i)" && !out_.empty()) return NotUnderstood("(?i) behind the beginning");
        Copy(2 + group.size());
        return absl::OkStatus();
      }
      return NotUnderstood("this kind of group");
    } else if (rest_.starts_with("(*") || rest_.starts_with("}+") || rest_.starts_with("{,")) {
      return NotUnderstood(rest_.substr(0, 2));  // a{,3} is to Oniguruma a{0,3}
    } else if (c == '{') {
      const size_t digits = std::min(rest_.find_first_not_of("0123456789", 1), rest_.size());
      const bool optional = digits > 1 && rest_.substr(digits).starts_with("}?");  // to Oniguruma a{2}? is (?:a{2})?
      if (optional) return NotUnderstood(rest_.substr(0, digits + 2));
    }
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (rest_.size() < 2) return NotUnderstood("a backslash at the end");
    const char c = rest_[1];
    const bool negated = absl::ascii_isupper(static_cast<unsigned char>(c));
    for (const Shorthand& shorthand : kShorthands) {
      if (shorthand.letter != absl::ascii_tolower(static_cast<unsigned char>(c)) || c == 'V') continue;
      if (class_depth_ > 0 && negated) return NotUnderstood("a negated class within a class");
      if (class_depth_ == 0) out_ += negated ? "[^" : "[";
      out_ += shorthand.inside;
      if (shorthand.letter == 'w') {
        for (const auto& [first, last] : kEnclosedLetters) {
          absl::StrAppendFormat(&out_, "\\x{%X}-\\x{%X}", static_cast<uint32_t>(first), static_cast<uint32_t>(last));
        }
      }
      if (class_depth_ == 0) out_ += "]";
      rest_.remove_prefix(2);
      return absl::OkStatus();
    }
    if (c == 'p' || c == 'P') return Property();
    if (c == 'u') {
      if (rest_.size() < 6) return NotUnderstood("\\u without four digits");
      absl::StrAppendFormat(&out_, "\\x{%s}", rest_.substr(2, 4));
      rest_.remove_prefix(6);
      return absl::OkStatus();
    }
    if (rest_.starts_with("\\x{")) {
      const size_t end = rest_.find('}');
      if (end == std::string_view::npos) return NotUnderstood("\\x{ without its end");
      Copy(end + 1);
      return absl::OkStatus();
    }
    const bool plain = absl::ascii_ispunct(static_cast<unsigned char>(c)) || c == ' ';
    if (!plain && std::string_view("rntfeax").find(c) == std::string_view::npos) {
      return NotUnderstood(rest_.substr(0, 2));
    }
    Copy(2);
    return absl::OkStatus();
  }

  // \p{L}; \p{Han}, which to PCRE2 would be the script's extensions.
  absl::Status Property() {
    const size_t end = rest_.find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || end == std::string_view::npos) {
      return NotUnderstood("\\p without {name}");
    }
    const std::string_view name = rest_.substr(3, end - 3);
    const bool script = name.size() > 2 && name.find_first_of(":^=&") == std::string_view::npos && name != "Any";
    absl::StrAppendFormat(&out_, "\\%c{%s%s}", rest_[1], script ? "sc:" : "", name);
    rest_.remove_prefix(end + 1);
    return absl::OkStatus();
  }

  std::string_view rest_;
  const size_t size_;
  int class_depth_ = 0;
  std::string out_ = {};
};

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

absl::Status CheckText(std::string_view pattern) {
  if (pattern.size() > Regex::kBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("it is longer than %d bytes", Regex::kBytesMax));
  }
  if (ValidUtf8Size(pattern) != pattern.size()) return absl::InvalidArgumentError("it is not UTF-8");
  return absl::OkStatus();
}

}  // namespace

struct Regex::Code {
  pcre2_code* pattern = nullptr;
};

void Regex::FreeCode::operator()(Code* code) const {
  pcre2_code_free(code->pattern);
  delete code;
}

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern, uint32_t options) {
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | options,
                                   &error, &error_offset, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message = {};
    pcre2_get_error_message(error, message.data(), message.size());
    return absl::InvalidArgumentError(reinterpret_cast<const char*>(message.data()));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where the system forbids it, matching is slower, and finds the same
  Regex made;
  made.code_.reset(new Code{code});
  return made;
}

absl::StatusOr<Regex> Regex::Make(std::string_view pattern) {
  EBB_TRY(CheckText(pattern));
  EBB_ASSIGN(const std::string rewritten, OnigurumaReader(pattern).Rewrite());
  return Compile(rewritten, PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
}

absl::StatusOr<Regex> Regex::Literal(std::string_view text) {
  EBB_TRY(CheckText(text));
  return Compile(text, PCRE2_LITERAL);
}

Regex::Found Regex::FindAll(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeMatch> limits(pcre2_match_context_create(nullptr));
  pcre2_set_heap_limit(limits.get(), kSearchKibibytesMax);
  Found found;
  size_t from = 0;
  const auto search = [&](uint32_t options) {
    // The text was checked: PCRE2 would check all of the rest again for each match.
    return pcre2_match(code_->pattern, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, match.get(), limits.get());
  };
  while (from <= text.size()) {
    int result = search(0);
    // What was compiled to machine code goes back on a small stack, a word of some thousand letters too much for it.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = search(PCRE2_NO_JIT);
    found.ended_early = result < 0 && result != PCRE2_ERROR_NOMATCH;
    if (result < 0) break;
    const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(match.get());
    found.matches.push_back({bounds[0], bounds[1]});
    from = bounds[1];
    if (bounds[0] < bounds[1]) continue;
    if (from == text.size()) break;
    from += static_cast<size_t>(FirstUtf8(text.substr(from)).size);
  }
  return found;
}

}  // namespace ebb
