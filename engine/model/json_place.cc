#include "engine/model/json_place.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_format.h"
#include "engine/model/gguf.h"
#include "engine/model/json_text.h"
#include "policies/status.h"

namespace ebb {

JsonPlace JsonPlace::operator[](std::string_view name) const {
  JsonPlace member = *this;
  member.path_ += path_.empty() ? Printable(name) : absl::StrFormat(".%s", Printable(name));
  member.value_ = nullptr;
  if (value_ != nullptr && value_->is_object()) {
    const auto found = value_->find(name);
    if (found != value_->end()) member.value_ = &*found;
  }
  return member;
}

JsonPlace JsonPlace::operator[](size_t index) const {
  JsonPlace element = *this;
  element.path_ += absl::StrFormat("[%d]", index);
  element.value_ = &(*value_)[index];
  return element;
}

absl::StatusOr<std::vector<JsonPlace>> JsonPlace::Elements() const {
  std::vector<JsonPlace> elements;
  if (!*this) return elements;
  if (!value_->is_array()) return Wrong("an array");
  elements.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) elements.push_back((*this)[i]);
  return elements;
}

absl::StatusOr<std::string> JsonPlace::Text() const {
  if (!*this || !value_->is_string()) return Wrong("a text");
  return value_->get<std::string>();
}

absl::StatusOr<std::string> JsonPlace::Text(std::string_view otherwise) const {
  if (!*this) return std::string(otherwise);
  return Text();
}

absl::StatusOr<bool> JsonPlace::Flag(bool otherwise) const {
  if (!*this) return otherwise;
  if (!value_->is_boolean()) return Wrong("true or false");
  return value_->get<bool>();
}

absl::StatusOr<int32_t> JsonPlace::Id() const {
  if (!*this || !value_->is_number_integer() || *value_ < 0 || *value_ > std::numeric_limits<int32_t>::max()) {
    return Wrong("the id of a token");
  }
  return value_->get<int32_t>();
}

absl::Status JsonPlace::HasOnly(std::span<const std::string_view> names) const {
  if (!*this || !value_->is_object()) return Wrong("an object");
  for (const auto& [name, value] : value_->items()) {
    if (value.is_null() || std::ranges::find(names, name) != names.end()) continue;
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("%s: %s is not known and not null: %s", *file_, (*this)[name].path_, ShowJson(value)),
                  {.reason = "UNSUPPORTED_TOKENIZER"});
  }
  return absl::OkStatus();
}

std::string JsonPlace::Found() const { return value_ == nullptr ? "none" : ShowJson(*value_); }

absl::Status JsonPlace::Wrong(const std::string& expected) const {
  return DamagedJson(*file_, path_, expected, Found());
}

absl::Status JsonPlace::NotKnown(const std::string& known) const {
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("%s: %s: %s is not known; known: %s", *file_, path_, Found(), known),
                {.reason = "UNSUPPORTED_TOKENIZER"});
}

}  // namespace ebb
