#include "tests/support/field_promises.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/duration.pb.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <regex>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "policies/check.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptorSet;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Holds every number of every type that a field has: 64 bits of mantissa at least.
using Number = long double;
static_assert(std::numeric_limits<Number>::digits >= 64);

constexpr Number kSecond = 1e9L;  // durations are in nanoseconds

const std::regex& RangePhrase() {
  static const std::regex kPhrase(R"(Range (?:of [a-z ]+ )?([\[(])([^,\])]+), ([^\])]+)([\])]))");
  return kPhrase;
}

bool IsDuration(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field.message_type() == google::protobuf::Duration::descriptor();
}

bool IsFraction(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT || field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
}

struct Bounds {
  Number min = 0;
  Number max = 0;
};

template <typename T>
Bounds BoundsOf() {
  return {.min = std::numeric_limits<T>::lowest(), .max = std::numeric_limits<T>::max()};
}

// What the field's type can say.
Bounds TypeBounds(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return BoundsOf<int32_t>();
    case FieldDescriptor::CPPTYPE_INT64:
      return BoundsOf<int64_t>();
    case FieldDescriptor::CPPTYPE_UINT32:
      return BoundsOf<uint32_t>();
    case FieldDescriptor::CPPTYPE_UINT64:
      return BoundsOf<uint64_t>();
    default:
      return BoundsOf<Number>();
  }
}

// The next number of the field's type, up or down.
Number Next(const FieldDescriptor& field, Number number, int direction) {
  const Number to = direction * std::numeric_limits<Number>::infinity();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_FLOAT:
      return std::nextafter(static_cast<float>(number), static_cast<float>(to));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return std::nextafter(static_cast<double>(number), static_cast<double>(to));
    default:
      return number + direction;
  }
}

template <typename T, typename Set, typename Add>
void SetOrAdd(Message& at, const FieldDescriptor* field, T value, Set set, Add add) {
  const Reflection& reflection = *at.GetReflection();
  if (field->is_repeated()) {
    reflection.ClearField(&at, field);
    (reflection.*add)(&at, field, value);
  } else {
    (reflection.*set)(&at, field, value);
  }
}

void SetNumber(Message& at, const FieldDescriptor* field, Number number) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return SetOrAdd(at, field, static_cast<int32_t>(number), &Reflection::SetInt32, &Reflection::AddInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return SetOrAdd(at, field, static_cast<int64_t>(number), &Reflection::SetInt64, &Reflection::AddInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return SetOrAdd(at, field, static_cast<uint32_t>(number), &Reflection::SetUInt32, &Reflection::AddUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return SetOrAdd(at, field, static_cast<uint64_t>(number), &Reflection::SetUInt64, &Reflection::AddUInt64);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return SetOrAdd(at, field, static_cast<float>(number), &Reflection::SetFloat, &Reflection::AddFloat);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return SetOrAdd(at, field, static_cast<double>(number), &Reflection::SetDouble, &Reflection::AddDouble);
    default:
      break;
  }
  EBB_CHECK(IsDuration(*field));
  google::protobuf::Duration duration;
  duration.set_seconds(static_cast<int64_t>(std::trunc(number / kSecond)));
  duration.set_nanos(static_cast<int32_t>(number - duration.seconds() * kSecond));
  at.GetReflection()->MutableMessage(&at, field)->CopyFrom(duration);
}

// "2^20", "0.0001", "1s", "30 days", or a word.
std::optional<Number> EndOf(const std::string& text, const EndWords& words) {
  if (const auto word = words.find(text); word != words.end()) return word->second;
  static const std::regex kNumber(R"((-?[0-9.e]+)(?:\^([0-9]+))?(s| days)?)");
  std::smatch parts;
  double number = 0;
  if (!std::regex_match(text, parts, kNumber) || !absl::SimpleAtod(parts[1].str(), &number)) return std::nullopt;
  if (parts[2].matched) return std::pow(Number{number}, static_cast<Number>(std::stoi(parts[2])));
  if (!parts[3].matched) return number;
  return number * kSecond * (parts[3] == "s" ? 1 : 24 * 60 * 60);
}

void AddNumbers(const FieldDescriptor& field, const std::string& comment, const EndWords& words,
                std::vector<FieldTrial>& trials) {
  std::smatch range;
  if (!std::regex_search(comment, range, RangePhrase())) return;
  const bool endless = range[3] == "inf";
  EBB_CHECK(!(endless && IsFraction(field)));
  const std::optional<Number> low = EndOf(range[2], words);
  const std::optional<Number> high = endless ? TypeBounds(field).max : EndOf(range[3], words);
  if (!low || !high) {
    ADD_FAILURE() << field.full_name() << ": no number for " << range[low ? 3 : 2] << " in: " << comment;
    return;
  }
  const Number first = range[1] == "[" ? *low : Next(field, *low, 1);
  const Number last = endless || range[4] == "]" ? *high : Next(field, *high, -1);
  const auto add = [&](Number number, bool beyond) {
    const Bounds bounds = TypeBounds(field);
    if (number < bounds.min || number > bounds.max) return;  // nobody can send it
    trials.push_back({.value = absl::StrFormat("%.21g", number),
                      .beyond = beyond,
                      .set = [field = &field, number](Message& at) { SetNumber(at, field, number); }});
  };
  add(Next(field, first, -1), true);
  add(first, false);
  add(last, false);
  add(Next(field, last, 1), true);
}

void SetText(Message& at, const FieldDescriptor* field, const std::string& text) {
  SetOrAdd(at, field, text, &Reflection::SetString, &Reflection::AddString);
}

struct Amount {
  size_t min = 0;
  size_t max = 0;
};

// Of "2 to 8" or "at most 8".
std::optional<Amount> AmountOf(const std::string& comment, const std::string& unit) {
  std::smatch match;
  const std::regex phrase("(?:(\\d[\\d,]*) to|[Aa]t most) (\\d[\\d,]*)" + unit);
  if (!std::regex_search(comment, match, phrase)) return std::nullopt;
  const auto number = [](const std::string& text) {
    size_t value = 0;
    EBB_CHECK(text.empty() || absl::SimpleAtoi(absl::StrReplaceAll(text, {{",", ""}}), &value));
    return value;
  };
  return Amount{.min = number(match[1]), .max = number(match[2])};
}

void AddAmounts(const Amount& amount, const std::string& unit, const std::function<void(Message&, size_t)>& set,
                std::vector<FieldTrial>& trials) {
  const auto add = [&](size_t count, bool beyond) {
    trials.push_back({.value = absl::StrCat(count, " ", unit), .beyond = beyond, .set = [set, count](Message& at) {
                        set(at, count);
                      }});
  };
  if (amount.min > 0) add(amount.min - 1, true);
  add(amount.min, false);
  add(amount.max, false);
  add(amount.max + 1, true);
}

void AddNames(const FieldDescriptor* field, const std::string& comment, std::vector<FieldTrial>& trials) {
  if (comment.find(kResourceNamePattern) == std::string::npos) return;
  const auto add = [&](const std::string& name, bool beyond) {
    trials.push_back({.value = name, .beyond = beyond, .set = [field, name](Message& at) {
                        const std::string good = at.GetReflection()->GetString(at, field);
                        SetText(at, field, good.substr(0, good.rfind('/') + 1) + name);  // npos + 1 is 0
                      }});
  };
  add(std::string(63, 'a'), false);
  add("0._-", false);
  for (const char* wrong : {"-a", ".a", "_a", "A", "aB", "a b", "a/b", "\xC3\xA9"}) add(wrong, true);
  add(std::string(64, 'a'), true);
}

// Its first entry `count` times; of a map with keys 0, 1, ...
void SetEntries(Message& at, const FieldDescriptor* field, size_t count) {
  const Reflection& reflection = *at.GetReflection();
  std::unique_ptr<Message> first;
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && reflection.FieldSize(at, field) > 0) {
    const Message& there = reflection.GetRepeatedMessage(at, field, 0);
    first.reset(there.New());
    first->CopyFrom(there);
  }
  reflection.ClearField(&at, field);
  for (size_t i = 0; i < count; ++i) {
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        reflection.AddString(&at, field, "a");
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        reflection.AddUInt32(&at, field, 1);
        break;
      default: {
        EBB_CHECK(field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE);
        Message& entry = *reflection.AddMessage(&at, field);
        if (first != nullptr) entry.CopyFrom(*first);
        if (field->is_map()) SetNumber(entry, field->message_type()->map_key(), static_cast<Number>(i));
      }
    }
  }
}

}  // namespace

ProtoComments::ProtoComments(const std::string& descriptor_set_file) {
  std::ifstream file(descriptor_set_file, std::ios::binary);
  FileDescriptorSet files;
  EBB_CHECK(files.ParseFromIstream(&file));
  for (const auto& each : files.file()) EBB_CHECK(pool_.BuildFile(each) != nullptr);  // imports come first
}

std::string ProtoComments::Of(const FieldDescriptor& field) const {
  const FieldDescriptor* documented = pool_.FindFieldByName(field.full_name());
  EBB_CHECK(documented != nullptr);
  const google::protobuf::Descriptor& entry = *documented->containing_type();
  if (entry.options().map_entry()) {
    if (documented == entry.map_key()) return "";
    for (int i = 0; i < entry.containing_type()->field_count(); ++i) {
      if (entry.containing_type()->field(i)->message_type() == &entry) documented = entry.containing_type()->field(i);
    }
  }
  google::protobuf::SourceLocation location;
  EBB_CHECK(documented->GetSourceLocation(&location));
  static const std::regex kSpace("\\s+");
  return std::regex_replace(location.leading_comments, kSpace, " ");
}

bool IsNumber(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
    case FieldDescriptor::CPPTYPE_ENUM:
    case FieldDescriptor::CPPTYPE_STRING:
      return false;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return IsDuration(field);
    default:
      return true;
  }
}

bool HasRange(const std::string& comment) { return std::regex_search(comment, RangePhrase()); }

std::vector<FieldTrial> FieldTrialsOf(const FieldDescriptor& field, const std::string& comment, const EndWords& words) {
  std::vector<FieldTrial> trials;
  if (IsNumber(field)) AddNumbers(field, comment, words, trials);
  if (field.type() == FieldDescriptor::TYPE_STRING) {
    if (const auto bytes = AmountOf(comment, " bytes")) {
      const auto set = [field = &field](Message& at, size_t count) { SetText(at, field, std::string(count, 'a')); };
      AddAmounts(*bytes, "bytes", set, trials);
    }
    AddNames(&field, comment, trials);
  }
  if (field.is_repeated()) {
    if (const auto entries = AmountOf(comment, "(?![0-9,]* bytes)")) {
      const auto set = [field = &field](Message& at, size_t count) { SetEntries(at, field, count); };
      AddAmounts(*entries, "entries", set, trials);
    }
  }
  return trials;
}

}  // namespace ebb
