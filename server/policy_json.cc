#include "server/policy_json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "policies/status.h"

namespace ebb {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;
using Json = nlohmann::json;

std::vector<std::string> NamesOf(const OneofDescriptor& arms) {
  std::vector<std::string> names;
  for (int i = 0; i < arms.field_count(); ++i) names.push_back(arms.field(i)->name());
  return names;
}

// The arm of this name, or null.
const FieldDescriptor* ArmOf(const OneofDescriptor& arms, std::string_view name) {
  for (int i = 0; i < arms.field_count(); ++i) {
    if (arms.field(i)->name() == name) return arms.field(i);
  }
  return nullptr;
}

// The value that a user writes in small letters, and without the words that all values of the enum begin with.
std::string ValueName(const EnumDescriptor& type, const std::string& text) {
  const std::string& zero = type.value(0)->name();
  const std::string prefix = zero.substr(0, zero.size() - (sizeof("UNSPECIFIED") - 1));
  const std::string upper = absl::AsciiStrToUpper(text);
  return type.FindValueByName(prefix + upper) != nullptr ? prefix + upper : upper;
}

class WordReader {
 public:
  explicit WordReader(std::string field) : field_(std::move(field)) {}

  absl::StatusOr<Json> Read(const std::string& word) {
    const Descriptor& spec = *v1::PolicySpec::descriptor();
    const std::vector<std::string> sides = absl::StrSplit(word, absl::MaxSplits('@', 1));
    const std::vector<std::string> scored = absl::StrSplit(sides[0], absl::MaxSplits('+', 1));
    const std::vector<std::string> parts = absl::StrSplit(scored[0], ':');
    const OneofDescriptor& scorers = *spec.FindOneofByName("scorer");
    const FieldDescriptor* const scorer = ArmOf(scorers, parts[0]);
    if (scorer == nullptr) {
      return Refuse(absl::StatusCode::kNotFound,
                    absl::StrFormat("%s: there is no scorer '%s'; there are %s", field_, parts[0],
                                    absl::StrJoin(NamesOf(scorers), ", ")),
                    {.reason = "UNKNOWN_SCORER", .field = field_});
    }
    json_[parts[0]] = Json::object();
    for (size_t i = 1; i < parts.size(); ++i) {
      EBB_TRY(Set(parts[i], {spec.FindFieldByName("trigger"), spec.FindFieldByName("protect"), scorer}));
    }
    if (scored.size() > 1) json_["modifier"] = ValueName(*v1::Modifier_descriptor(), scored[1]);
    if (sides.size() > 1) EBB_TRY(SetAllocation(sides[1]));
    return json_;
  }

 private:
  absl::Status SetAllocation(const std::string& text) {
    const OneofDescriptor& allocations = *v1::PolicySpec::descriptor()->FindOneofByName("allocation");
    const std::vector<std::string> parts = absl::StrSplit(text, ':');
    const FieldDescriptor* const allocation = ArmOf(allocations, parts[0]);
    if (allocation == nullptr) {
      return RefuseField("UNKNOWN_PARAMETER", field_,
                         absl::StrFormat("there is no allocation '%s'; there are %s", parts[0],
                                         absl::StrJoin(NamesOf(allocations), ", ")));
    }
    json_[parts[0]] = Json::object();
    for (size_t i = 1; i < parts.size(); ++i) EBB_TRY(Set(parts[i], {allocation}));
    return absl::OkStatus();
  }

  // KEY=VALUE, of the first of `owners` that has such a field. Numbers stay text: proto3 JSON takes them so.
  absl::Status Set(const std::string& text, const std::vector<const FieldDescriptor*>& owners) {
    const std::vector<std::string> sides = absl::StrSplit(text, absl::MaxSplits('=', 1));
    std::vector<std::string> known;
    for (const FieldDescriptor* const owner : owners) {
      const Descriptor& type = *owner->message_type();
      const FieldDescriptor* const parameter = type.FindFieldByName(sides[0]);
      if (parameter != nullptr && sides.size() == 2) {
        const EnumDescriptor* const choices = parameter->enum_type();
        json_[owner->name()][sides[0]] = choices == nullptr ? sides[1] : ValueName(*choices, sides[1]);
        return absl::OkStatus();
      }
      for (int i = 0; i < type.field_count(); ++i) known.push_back(type.field(i)->name());
    }
    return RefuseField("UNKNOWN_PARAMETER", field_,
                       absl::StrFormat("'%s' is no KEY=VALUE; keys are %s", text, absl::StrJoin(known, ", ")));
  }

  const std::string field_;
  Json json_ = Json::object();
};

}  // namespace

absl::StatusOr<v1::PolicySpec> PolicyFromJson(const Json& json, const std::string& field) {
  Json object = json;
  if (json.is_string()) {
    EBB_ASSIGN(object, WordReader(field).Read(json.get_ref<const std::string&>()));
  }
  if (!object.is_object()) return RefuseField("WRONG_TYPE", field, "a policy is a word or an object");
  v1::PolicySpec spec;
  const auto parsed = google::protobuf::util::JsonStringToMessage(object.dump(), &spec);
  if (parsed.ok()) return spec;
  return RefuseField("WRONG_TYPE", field,
                     absl::StrFormat("it is no PolicySpec in JSON: %s", std::string(parsed.message())));
}

}  // namespace ebb
