#include "tests/support/request_mutations.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "policies/check.h"
#include "server/services.h"

namespace ebb {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kLongText = 3000;  // longer than every name, stop text and request_id may be
constexpr int kMany = 5000;
constexpr int kManyMessages = 2000;

// Sets the field, or a list's only entry.
template <typename Value, typename Set, typename Add>
auto Setter(const FieldDescriptor* field, Value value, Set set, Add add) {
  return [=](Message& at) {
    const Reflection& reflection = *at.GetReflection();
    if (field->is_repeated()) {
      reflection.ClearField(&at, field);
      (reflection.*add)(&at, field, value);
    } else {
      (reflection.*set)(&at, field, value);
    }
  };
}

struct Value {
  std::string text = {};
  bool never = false;
  std::function<void(Message&)> set = {};
};

template <typename Number, typename Set, typename Add>
void AddIntegers(const FieldDescriptor* field, Set set, Add add, std::vector<Value>& values) {
  using Limits = std::numeric_limits<Number>;
  for (const Number number : {Number{0}, Number{1}, static_cast<Number>(-1), Limits::min(), Limits::max(),
                              static_cast<Number>(Limits::max() / 2 + 1), static_cast<Number>((1 << 24) + 1)}) {
    values.push_back({.text = absl::StrFormat("%d", number), .never = false, .set = Setter(field, number, set, add)});
  }
}

template <typename Number, typename Set, typename Add>
void AddFractions(const FieldDescriptor* field, Set set, Add add, std::vector<Value>& values) {
  using Limits = std::numeric_limits<Number>;
  for (const Number number : {Number{0}, Number{-1}, Limits::lowest(), Limits::max(), Limits::denorm_min(),
                              Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    values.push_back({.text = absl::StrFormat("%g", number),
                      .never = !std::isfinite(number),
                      .set = Setter(field, number, set, add)});
  }
}

void AddEnums(const FieldDescriptor* field, std::vector<Value>& values) {
  const EnumDescriptor& type = *field->enum_type();
  for (const int number : {-1, 0, 1, type.value_count(), std::numeric_limits<int>::max()}) {
    values.push_back({.text = absl::StrFormat("%d", number),
                      .never = type.FindValueByNumber(number) == nullptr,
                      .set = Setter(field, number, &Reflection::SetEnumValue, &Reflection::AddEnumValue)});
  }
}

void AddTexts(const FieldDescriptor* field, std::vector<Value>& values) {
  const bool bytes = field->type() == FieldDescriptor::TYPE_BYTES;
  const auto add = [&](const std::string& name, const std::string& text, bool never = false) {
    values.push_back(
        {.text = name, .never = never, .set = Setter(field, text, &Reflection::SetString, &Reflection::AddString)});
  };
  add("nothing", "");
  add("much", std::string(kLongText, 'a'));
  add("no UTF-8", "\xC3\x28\xFF", !bytes);
  add("a zero", std::string("a\0b", 3));
  add("control characters", "\x1b[2J\r\n\x07");
  add("a path", "../../../etc/passwd");
  if (!bytes) return;
  add("a float that is none", std::string("\x00\x00\xC0\x7F", 4));
  add("infinite floats", std::string("\x00\x00\x80\x7F\x00\x00\x80\xFF", 8));
  add("negative numbers", std::string("\xFE\xFF\xFF\xFF\x00\x00\x00\x80", 8));
  add("zeros", std::string(4096, '\0'));
}

std::vector<Value> ValuesOf(const FieldDescriptor* field) {
  std::vector<Value> values;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      AddIntegers<int32_t>(field, &Reflection::SetInt32, &Reflection::AddInt32, values);
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      AddIntegers<int64_t>(field, &Reflection::SetInt64, &Reflection::AddInt64, values);
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      AddIntegers<uint32_t>(field, &Reflection::SetUInt32, &Reflection::AddUInt32, values);
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      AddIntegers<uint64_t>(field, &Reflection::SetUInt64, &Reflection::AddUInt64, values);
      break;
    case FieldDescriptor::CPPTYPE_FLOAT:
      AddFractions<float>(field, &Reflection::SetFloat, &Reflection::AddFloat, values);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      AddFractions<double>(field, &Reflection::SetDouble, &Reflection::AddDouble, values);
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      for (const bool truth : {false, true}) {
        values.push_back({.text = truth ? "true" : "false",
                          .never = false,
                          .set = Setter(field, truth, &Reflection::SetBool, &Reflection::AddBool)});
      }
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      AddEnums(field, values);
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      AddTexts(field, values);
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return values;
}

// A list of its own first entry, over and over.
void Repeat(Message& at, const FieldDescriptor* field) {
  const Reflection& reflection = *at.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    for (int i = 0; i < kManyMessages; ++i) {
      Message* const entry = reflection.AddMessage(&at, field);
      if (!field->is_map()) continue;
      const FieldDescriptor* const key = entry->GetDescriptor()->map_key();
      if (key->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
        entry->GetReflection()->SetUInt32(entry, key, static_cast<uint32_t>(i));
      }
    }
    return;
  }
  const std::unique_ptr<Message> one(at.New());
  ValuesOf(field)[1].set(*one);
  for (int i = 0; i < kMany; ++i) at.MergeFrom(*one);
}

// As likely of one magnitude as of another.
int64_t RandomInteger(HashRandom& random) {
  const auto bits = static_cast<int64_t>(random.Next64());
  return bits >> random.Uniform(0, 63);  // keeps the sign
}

double RandomFraction(HashRandom& random) {
  const double sign = random.Uniform(0, 3) == 0 ? -1 : 1;
  return sign * random.UniformFloat() * std::pow(10.0, random.Uniform(-12, 12));
}

// UTF-8, unless it is of bytes.
std::string RandomText(bool bytes, HashRandom& random) {
  const int length = random.Uniform(0, 1 << random.Uniform(0, 10));
  const bool letters = random.Uniform(0, 1) == 0;
  std::string text;
  for (int i = 0; i < length; ++i) {
    const int character = letters ? random.Uniform('a', 'z') : random.Uniform(0, bytes ? 0xFF : 0x7FF);
    if (bytes || character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xC0 | character >> 6);
      text += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return text;
}

// Sets the field, or adds an entry of a list.
void AddRandomly(Message& at, const FieldDescriptor* field, HashRandom& random) {
  const Reflection& reflection = *at.GetReflection();
  const auto give = [&](auto value, auto set, auto add) {
    field->is_repeated() ? (reflection.*add)(&at, field, value) : (reflection.*set)(&at, field, value);
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return give(static_cast<int32_t>(RandomInteger(random)), &Reflection::SetInt32, &Reflection::AddInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return give(RandomInteger(random), &Reflection::SetInt64, &Reflection::AddInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return give(static_cast<uint32_t>(RandomInteger(random)), &Reflection::SetUInt32, &Reflection::AddUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return give(static_cast<uint64_t>(RandomInteger(random)), &Reflection::SetUInt64, &Reflection::AddUInt64);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return give(static_cast<float>(RandomFraction(random)), &Reflection::SetFloat, &Reflection::AddFloat);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return give(RandomFraction(random), &Reflection::SetDouble, &Reflection::AddDouble);
    case FieldDescriptor::CPPTYPE_BOOL:
      return give(random.Uniform(0, 1) == 1, &Reflection::SetBool, &Reflection::AddBool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return give(field->enum_type()->value(random.Uniform(0, field->enum_type()->value_count() - 1))->number(),
                  &Reflection::SetEnumValue, &Reflection::AddEnumValue);
    case FieldDescriptor::CPPTYPE_STRING:
      return give(RandomText(field->type() == FieldDescriptor::TYPE_BYTES, random), &Reflection::SetString,
                  &Reflection::AddString);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  EBB_CHECK(false);
}

void Walk(const Descriptor& type, const Place& above, std::vector<Place>& places) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    const Place place = {.path = above.path + field->name(), .parents = above.parents, .field = field};
    places.push_back(place);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const bool again = std::ranges::any_of(
        place.parents, [&](const FieldDescriptor* parent) { return parent->message_type() == field->message_type(); });
    if (again) continue;
    Place within = {.path = place.path + ".", .parents = place.parents};
    within.parents.push_back(field);
    Walk(*field->message_type(), within, places);
  }
}

}  // namespace

std::vector<Place> PlacesIn(const Descriptor& request) {
  std::vector<Place> places;
  Walk(request, {}, places);
  return places;
}

Message& Locate(Message& request, std::span<const FieldDescriptor* const> parents) {
  Message* at = &request;
  for (const FieldDescriptor* field : parents) {
    const Reflection& reflection = *at->GetReflection();
    if (!field->is_repeated()) {
      at = reflection.MutableMessage(at, field);
    } else if (reflection.FieldSize(*at, field) == 0) {
      at = reflection.AddMessage(at, field);
    } else {
      at = reflection.MutableRepeatedMessage(at, field, 0);
    }
  }
  return *at;
}

void SetRandomly(Message& request, const Place& place, HashRandom& random) {
  Message& at = Locate(request, place.parents);
  at.GetReflection()->ClearField(&at, place.field);
  for (int i = place.field->is_repeated() ? random.Uniform(0, 1 << random.Uniform(0, 6)) : 1; i > 0; --i) {
    AddRandomly(at, place.field, random);
  }
}

std::vector<Mutation> MutationsOf(const Descriptor& request) {
  std::vector<Mutation> mutations;
  for (const Place& place : PlacesIn(request)) {
    const FieldDescriptor* const field = place.field;
    const auto add = [&](const std::string& value, bool never, const std::function<void(Message&)>& change) {
      mutations.push_back(
          {.path = place.path,
           .value = value,
           .never = never,
           .apply = [parents = place.parents, change](Message& root) { change(Locate(root, parents)); }});
    };
    if (field->is_repeated()) add("many", false, [field](Message& at) { Repeat(at, field); });
    for (const Value& value : ValuesOf(field)) add(value.text, value.never, value.set);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    add("an empty message", false, [field](Message& at) { Locate(at, {&field, 1}).Clear(); });
  }
  return mutations;
}

bool HasField(const Descriptor& request, std::string_view path) {
  const Descriptor* at = &request;
  for (const absl::string_view part : absl::StrSplit(absl::string_view(path.data(), path.size()), '.')) {
    if (at == nullptr) return false;
    const std::string name(part.substr(0, part.find('[')));
    const FieldDescriptor* const field = at->FindFieldByName(name);
    if (field == nullptr) return at->FindOneofByName(name) != nullptr;
    at = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ? field->message_type() : nullptr;
  }
  return true;
}

std::vector<Method> AllMethods() {
  std::vector<Method> methods;
  for (const auto* const service : AllServices()) {
    for (int i = 0; i < service->method_count(); ++i) {
      methods.push_back({service->full_name() + "/" + service->method(i)->name(), service->method(i)});
    }
  }
  return methods;
}

std::unique_ptr<Message> NewRequest(const google::protobuf::MethodDescriptor& method) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(method.input_type())->New());
}

}  // namespace ebb
