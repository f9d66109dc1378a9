#include "client/cli/policy_flags.h"

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace ebb::cli {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

using google::protobuf::OneofDescriptor;

const OneofDescriptor* ScorerArms() { return v1::PolicySpec::descriptor()->FindOneofByName("scorer"); }

const OneofDescriptor* AllocationArms() { return v1::PolicySpec::descriptor()->FindOneofByName("allocation"); }

// In the order of their field numbers.
std::vector<std::string> NamesOf(const OneofDescriptor* arms) {
  std::vector<std::string> names;
  for (int i = 0; i < arms->field_count(); ++i) names.push_back(arms->field(i)->name());
  return names;
}

// Sets an arm of one of these, all its parameters open. REQUIRES: there is one of this name.
void SetArm(v1::PolicySpec& spec, const std::string& name) {
  spec.GetReflection()->MutableMessage(&spec, v1::PolicySpec::descriptor()->FindFieldByName(name));
}

// "slide-recent" is THEN_SLIDE_RECENT; 0 for what is none, and for nothing.
int EnumOf(const EnumDescriptor& type, const std::string& prefix, const std::string& flag) {
  const std::string name = prefix + absl::StrReplaceAll(absl::AsciiStrToUpper(flag), {{"-", "_"}});
  const auto* value = type.FindValueByName(name);
  return value == nullptr ? 0 : value->number();
}

// "COVARIANCE_" of an enum whose zero is COVARIANCE_UNSPECIFIED; not all of its values need begin so.
std::string PrefixOf(const EnumDescriptor& type) {
  const std::string& zero = type.value(0)->name();
  return zero.substr(0, zero.size() - (sizeof("UNSPECIFIED") - 1));
}

// Of the arm that `spec` sets, or null.
Message* Parameters(v1::PolicySpec& spec, const OneofDescriptor* arms) {
  const auto* arm = spec.GetReflection()->GetOneofFieldDescriptor(spec, arms);
  return arm == nullptr ? nullptr : spec.GetReflection()->MutableMessage(&spec, arm);
}

// Whether `text` is a value of the field's kind, which it then has.
bool SetValue(Message& message, const FieldDescriptor& field, const std::string& text) {
  const auto& reflection = *message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    int value = EnumOf(*field.enum_type(), PrefixOf(*field.enum_type()), text);
    if (value == 0) value = EnumOf(*field.enum_type(), "", text);
    if (value != 0) reflection.SetEnumValue(&message, &field, value);
    return value != 0;
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    bool value = false;
    if (!absl::SimpleAtob(text, &value)) return false;
    reflection.SetBool(&message, &field, value);
    return true;
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    double value = 0;
    if (!absl::SimpleAtod(text, &value)) return false;
    reflection.SetDouble(&message, &field, value);
    return true;
  }
  uint64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) return false;
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
    reflection.SetUInt64(&message, &field, value);
  } else {
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_UINT32 || value > UINT32_MAX) return false;
    reflection.SetUInt32(&message, &field, static_cast<uint32_t>(value));
  }
  return true;
}

// `owner`: what the flag's parameters belong to.
void SetParameter(Message* parameters, const std::string& text, const std::string& flag, const std::string& owner) {
  const size_t equals = text.find('=');
  const FieldDescriptor* field =
      parameters == nullptr ? nullptr : parameters->GetDescriptor()->FindFieldByName(text.substr(0, equals));
  const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
  if (field != nullptr && SetValue(*parameters, *field, value)) return;
  std::string known;
  for (int i = 0; parameters != nullptr && i < parameters->GetDescriptor()->field_count(); ++i) {
    known += (i == 0 ? "" : ", ") + parameters->GetDescriptor()->field(i)->name();
  }
  throw UsageError(flag, text + (known.empty()      ? ": the " + owner + " has no parameters"
                                 : field == nullptr ? ": the " + owner + "'s parameters are " + known
                                                    : ": not a value of this parameter"));
}

// "SLIDE_RECENT" of THEN_SLIDE_RECENT.
std::string Tail(const std::string& name, const std::string& prefix) { return name.substr(prefix.size()); }

// " window=32 kernel=7".
std::string ParametersOf(const v1::PolicySpec& spec, const OneofDescriptor* arms) {
  const auto* arm = spec.GetReflection()->GetOneofFieldDescriptor(spec, arms);
  if (arm == nullptr) return {};
  const Message& parameters = spec.GetReflection()->GetMessage(spec, arm);
  std::vector<const FieldDescriptor*> given;
  parameters.GetReflection()->ListFields(parameters, &given);
  std::string text;
  for (const FieldDescriptor* field : given) {
    std::string value;
    google::protobuf::TextFormat::PrintFieldValueToString(parameters, field, -1, &value);
    const std::string prefix = field->enum_type() == nullptr ? "" : PrefixOf(*field->enum_type());
    if (value.starts_with(prefix)) value = Tail(value, prefix);
    text += " " + field->name() + "=" + value;
  }
  return text;
}

std::string ScheduleOf(const v1::Schedule& schedule) {
  switch (schedule.when()) {
    case v1::Schedule::ONCE_AFTER_PROMPT: {
      std::string text = ", once after the prompt";
      if (schedule.then() != v1::Schedule::THEN_UNSPECIFIED) {
        text += ", then " + Tail(v1::Schedule::Then_Name(schedule.then()), "THEN_");
      }
      if (schedule.has_grow_max()) text += absl::StrFormat(" to %u", schedule.grow_max());
      return text;
    }
    case v1::Schedule::EVERY_N:
      return absl::StrFormat(", every %u steps", schedule.every_n());
    default:
      return {};
  }
}

}  // namespace

std::vector<std::string> ScorerNames() { return NamesOf(ScorerArms()); }

std::string ScorerOf(const v1::PolicySpec& spec) {
  const auto* arm = spec.GetReflection()->GetOneofFieldDescriptor(spec, ScorerArms());
  return arm == nullptr ? std::string() : arm->name();
}

void SetScorer(v1::PolicySpec& spec, const std::string& name) { SetArm(spec, name); }

void PolicyFlags::AddTo(Command command, const std::string& group) {
  command.add_option("--policy", scorer, "Who is evicted; see `ebb policy list`").one_of(ScorerNames()).group(group);
  const Flag budget_flag =
      command.add_option("--budget", budget, "Most tokens a lane holds after pruning").group(group);
  command.add_option("--budget-ratio", budget_ratio, "Budget as a share of the first prompt, in (0, 1]")
      .excludes(budget_flag)
      .group(group);
  command.add_option("--overflow", overflow, "Tokens above the budget gathered before pruning (R)").group(group);
  command.add_option("--slack", slack, "Tokens above the budget that pruning may leave (sigma)").group(group);
  command.add_option("--max-drop", max_drop, "Tokens dropped at one pruning (delta)").group(group);
  command.add_option("--sinks", sinks, "First tokens that are never evicted").group(group);
  command.add_option("--recent", recent, "Newest tokens that are never evicted").group(group);
  command.add_option("--positions", positions, "RoPE positions of what is kept")
      .one_of({"original", "compacted"})
      .group(group);
  command.add_option("--kv-dtype", kv_type, "Type of cached keys and values")
      .one_of({"f32", "bf16", "f16", "int8", "fp8"})
      .group(group);
  command.add_option("--rope-cache", rope_cache, "fused, or EQUIP's rotate-half copy")
      .one_of({"fused", "rk"})
      .group(group);
  command.add_option("--param", parameters, "A parameter of the scorer, NAME=VALUE; see `ebb policy list`")
      .group(group);
  command.add_option("--schedule", schedule, "When the policy runs")
      .one_of({"every-step", "once-after-prompt", "every-n"})
      .group(group);
  command.add_option("--every-n", every_n, "With --schedule every-n: decode steps between two runs").group(group);
  command.add_option("--then", then, "With --schedule once-after-prompt: what happens after it")
      .one_of({"same", "slide-recent", "grow"})
      .group(group);
  command.add_option("--grow-max", grow_max, "With --then grow: most tokens a lane may hold").group(group);
  command.add_option("--scope", scope, "Who keeps the same tokens").one_of({"kv-head", "layer"}).group(group);
  command.add_option("--reduction", reduction, "How the query heads of a KV head become one opinion")
      .one_of({"mean", "max", "l2", "union"})
      .group(group);
  command.add_option("--modifier", modifier, "What changes the scores before selection")
      .one_of({"none", "caote", "fast-caote"})
      .group(group);
  command.add_option("--allocation", allocation, "How the budget is shared among layers and heads")
      .one_of(NamesOf(AllocationArms()))
      .group(group);
  command
      .add_option("--allocation-param", allocation_parameters,
                  "A parameter of the allocation, NAME=VALUE; see `ebb policy list`")
      .group(group);
}

PolicyFlags PolicyFlags::FromWord(const std::string& flag, const std::string& word) {
  const std::vector<std::string> halves = absl::StrSplit(word, absl::MaxSplits('@', 1));
  const std::vector<std::string> whom = absl::StrSplit(halves[0], absl::MaxSplits('+', 1));
  std::vector<std::string> scored = absl::StrSplit(whom[0], ':');
  PolicyFlags flags;
  const auto one_of = [&](const std::string& name, const std::vector<std::string>& known) {
    if (std::ranges::find(known, name) != known.end()) return name;
    throw UsageError(flag, absl::StrFormat("%s: \"%s\" is none of %s", word, name, absl::StrJoin(known, ", ")));
  };
  flags.scorer = one_of(scored[0], ScorerNames());
  if (whom.size() > 1) flags.modifier = one_of(absl::StrReplaceAll(whom[1], {{"_", "-"}}), {"caote", "fast-caote"});
  const std::map<std::string, std::optional<uint32_t>*> numbers = {
      {"budget", &flags.budget},     {"sinks", &flags.sinks}, {"recent", &flags.recent},
      {"overflow", &flags.overflow}, {"slack", &flags.slack}, {"max_drop", &flags.max_drop}};
  for (size_t i = 1; i < scored.size(); ++i) {
    const std::pair<std::string, std::string> entry = absl::StrSplit(scored[i], absl::MaxSplits('=', 1));
    const auto number = numbers.find(entry.first);
    uint32_t value = 0;
    if (number == numbers.end()) {
      flags.parameters.push_back(scored[i]);
    } else if (absl::SimpleAtoi(entry.second, &value)) {
      *number->second = value;
    } else {
      throw UsageError(flag, absl::StrFormat("%s: %s is no number of tokens", word, scored[i]));
    }
  }
  if (halves.size() > 1) {
    const std::vector<std::string> shared = absl::StrSplit(halves[1], ':');
    flags.allocation = one_of(shared[0], NamesOf(AllocationArms()));
    flags.allocation_parameters.assign(shared.begin() + 1, shared.end());
  }
  return flags;
}

bool PolicyFlags::given() const {
  return !scorer.empty() || budget || budget_ratio || overflow || slack || max_drop || sinks || recent || every_n ||
         grow_max || !positions.empty() || !kv_type.empty() || !rope_cache.empty() || !schedule.empty() ||
         !then.empty() || !scope.empty() || !reduction.empty() || !modifier.empty() || !parameters.empty() ||
         !allocation.empty() || !allocation_parameters.empty();
}

v1::PolicySpec PolicyFlags::Build() const {
  v1::PolicySpec spec;
  if (!scorer.empty()) SetArm(spec, scorer);
  if (budget) spec.mutable_trigger()->set_budget(*budget);
  if (budget_ratio) spec.mutable_trigger()->set_budget_ratio(*budget_ratio);
  if (overflow) spec.mutable_trigger()->set_overflow(*overflow);
  if (slack) spec.mutable_trigger()->set_slack(*slack);
  if (max_drop) spec.mutable_trigger()->set_max_drop(*max_drop);
  if (sinks) spec.mutable_protect()->set_sinks(*sinks);
  if (recent) spec.mutable_protect()->set_recent(*recent);
  for (const std::string& parameter : parameters) {
    SetParameter(Parameters(spec, ScorerArms()), parameter, "--param", "policy");
  }
  if (!allocation.empty()) SetArm(spec, allocation);
  for (const std::string& parameter : allocation_parameters) {
    SetParameter(Parameters(spec, AllocationArms()), parameter, "--allocation-param", "allocation");
  }
  if (const int value = EnumOf(*v1::Schedule::When_descriptor(), "", schedule)) {
    spec.mutable_schedule()->set_when(static_cast<v1::Schedule::When>(value));
  }
  if (every_n) spec.mutable_schedule()->set_every_n(*every_n);
  if (const int value = EnumOf(*v1::Schedule::Then_descriptor(), "THEN_", then)) {
    spec.mutable_schedule()->set_then(static_cast<v1::Schedule::Then>(value));
  }
  if (grow_max) spec.mutable_schedule()->set_grow_max(*grow_max);
  spec.set_scope(static_cast<v1::Scope>(EnumOf(*v1::Scope_descriptor(), "SCOPE_", scope)));
  spec.set_reduction(static_cast<v1::Reduction>(EnumOf(*v1::Reduction_descriptor(), "REDUCTION_", reduction)));
  spec.set_modifier(static_cast<v1::Modifier>(EnumOf(*v1::Modifier_descriptor(), "MODIFIER_", modifier)));
  spec.set_positions(static_cast<v1::Positions>(EnumOf(*v1::Positions_descriptor(), "POSITIONS_", positions)));
  if (const int value = EnumOf(*v1::KvType_descriptor(), "KV_TYPE_", kv_type)) {
    spec.mutable_cache()->set_kv_dtype(static_cast<v1::KvType>(value));
  }
  if (const int value = EnumOf(*v1::RopeCache_descriptor(), "ROPE_CACHE_", rope_cache)) {
    spec.mutable_cache()->set_rope_cache(static_cast<v1::RopeCache>(value));
  }
  return spec;
}

std::string Summary(const v1::PolicySpec& spec) {
  std::string text = ScorerOf(spec) + ParametersOf(spec, ScorerArms());
  const v1::Trigger& trigger = spec.trigger();
  if (trigger.has_budget()) text += absl::StrFormat(", budget %u", trigger.budget());
  if (trigger.has_budget_ratio()) text += absl::StrFormat(", budget %g of the prompt", trigger.budget_ratio());
  const auto* allocation = spec.GetReflection()->GetOneofFieldDescriptor(spec, AllocationArms());
  if (allocation != nullptr && !spec.has_uniform()) {
    text += ", " + allocation->name() + ParametersOf(spec, AllocationArms());
  }
  if (trigger.overflow() > 1) text += absl::StrFormat(", overflow %u", trigger.overflow());
  if (trigger.slack() > 0) text += absl::StrFormat(", slack %u", trigger.slack());
  if (trigger.max_drop() > 0) text += absl::StrFormat(", max_drop %u", trigger.max_drop());
  if (spec.protect().sinks() > 0) text += absl::StrFormat(", sinks %u", spec.protect().sinks());
  if (spec.protect().recent() > 0) text += absl::StrFormat(", recent %u", spec.protect().recent());
  text += ScheduleOf(spec.schedule());
  if (spec.scope() == v1::SCOPE_LAYER) text += ", heads of a layer alike";
  if (spec.reduction() > v1::REDUCTION_MEAN) {
    text += ", " + Tail(v1::Reduction_Name(spec.reduction()), "REDUCTION_") + " over query heads";
  }
  if (spec.modifier() > v1::MODIFIER_NONE) text += ", " + Tail(v1::Modifier_Name(spec.modifier()), "MODIFIER_");
  if (spec.positions() != v1::POSITIONS_UNSPECIFIED) {
    text += ", " + v1::Positions_Name(spec.positions()).substr(sizeof("POSITIONS_") - 1);
  }
  return text;
}

}  // namespace ebb::cli
