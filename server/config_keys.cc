#include "server/config_keys.h"

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/address.h"
#include "server/resource_name.h"
#include "server/units.h"

namespace ebb {
namespace {

using config::v1::Config;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::vector<ConfigKey> ReadKeys() {
  std::vector<ConfigKey> keys;
  const Descriptor* root = Config::descriptor();
  for (int i = 0; i < root->field_count(); ++i) {
    const FieldDescriptor* section = root->field(i);
    const Descriptor* fields =
        section->is_map() ? section->message_type()->map_value()->message_type() : section->message_type();
    for (int j = 0; j < fields->field_count(); ++j) {
      const FieldDescriptor* field = fields->field(j);
      keys.push_back({.section = section->name(),
                      .name = field->name(),
                      .section_field = section,
                      .field = field,
                      .key = field->options().GetExtension(config::v1::key)});
    }
  }
  return keys;
}

// Any key of the section, or null if there is no such section.
const ConfigKey* FindSection(std::string_view section) {
  const auto keys = ConfigKeys();
  const auto at = std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& key) { return key.section == section; });
  return at == keys.end() ? nullptr : &*at;
}

bool IsDuration(const FieldDescriptor& field) { return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE; }
bool IsFraction(const FieldDescriptor& field) { return field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE; }

constexpr double kBillion = 1e9;

// In billionths, rounded.
std::optional<uint64_t> ReadFraction(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(number >= 0 && number <= kBillion)) return std::nullopt;  // NaN included
  return static_cast<uint64_t>(std::llround(number * kBillion));
}

std::string Allowed(const config::v1::Key& key) { return absl::StrFormat("[%s, %s]", key.min(), key.max()); }

// The field's number, a fraction's billionths or the duration's nanoseconds, so that one comparison serves all ranges.
std::optional<uint64_t> ReadNumber(const ConfigKey& key, std::string_view text) {
  if (IsDuration(*key.field)) {
    const auto time = ParseTime(text);
    return time ? std::optional<uint64_t>(absl::ToInt64Nanoseconds(*time)) : std::nullopt;
  }
  if (key.key.kind() == config::v1::KIND_SIZE) return ParseSize(text);
  if (IsFraction(*key.field)) return ReadFraction(text);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

const char* NumberExample(const ConfigKey& key) {
  if (IsDuration(*key.field)) return "a time with its unit, for example 250ms, 10s or 5m";
  if (key.key.kind() == config::v1::KIND_SIZE) return "a size, for example 4096, 64KiB, 4MiB or 2GiB";
  if (IsFraction(*key.field)) return "a number, for example 0.05";
  return "a whole number";
}

void Store(const ConfigKey& key, uint64_t number, Message& section) {
  const auto& reflection = *section.GetReflection();
  if (IsDuration(*key.field)) {
    reflection.MutableMessage(&section, key.field)
        ->CopyFrom(google::protobuf::util::TimeUtil::NanosecondsToDuration(static_cast<int64_t>(number)));
  } else if (key.field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    reflection.SetUInt32(&section, key.field, static_cast<uint32_t>(number));
  } else if (IsFraction(*key.field)) {
    reflection.SetDouble(&section, key.field, static_cast<double>(number) / kBillion);
  } else {
    reflection.SetUInt64(&section, key.field, number);
  }
}

// Says what is wrong with `text`, or stores it.
absl::Status SetText(const ConfigKey& key, const std::string& path, std::string_view text, Message& section) {
  const auto& choices = key.key.choices();
  const bool is_default = text == key.key.default_();
  if (!choices.empty() && !is_default && std::find(choices.begin(), choices.end(), text) == choices.end()) {
    return RefuseField("BAD_VALUE", path, absl::StrFormat("'%s' is none of %s", text, absl::StrJoin(choices, ", ")));
  }
  if (key.key.kind() == config::v1::KIND_ADDRESS && !(text.empty() && key.key.may_be_empty())) {
    const auto address = ParseAddress(text);
    if (!address.ok()) return RefuseField("BAD_VALUE", path, std::string(address.status().message()));
  }
  section.GetReflection()->SetString(&section, key.field, std::string(text));
  return absl::OkStatus();
}

void SetDefaults(std::string_view section_name, Message& section) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section != section_name) continue;
    const absl::Status set = SetConfigField(key, key.Path(), key.key.default_(), section);
    EBB_CHECK(set.ok());
  }
}

// Gives `use` the map that a section of named ones is: reflection shows it as a list, in which finding one is a search.
template <typename Use>
auto OfNamed(std::string_view section, const Config& config, const Use& use) {
  if (section == "tenants") return use(config.tenants());
  EBB_CHECK(section == "models");
  return use(config.models());
}

// Null: there is none of that name.
const Message* FindNamed(std::string_view section, const std::string& name, const Config& config) {
  return OfNamed(section, config, [&name](const auto& map) -> const Message* {
    const auto found = map.find(name);
    return found == map.end() ? nullptr : &found->second;
  });
}

// Made where there is none.
Message& MakeNamed(std::string_view section, const std::string& name, Config& config) {
  if (section == "tenants") return (*config.mutable_tenants())[name];
  EBB_CHECK(section == "models");
  return (*config.mutable_models())[name];
}

Message& Section(const ConfigPlace& place, Config& config) {
  if (place.key->is_named()) return MakeNamed(place.key->section, place.name, config);
  return *config.GetReflection()->MutableMessage(&config, place.key->section_field);
}

const Message& Section(const ConfigPlace& place, const Config& config) {
  if (!place.key->is_named()) return config.GetReflection()->GetMessage(config, place.key->section_field);
  const Message* const named = FindNamed(place.key->section, place.name, config);
  EBB_CHECK(named != nullptr);
  return *named;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string_view LastSegment(std::string_view path) { return path.substr(path.rfind('.') + 1); }

absl::Status UnknownKey(std::string_view path, const std::string& name) {
  std::vector<std::string> known;
  for (const ConfigKey& key : ConfigKeys()) known.push_back(key.Path(name.empty() ? "NAME" : name));
  for (const ConfigKey& key : ConfigKeys()) {
    if (std::find(known.begin(), known.end(), key.section) == known.end()) known.push_back(key.section);
  }
  return RefuseField("UNKNOWN_KEY", std::string(path),
                     absl::StrCat("there is no such key; the nearest is ", NearestWord(path, known)));
}

}  // namespace

std::string ConfigKey::Path(std::string_view of) const {
  if (is_named()) return absl::StrFormat("%s.%s.%s", section, of, name);
  return absl::StrCat(section, ".", name);
}

std::string ConfigKey::Variable() const {
  if (is_named()) return "";
  return absl::StrCat("EBB_", absl::AsciiStrToUpper(section), "_", absl::AsciiStrToUpper(name));
}

std::string ConfigKey::Shape() const {
  if (key.choices_size() > 0) return absl::StrJoin(key.choices(), "|");
  if (key.kind() == config::v1::KIND_ADDRESS) return "HOST:PORT";
  if (key.kind() == config::v1::KIND_SIZE) return "SIZE";
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) return "TEXT";
  return IsDuration(*field) ? "TIME" : "N";
}

std::span<const ConfigKey> ConfigKeys() {
  static const std::vector<ConfigKey> keys = ReadKeys();
  return keys;
}

absl::StatusOr<ConfigPlace> FindConfigPlace(const ConfigPath& path) {
  EBB_CHECK(!path.empty());
  const std::string text = absl::StrJoin(path, ".");
  const ConfigKey* section = FindSection(path[0]);
  if (section == nullptr) return UnknownKey(text, "");
  if (path.size() == 1) return ConfigPlace();
  ConfigPlace place;
  if (section->is_named()) place.name = path[1];
  if (section->is_named() && !IsResourceName(place.name)) {
    const std::string pattern(kResourceNamePattern);
    if (section->section == "models") {
      return RefuseField("INVALID_MODEL", text, absl::StrFormat("'%s' is no model's name, %s", place.name, pattern));
    }
    return RefuseField("INVALID_TENANT", text, absl::StrFormat("'%s' is no tenant's name, %s", place.name, pattern));
  }
  const size_t depth = section->is_named() ? 3 : 2;
  if (path.size() < depth) return place;
  for (const ConfigKey& key : ConfigKeys()) {
    if (path.size() == depth && key.section == path[0] && key.name == path.back()) place.key = &key;
  }
  if (place.key == nullptr) return UnknownKey(text, place.name);
  return place;
}

ConfigPath SplitConfigPath(std::string_view path) {
  const size_t first = path.find('.');
  ConfigPath segments = {std::string(path.substr(0, first))};
  if (first == std::string_view::npos) return segments;
  std::string_view rest = path.substr(first + 1);
  const ConfigKey* section = FindSection(segments[0]);
  const size_t last = rest.rfind('.');
  if (section != nullptr && section->is_named() && last != std::string_view::npos) {
    segments.emplace_back(rest.substr(0, last));
    rest = rest.substr(last + 1);
  }
  segments.emplace_back(rest);
  return segments;
}

absl::Status SetConfigField(const ConfigKey& key, const std::string& path, std::string_view text, Message& section) {
  if (key.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) return SetText(key, path, text, section);
  const auto number = ReadNumber(key, text);
  if (!number) {
    return RefuseField("BAD_VALUE", path,
                       absl::StrFormat("'%s' is not %s, in %s", text, NumberExample(key), Allowed(key.key)));
  }
  if (*number < *ReadNumber(key, key.key.min()) || *number > *ReadNumber(key, key.key.max())) {
    return RefuseField("BAD_VALUE", path, absl::StrFormat("%s is not in %s", text, Allowed(key.key)));
  }
  Store(key, *number, section);
  return absl::OkStatus();
}

absl::Status SetConfigValue(const ConfigPlace& place, std::string_view text, Config& config) {
  EBB_CHECK(place.key != nullptr);
  if (place.key->is_named()) AddNamed(place.key->section, place.name, config);
  return SetConfigField(*place.key, place.key->Path(place.name), text, Section(place, config));
}

void AddNamed(const std::string& section, const std::string& name, Config& config) {
  if (FindNamed(section, name, config) != nullptr) return;
  if (section == "tenants") {
    (*config.mutable_tenants())[name] = config.tenant_defaults();
  } else {
    SetDefaults(section, MakeNamed(section, name, config));
  }
}

std::vector<std::string> NamesIn(const std::string& section, const Config& config) {
  return OfNamed(section, config, [](const auto& map) {
    std::vector<std::string> names;
    for (const auto& [name, _] : map) names.push_back(name);
    std::ranges::sort(names);  // the maps have no order
    return names;
  });
}

Config DefaultConfig() {
  Config config;
  for (const ConfigKey& key : ConfigKeys()) {
    if (!key.is_named()) SetDefaults(key.section, *config.GetReflection()->MutableMessage(&config, key.section_field));
  }
  return config;
}

std::string GetConfigValue(const ConfigPlace& place, const Config& config) {
  EBB_CHECK(place.key != nullptr);
  const Message& section = Section(place, config);
  const FieldDescriptor* field = place.key->field;
  const auto& reflection = *section.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) return reflection.GetString(section, field);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) return absl::StrCat(reflection.GetUInt32(section, field));
  if (IsFraction(*field)) return absl::StrFormat("%.9g", reflection.GetDouble(section, field));
  if (!IsDuration(*field)) return FormatSize(reflection.GetUInt64(section, field));
  google::protobuf::Duration duration;
  duration.CopyFrom(reflection.GetMessage(section, field));
  const std::string text =
      absl::FormatDuration(absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos()));
  return text == "0" ? "0s" : text;
}

std::vector<ConfigChange> ConfigChanges(const Config& before, const Config& after) {
  std::vector<ConfigChange> changes;
  Config old = before;
  Config now = after;
  const auto compare = [&](const ConfigKey& key, const std::string& name) {
    ConfigChange change = {.key = &key,
                           .path = key.Path(name),
                           .before = GetConfigValue({.key = &key, .name = name}, old),
                           .after = GetConfigValue({.key = &key, .name = name}, now)};
    if (change.before != change.after) changes.push_back(std::move(change));
  };
  std::set<std::string> sections;  // of named ones
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.is_named()) {
      sections.insert(key.section);
    } else {
      compare(key, "");
    }
  }
  for (const std::string& section : sections) {
    std::set<std::string> names;
    for (const Config* const config : {&before, &after}) {
      for (std::string& name : NamesIn(section, *config)) names.insert(std::move(name));
    }
    for (const std::string& name : names) {
      AddNamed(section, name, old);
      AddNamed(section, name, now);
      for (const ConfigKey& key : ConfigKeys()) {
        if (key.section == section) compare(key, name);
      }
    }
  }
  return changes;
}

std::string NearestWord(std::string_view word, std::span<const std::string> known) {
  EBB_CHECK(!known.empty());
  const auto distance = [&](const std::string& other) {
    return std::min(EditDistance(word, other), 1 + EditDistance(LastSegment(word), LastSegment(other)));
  };
  return *std::min_element(known.begin(), known.end(),
                           [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
}

}  // namespace ebb
