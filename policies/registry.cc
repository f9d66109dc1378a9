#include "policies/registry.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "policies/expected_attention.h"
#include "policies/full.h"
#include "policies/h2o.h"
#include "policies/keydiff.h"
#include "policies/knorm.h"
#include "policies/lagkv.h"
#include "policies/nacl.h"
#include "policies/random.h"
#include "policies/sage.h"
#include "policies/scissorhands.h"
#include "policies/semantic.h"
#include "policies/snapkv.h"
#include "policies/status.h"
#include "policies/streaming.h"
#include "policies/tova.h"

namespace ebb {
namespace {

int32_t Whole(const ScorerParameters& parameters, const char* name) {
  return static_cast<int32_t>(parameters.at(name));
}

int32_t Quarter(int32_t budget) { return budget / 4; }

constexpr ParameterRow kRowsMax = {.name = "rows_max",
                                   .help = "most queries of a kind that are asked",
                                   .preset = 64,
                                   .min = 1,
                                   .max = 512,
                                   .whole = true};
constexpr ParameterRow kSemantic[] = {
    {.name = "semantic_ratio", .help = "share of all queries, those of largest norm", .preset = 0.01, .max = 1},
    {.name = "recent_ratio", .help = "share of all queries, the newest", .preset = 0.01, .max = 1},
    kRowsMax,
};
constexpr ParameterRow kNacl[] = {
    {.name = "proxy_ratio",
     .help = "share of all queries, the newest, that speak for the rest",
     .preset = 0.01,
     .max = 1},
    {.name = "proxy_share",
     .help = "share of the room that they fill; the rest is drawn",
     .preset = 12.0 / 19,
     .max = 1},
    {.name = "seed", .help = "of the draw", .max = 0x1p53, .whole = true},
    kRowsMax,
};
constexpr ParameterRow kScissorhands[] = {
    {.name = "window",
     .help = "newest query rows that are remembered",
     .preset = 400,
     .min = 1,
     .max = 512,
     .whole = true},
};

constexpr std::string_view kPoolings[] = {"none", "avg", "max"};  // in the order of Pooling
constexpr std::string_view kOwnColumns[] = {"drop", "keep"};
constexpr ParameterRow kSnapkv[] = {
    {.name = "window", .help = "newest query rows that vote", .preset = 32, .min = 1, .max = 512, .whole = true},
    {.name = "kernel",
     .help = "tokens that are pooled, an odd number",
     .preset = 7,
     .min = 1,
     .max = 63,
     .whole = true,
     .odd = true},
    {.name = "pooling",
     .help = "what the kernel takes of its tokens",
     .preset = 2,
     .min = 0,
     .max = 2,
     .whole = true,
     .choices = kPoolings},
    {.name = "own_columns",
     .help = "whether the window's own tokens enter the pooling",
     .preset = 0,
     .min = 0,
     .max = 1,
     .whole = true,
     .choices = kOwnColumns},
};

// A parameter that chooses between forms; `preset` is the number of one.
constexpr ParameterRow Choice(std::string_view name, std::string_view help, std::span<const std::string_view> choices,
                              int preset = 0) {
  return {.name = name,
          .help = help,
          .preset = static_cast<double>(preset),
          .max = static_cast<double>(choices.size()) - 1,
          .whole = true,
          .choices = choices};
}

constexpr std::string_view kCovariances[] = {"none", "diagonal", "full"};
constexpr std::string_view kValueForms[] = {"ignore", "weigh"};
constexpr ParameterRow kExpectedAttentionParameters[] = {
    {.name = "future",
     .help = "positions to come that are averaged",
     .preset = 512,
     .min = 1,
     .max = 65536,
     .whole = true},
    {.name = "epsilon", .help = "added to each token's expected attention before the values weigh it", .max = 1},
    Choice("covariance", "how much of the queries' covariance is kept; a full one costs n d^2 a decision", kCovariances,
           2),
    Choice("values", "whether the length of the value weighs the attention", kValueForms, 1),
};

constexpr std::string_view kKeptKeys[] = {"short", "long"};
constexpr ParameterRow kKnormParameters[] = {
    Choice("keep", "which keys stay; the paper's are the short ones, on some models the long ones are worth more",
           kKeptKeys),
};

constexpr ParameterRow kLagkvParameters[] = {
    {.name = "lag", .help = "tokens of a partition", .preset = 128, .min = 1, .max = 8192, .whole = true},
    {.name = "value_ratio", .help = "weight of the values' score beside the keys'", .preset = 1, .max = 1000},
};

constexpr std::string_view kRandomModes[] = {"reservoir", "fresh"};
constexpr ParameterRow kRandomParameters[] = {
    {.name = "seed", .help = "of the draws", .max = 0x1p53, .whole = true},
    Choice("mode", "one draw per token, which keeps a uniform sample of all that came, or a fresh one per decision",
           kRandomModes),
};

constexpr ScorerRow kRegistry[] = {
    {.name = "full",
     .summary = "Keeps every token; the budget is a length limit.",
     .evicts = false,
     .lockstep = true,
     .scored = false,
     .make = [](const ScorerParameters&) { return MakeFull(); }},
    {.name = "streaming",
     .summary = "Keeps the first tokens (attention sinks) and the newest.",
     .paper = "arXiv:2309.17453",
     .lockstep = true,
     .scored = false,
     .sinks = [](int32_t /*budget*/) { return 4; },
     .recent = [](int32_t budget, int32_t sinks, int32_t /*query_heads*/) { return std::max(budget - sinks, 1); },
     .positions = Positions::kCompacted,
     .make = [](const ScorerParameters&) { return MakeStreaming(); }},
    {.name = "h2o",
     .summary = "Keeps the tokens that gathered most attention so far, beside a recent window.",
     .paper = "arXiv:2306.14048",
     .non_negative = true,
     .recent = [](int32_t budget, int32_t /*sinks*/, int32_t /*query_heads*/) { return budget / 2; },
     .make = [](const ScorerParameters&) { return MakeH2o(); }},
    {.name = "tova",
     .summary = "Keeps what the newest query attends to.",
     .paper = "arXiv:2401.06104",
     .safe_across_turns = false,
     .non_negative = true,
     .make = [](const ScorerParameters&) { return MakeTova(); }},
    {.name = "snapkv",
     .summary = "Keeps what the newest queries attend to, with its neighbours, beside these queries' own tokens.",
     .paper = "arXiv:2404.14469",
     .safe_across_turns = false,
     .non_negative = true,
     .recent_parameter = "window",
     .parameters = kSnapkv,
     .make =
         [](const ScorerParameters& given) {
           return MakeSnapkv({.window = Whole(given, "window"),
                              .kernel = Whole(given, "kernel"),
                              .pooling = static_cast<Pooling>(Whole(given, "pooling")),
                              .own_columns = Whole(given, "own_columns") == 1});
         }},
    {.name = "sage",
     .summary = "Keeps what each query head of the prompt's last token attends to, once, and then a sliding window.",
     .paper = "arXiv:2503.08879",
     .safe_across_turns = false,
     .non_negative = true,
     .sinks = Quarter,
     .recent = SageRecent,
     .schedule = Schedule::kOncePrompt,
     .then = Then::kSlideRecent,
     .reduction = Reduction::kUnion,
     .make = [](const ScorerParameters&) { return MakeSage(); }},
    {.name = "keydiff",
     .summary = "Keeps the tokens whose keys are least like the mean key.",
     .paper = "arXiv:2504.15364",
     .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 32; },
     .make = [](const ScorerParameters&) { return MakeKeydiff(); }},
    {.name = "knorm",
     .summary = "Keeps the tokens with the shortest keys, or the longest.",
     .paper = "arXiv:2406.11430",
     .sinks = [](int32_t /*budget*/) { return 4; },
     .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 10; },
     .parameters = kKnormParameters,
     .make =
         [](const ScorerParameters& p) { return MakeKnorm(p.at("keep") == 0 ? KeptKeys::kShort : KeptKeys::kLong); }},
    {.name = "lagkv",
     .summary = "Keeps the tokens whose keys and values vary most, measured by the ranges of the tokens after them.",
     .paper = "arXiv:2504.04704",
     .sinks = [](int32_t /*budget*/) { return 16; },
     .parameters = kLagkvParameters,
     .make =
         [](const ScorerParameters& p) {
           return MakeLagkv({.lag = Whole(p, "lag"), .value_ratio = p.at("value_ratio")});
         }},
    {.name = "expected_attention",
     .summary = "Keeps the tokens that queries like those so far are expected to attend to.",
     .paper = "arXiv:2510.00636",
     .non_negative = true,
     .sinks = [](int32_t /*budget*/) { return 4; },
     .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 32; },
     .schedule = Schedule::kOncePrompt,
     .then = Then::kSlideRecent,
     .parameters = kExpectedAttentionParameters,
     .make =
         [](const ScorerParameters& p) {
           return MakeExpectedAttention(
               {.future = Whole(p, "future"),
                .epsilon = p.at("epsilon"),
                .covariance = static_cast<ExpectedAttentionOptions::Covariance>(Whole(p, "covariance")),
                .values = static_cast<ExpectedAttentionOptions::Values>(Whole(p, "values"))});
         }},
    {.name = "random",
     .summary = "Keeps tokens by chance: the baseline to beat.",
     .sinks = [](int32_t /*budget*/) { return 4; },
     .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 32; },
     .parameters = kRandomParameters,
     .make =
         [](const ScorerParameters& p) {
           const auto mode = p.at("mode") == 0 ? RandomMode::kReservoir : RandomMode::kFresh;
           return MakeRandom(static_cast<uint64_t>(p.at("seed")), mode);
         }},
    {.name = "semantic",
     .summary = "Keeps what the queries of largest norm and the newest attend to, once, and then lets the cache grow.",
     .safe_across_turns = false,
     .non_negative = true,
     .sinks = [](int32_t budget) { return std::min(256, budget / 4); },
     .recent = [](int32_t budget, int32_t /*sinks*/, int32_t /*query_heads*/) { return std::max(budget / 20, 1); },
     .schedule = Schedule::kOncePrompt,
     .then = Then::kGrow,
     .parameters = kSemantic,
     .make =
         [](const ScorerParameters& given) {
           return MakeSemantic({.semantic_ratio = given.at("semantic_ratio"),
                                .recent_ratio = given.at("recent_ratio"),
                                .rows_max = Whole(given, "rows_max")});
         }},
    {.name = "nacl",
     .summary = "Keeps what the newest queries attend to and a draw from the rest, once, and then lets the cache grow.",
     .paper = "arXiv:2408.03675",
     .safe_across_turns = false,
     .sinks = [](int32_t budget) { return std::min(256, budget / 40); },
     .recent = [](int32_t budget, int32_t sinks, int32_t /*query_heads*/) { return std::max(budget / 20 - sinks, 1); },
     .schedule = Schedule::kOncePrompt,
     .then = Then::kGrow,
     .parameters = kNacl,
     .make =
         [](const ScorerParameters& given) {
           return MakeNacl({.proxy_ratio = given.at("proxy_ratio"),
                            .proxy_share = given.at("proxy_share"),
                            .seed = static_cast<uint64_t>(given.at("seed")),
                            .rows_max = Whole(given, "rows_max")});
         }},
    {.name = "scissorhands",
     .summary = "Keeps the tokens that the newest queries found important most often.",
     .paper = "arXiv:2305.17118",
     .recent = [](int32_t /*budget*/, int32_t /*sinks*/, int32_t /*query_heads*/) { return 10; },
     .parameters = kScissorhands,
     .make = [](const ScorerParameters& given) { return MakeScissorhands(Whole(given, "window")); }},
};

// "0 (short) or 1 (long)", as a refusal offers them.
std::string ListChoices(const ParameterRow& parameter) {
  std::string list;
  for (size_t i = 0; i < parameter.choices.size(); ++i) {
    const bool is_last = i + 1 == parameter.choices.size();
    list += absl::StrFormat("%s%d (%s)", i == 0 ? "" : is_last ? " or " : ", ", i, parameter.choices[i]);
  }
  return list;
}

absl::Status CheckParameter(const ParameterRow& parameter, const std::string& field, double value) {
  const bool in_range = value >= parameter.min && value <= parameter.max;  // NaN is not
  const bool is_whole = !parameter.whole || value == std::floor(value);
  const bool is_odd = !parameter.odd || std::fmod(value, 2) == 1;
  if (in_range && is_whole && is_odd) return absl::OkStatus();
  std::string what = absl::StrFormat("%g is not a whole number", value);
  if (!in_range) what = absl::StrFormat("%g is not in [%g, %g]", value, parameter.min, parameter.max);
  if (in_range && is_whole) what = absl::StrFormat("%g is even; use %g or %g", value, value - 1, value + 1);
  if (!parameter.choices.empty()) what = absl::StrFormat("%g is no choice; use %s", value, ListChoices(parameter));
  return RefuseField("PARAMETER_OUT_OF_RANGE", field, what);
}

}  // namespace

std::span<const ScorerRow> ScorerRegistry() { return kRegistry; }

int32_t DefaultRecent(const ScorerRow& row, const ScorerParameters& parameters, int32_t budget, int32_t sinks,
                      int32_t query_heads) {
  if (!row.recent_parameter.empty()) {
    return static_cast<int32_t>(parameters.at(std::string(row.recent_parameter)));
  }
  return row.recent == nullptr ? 0 : row.recent(budget, sinks, query_heads);
}

const ScorerRow* FindScorer(std::string_view name) {
  const auto row = std::ranges::find(kRegistry, name, &ScorerRow::name);
  return row == std::end(kRegistry) ? nullptr : row;
}

absl::Status UnknownScorer(std::string_view field, std::string_view name) {
  std::string known;
  for (const ScorerRow& row : kRegistry) known += absl::StrFormat("%s%s", known.empty() ? "" : ", ", row.name);
  return Refuse(absl::StatusCode::kNotFound, absl::StrFormat("%s: no scorer named '%s'; use %s", field, name, known),
                {.reason = "UNKNOWN_SCORER", .field = std::string(field)});
}

absl::StatusOr<ScorerParameters> ResolveParameters(const ScorerRow& row, const ScorerParameters& given) {
  ScorerParameters resolved;
  std::string known;
  for (const ParameterRow& parameter : row.parameters) {
    resolved[std::string(parameter.name)] = parameter.preset;
    known += absl::StrFormat("%s%s", known.empty() ? "" : ", ", parameter.name);
  }
  for (const auto& [name, value] : given) {
    const std::string field = absl::StrFormat("policy.%s.%s", row.name, name);
    const auto parameter = std::ranges::find(row.parameters, std::string_view(name), &ParameterRow::name);
    if (parameter == row.parameters.end()) {
      return RefuseField("UNKNOWN_PARAMETER", field,
                         known.empty() ? absl::StrFormat("the scorer %s takes no parameters", row.name)
                                       : absl::StrFormat("the scorer %s takes %s", row.name, known));
    }
    EBB_TRY(CheckParameter(*parameter, field, value));
    resolved[name] = value;
  }
  return resolved;
}

}  // namespace ebb
