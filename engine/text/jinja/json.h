// Values from JSON, and to JSON as Python's json.dumps writes it.

#ifndef EBB_ENGINE_TEXT_JINJA_JSON_H_
#define EBB_ENGINE_TEXT_JINJA_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/value.h"

namespace ebb::jinja {

// All strings in it, keys too, are the caller's. INVALID_ARGUMENT: not JSON, or deeper than 50.
absl::StatusOr<Value> FromJson(std::string_view json);

struct JsonStyle {
  int32_t indent = -1;  // spaces per level; below 0: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
  bool ascii = false;  // other characters as \uXXXX
};

// FAILED_PRECONDITION: what JSON has no word for, such as what is undefined.
absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style);

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_JSON_H_
