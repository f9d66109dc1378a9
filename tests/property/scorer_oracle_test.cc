// Every scorer, modifier, reduction and scope against its formula (scorer_oracle.h), decision by decision, over random
// attention: blocks of a prompt and decode steps, one, four and eight query heads to a KV head.

#include "tests/property/scorer_oracle.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "policies/hash_random.h"
#include "policies/registry.h"
#include "tests/property/policy_lane.h"

namespace ebb {
namespace {

using testing::Each;

constexpr int32_t kCases = 1000;

// Where scores differ by less than this, relative, float32 may tell them apart the other way: sums of up to 100 rows
// err by some 1e-6. Measured: no decision hangs on it but of lagkv by layer, whose places add up to the same sums.
constexpr double kResolution = 1e-5;

struct Tally {
  int32_t decisions = 0;
  int32_t in_blocks = 0;
  int32_t by_group[3] = {};
  int32_t unresolved = 0;
};

PolicySpec RandomSpec(const PolicyForm& form, HashRandom& random) {
  PolicySpec spec = SpecOf(form, {.budget = random.Uniform(4, 24)});
  spec.sinks = random.Uniform(0, 2);
  spec.recent = random.Uniform(1, 6);
  const std::map<std::string, std::function<double()>> small = {
      {"window", [&] { return random.Uniform(1, 12); }},
      {"kernel", [&] { return 2 * random.Uniform(0, 4) + 1; }},
      {"lag", [&] { return random.Uniform(1, 8); }},
      {"value_ratio", [&] { return random.Uniform(0, 4) / 2.0; }},
      {"semantic_ratio", [&] { return random.Uniform(0, 5) / 10.0; }},
      {"recent_ratio", [&] { return random.Uniform(0, 5) / 10.0; }},
      {"proxy_ratio", [&] { return random.Uniform(0, 5) / 10.0; }},
      {"proxy_share", [&] { return random.Uniform(0, 4) / 4.0; }},
      {"rows_max", [&] { return random.Uniform(1, 20); }},
      {"future", [&] { return random.Uniform(1, 40); }},
      {"epsilon", [&] { return random.Uniform(0, 1) / 64.0; }},
  };
  for (const ParameterRow& parameter : form.row->parameters) {
    const std::string name(parameter.name);
    const auto choices = static_cast<int32_t>(parameter.choices.size());
    if (choices > 0) spec.parameters[name] = random.Uniform(0, choices - 1);
    if (small.contains(name)) spec.parameters[name] = small.at(name)();
  }
  // What means nothing together.
  if (form.row->name == "snapkv" && spec.parameters["pooling"] == 0) spec.parameters.erase("kernel");
  if (form.row->name == "semantic" && spec.parameters["semantic_ratio"] == 0) spec.parameters["recent_ratio"] = 0.1;
  return spec;
}

void CompareOneLane(const PolicyForm& form, uint64_t seed, Tally& tally) {
  HashRandom random(seed);
  const int32_t group = random.Uniform(0, 2);
  const int32_t query_heads = group == 0 ? 1 : 4 * group;
  const ValidSpec spec = ResolveWithRoom(RandomSpec(form, random), query_heads);
  const RandomAttentionOptions options = {.seed = seed,
                                          .slots = static_cast<int32_t>(Capacity(spec.trigger, 12)),
                                          .query_heads = query_heads,
                                          .kv_heads = form.scope == Scope::kLayer ? random.Uniform(2, 3) : 1,
                                          .placement = static_cast<Placement>(random.Uniform(0, 1)),
                                          .positions = static_cast<Positions>(random.Uniform(0, 1))};
  PolicyLane lane(spec, options);
  Past past;
  const int32_t blocks = random.Uniform(2, 5);
  for (int32_t step = 0; step < blocks + 6; ++step) {
    lane.Observe(step < blocks ? random.Uniform(2, 12) : 1);
    past.Remember(lane.attention);
    past.LookAtTheLiving(lane.attention);
    const int32_t count = TokensToDrop(spec.trigger, lane.attention.live());
    if (count == 0) continue;
    const OracleChoice expected = ChooseByFormula(past, spec, count, kResolution);
    std::vector<int32_t> left = lane.Prune(count);
    std::ranges::sort(left);
    std::vector<int32_t> differ;
    std::ranges::set_symmetric_difference(left, expected.victims, std::back_inserter(differ));
    ASSERT_THAT(differ, Each(testing::AnyOfArray(expected.either))) << "step " << step;
    ++tally.decisions;
    ++tally.by_group[group];
    tally.in_blocks += step < blocks ? 1 : 0;
    tally.unresolved += differ.empty() ? 0 : 1;
  }
}

// The forms of one scorer under one modifier take turns.
void Compare(const std::string& scorer, Modifier modifier) {
  std::vector<PolicyForm> forms;
  for (const PolicyForm& form : AllForms()) {
    if (form.row->name == scorer && form.modifier == modifier) forms.push_back(form);
  }
  ASSERT_FALSE(forms.empty());
  Tally tally;
  for (uint64_t seed = 0; tally.decisions < kCases || seed < forms.size() * 20; ++seed) {
    const PolicyForm& form = forms[seed % forms.size()];
    SCOPED_TRACE(testing::Message() << NameOf(form) << ", seed " << seed);
    CompareOneLane(form, seed, tally);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_LE(tally.unresolved, scorer == "lagkv" ? tally.decisions / 40 : 0);
  EXPECT_GT(tally.in_blocks, 100);
  EXPECT_GT(tally.decisions - tally.in_blocks, 100);
  for (const int32_t decisions : tally.by_group) EXPECT_GT(decisions, 100);
}

struct Subject {
  std::string scorer;
  Modifier modifier = Modifier::kNone;
};

std::vector<Subject> Subjects() {
  std::vector<Subject> subjects;
  for (const PolicyForm& form : AllForms()) {
    const std::string scorer(form.row->name);
    const bool known = std::ranges::any_of(
        subjects, [&](const Subject& s) { return s.scorer == scorer && s.modifier == form.modifier; });
    if (!known && FormulaOf(scorer) != nullptr) subjects.push_back({.scorer = scorer, .modifier = form.modifier});
  }
  return subjects;
}

class ScorerOracle : public testing::TestWithParam<Subject> {};

TEST_P(ScorerOracle, ChoosesWhomTheFormulaChooses) { Compare(GetParam().scorer, GetParam().modifier); }

std::string NameOf(const Subject& subject) {
  constexpr const char* kPrefixes[] = {"", "caote_", "fast_caote_"};
  return kPrefixes[static_cast<int>(subject.modifier)] + subject.scorer;
}

void PrintTo(const Subject& subject, std::ostream* out) { *out << NameOf(subject); }

std::string NameOfSubject(const testing::TestParamInfo<Subject>& subject) { return NameOf(subject.param); }

INSTANTIATE_TEST_SUITE_P(Scorers, ScorerOracle, testing::ValuesIn(Subjects()), NameOfSubject);

// `full` evicts nobody, and `random` is its hash and nothing else (random_laws_test.cc).
TEST(ScorerOracleTable, HasEveryScorerThatGoesByAFormula) {
  for (const ScorerRow& row : ScorerRegistry()) {
    EXPECT_EQ(FormulaOf(std::string(row.name)) == nullptr, row.name == "full" || row.name == "random") << row.name;
  }
}

}  // namespace
}  // namespace ebb
