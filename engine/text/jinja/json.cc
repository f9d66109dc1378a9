#include "engine/text/jinja/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/utf8.h"
#include "policies/status.h"

namespace ebb::jinja {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kJsonDepthMax = 50;

absl::StatusOr<Value> Convert(const Json& json, int32_t depth) {
  if (depth > kJsonDepthMax) {
    return absl::InvalidArgumentError(absl::StrCat("it is nested deeper than ", kJsonDepthMax));
  }
  switch (json.type()) {
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        EBB_ASSIGN(Value value, Convert(item, depth + 1));
        dict.Set(Value::Said(key), std::move(value));
      }
      return Value(std::move(dict));
    }
    case Json::value_t::array: {
      List list;
      for (const Json& item : json) {
        EBB_ASSIGN(list.emplace_back(), Convert(item, depth + 1));
      }
      return Value(std::move(list));
    }
    case Json::value_t::string:
      return Value::Said(json.get_ref<const std::string&>());
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return Value(json.get<double>());
      return Value(json.get<int64_t>());
    case Json::value_t::number_float:
      return Value(json.get<double>());
    default:
      return Value(None{});
  }
}

void Quote(std::string_view text, const JsonStyle& style, std::string& out) {
  out += '"';
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8(text);
    const std::string_view character = text.substr(0, static_cast<size_t>(unit.size));
    const char c = character[0];
    text.remove_prefix(character.size());
    if (AppendEscaped(c, '"', out)) continue;
    if (c == '\b') {
      out += "\\b";
    } else if (c == '\f') {
      out += "\\f";
    } else if (static_cast<uint8_t>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<uint8_t>(c));
    } else if (unit.kind != Utf8Kind::kCharacter) {
      out += kReplacementCharacter;
    } else if (style.ascii && unit.code > 0xFFFF) {
      absl::StrAppendFormat(&out, "\\u%04x\\u%04x", 0xD800 + ((unit.code - 0x10000) >> 10),
                            0xDC00 + (unit.code & 0x3FF));
    } else if (style.ascii && unit.code > 0x7E) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<uint32_t>(unit.code));
    } else {
      out += character;
    }
  }
  out += '"';
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  absl::Status Write(const Value& value) {
    if (const Text* text = value.text()) {
      Quote(text->bytes(), style_, out_);
    } else if (value.none()) {
      out_ += "null";
    } else if (const auto flag = value.boolean()) {
      out_ += *flag ? "true" : "false";
    } else if (value.is_float()) {
      out_ += FloatText(*value.number());
    } else if (const auto number = value.integer()) {
      absl::StrAppend(&out_, *number);
    } else if (const List* list = value.list()) {
      return Enclosed('[', ']', list->size(), [&](size_t i) { return Write((*list)[i]); });
    } else if (const Dict* dict = value.dict()) {
      return WriteDict(*dict);
    } else {
      return Wrong(absl::StrCat("tojson cannot write ", std::string(value.Kind())));
    }
    return absl::OkStatus();
  }

  std::string Take() { return std::move(out_); }

 private:
  absl::Status WriteDict(const Dict& dict) {
    std::vector<std::pair<std::string, const Value*>> entries;
    for (const auto& [key, value] : dict.entries()) entries.emplace_back(Written(key).bytes(), &value);
    if (style_.sort_keys) std::ranges::stable_sort(entries, {}, &std::pair<std::string, const Value*>::first);
    return Enclosed('{', '}', entries.size(), [&](size_t i) {
      Quote(entries[i].first, style_, out_);
      out_ += style_.key_separator;
      return Write(*entries[i].second);
    });
  }

  template <typename WriteItem>
  absl::Status Enclosed(char open, char close, size_t items, const WriteItem& write) {
    out_ += open;
    ++level_;
    for (size_t i = 0; i < items; ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine();
      EBB_TRY(write(i));
    }
    --level_;
    if (items > 0) NewLine();
    out_ += close;
    return absl::OkStatus();
  }

  void NewLine() {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(style_.indent) * level_, ' ');
  }

  const JsonStyle style_;
  size_t level_ = 0;
  std::string out_ = {};
};

}  // namespace

absl::StatusOr<Value> FromJson(std::string_view json) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return absl::InvalidArgumentError("it is not JSON");
  return Convert(parsed, 0);
}

absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  EBB_TRY(writer.Write(value));
  return writer.Take();
}

}  // namespace ebb::jinja
