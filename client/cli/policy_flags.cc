#include "client/cli/policy_flags.h"

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace ebb::cli {
namespace {

const google::protobuf::OneofDescriptor* ScorerArms() {
  return v1::PolicySpec::descriptor()->FindOneofByName("scorer");
}

}  // namespace

std::vector<std::string> ScorerNames() {
  std::vector<std::string> names;
  for (int i = 0; i < ScorerArms()->field_count(); ++i) names.push_back(ScorerArms()->field(i)->name());
  return names;
}

std::string ScorerOf(const v1::PolicySpec& spec) {
  const auto* arm = spec.GetReflection()->GetOneofFieldDescriptor(spec, ScorerArms());
  return arm == nullptr ? std::string() : arm->name();
}

void SetScorer(v1::PolicySpec& spec, const std::string& name) {
  spec.GetReflection()->MutableMessage(&spec, v1::PolicySpec::descriptor()->FindFieldByName(name));
}

void PolicyFlags::AddTo(CLI::App& command) {
  const std::string group = "Policy of a new session";
  command.add_option("--policy", scorer, "Who is evicted; see `ebb policy list`")
      ->check(CLI::IsMember(ScorerNames()))
      ->group(group);
  auto* budget_flag = command.add_option("--budget", budget, "Most tokens a lane holds after pruning")->group(group);
  command.add_option("--budget-ratio", budget_ratio, "Budget as a share of the first prompt, in (0, 1]")
      ->excludes(budget_flag)
      ->group(group);
  command.add_option("--overflow", overflow, "Tokens above the budget gathered before pruning (R)")->group(group);
  command.add_option("--slack", slack, "Tokens above the budget that pruning may leave (sigma)")->group(group);
  command.add_option("--max-drop", max_drop, "Tokens dropped at one pruning (delta)")->group(group);
  command.add_option("--sinks", sinks, "First tokens that are never evicted")->group(group);
  command.add_option("--recent", recent, "Newest tokens that are never evicted")->group(group);
  command.add_option("--positions", positions, "RoPE positions of what is kept")
      ->check(CLI::IsMember({"original", "compacted"}))
      ->group(group);
  command.add_option("--kv-dtype", kv_type, "Type of cached keys and values")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->group(group);
  command.add_option("--rope-cache", rope_cache, "fused, or EQUIP's rotate-half copy")
      ->check(CLI::IsMember({"fused", "rk"}))
      ->group(group);
}

bool PolicyFlags::given() const {
  return !scorer.empty() || budget || budget_ratio || overflow || slack || max_drop || sinks || recent ||
         !positions.empty() || !kv_type.empty() || !rope_cache.empty();
}

v1::PolicySpec PolicyFlags::Build() const {
  v1::PolicySpec spec;
  if (!scorer.empty()) SetScorer(spec, scorer);
  if (budget) spec.mutable_trigger()->set_budget(*budget);
  if (budget_ratio) spec.mutable_trigger()->set_budget_ratio(*budget_ratio);
  if (overflow) spec.mutable_trigger()->set_overflow(*overflow);
  if (slack) spec.mutable_trigger()->set_slack(*slack);
  if (max_drop) spec.mutable_trigger()->set_max_drop(*max_drop);
  if (sinks) spec.mutable_protect()->set_sinks(*sinks);
  if (recent) spec.mutable_protect()->set_recent(*recent);
  v1::Positions position = v1::POSITIONS_UNSPECIFIED;
  if (v1::Positions_Parse("POSITIONS_" + absl::AsciiStrToUpper(positions), &position)) spec.set_positions(position);
  v1::KvType type = v1::KV_TYPE_UNSPECIFIED;
  if (v1::KvType_Parse("KV_TYPE_" + absl::AsciiStrToUpper(kv_type), &type)) spec.mutable_cache()->set_kv_dtype(type);
  v1::RopeCache rope = v1::ROPE_CACHE_UNSPECIFIED;
  if (v1::RopeCache_Parse("ROPE_CACHE_" + absl::AsciiStrToUpper(rope_cache), &rope)) {
    spec.mutable_cache()->set_rope_cache(rope);
  }
  return spec;
}

std::string Summary(const v1::PolicySpec& spec) {
  std::string text = ScorerOf(spec);
  const v1::Trigger& trigger = spec.trigger();
  if (trigger.has_budget()) text += absl::StrFormat(", budget %u", trigger.budget());
  if (trigger.has_budget_ratio()) text += absl::StrFormat(", budget %g of the prompt", trigger.budget_ratio());
  if (trigger.overflow() > 1) text += absl::StrFormat(", overflow %u", trigger.overflow());
  if (trigger.slack() > 0) text += absl::StrFormat(", slack %u", trigger.slack());
  if (trigger.max_drop() > 0) text += absl::StrFormat(", max_drop %u", trigger.max_drop());
  if (spec.protect().sinks() > 0) text += absl::StrFormat(", sinks %u", spec.protect().sinks());
  if (spec.protect().recent() > 0) text += absl::StrFormat(", recent %u", spec.protect().recent());
  if (spec.positions() != v1::POSITIONS_UNSPECIFIED) {
    text += ", " + v1::Positions_Name(spec.positions()).substr(sizeof("POSITIONS_") - 1);
  }
  return text;
}

}  // namespace ebb::cli
