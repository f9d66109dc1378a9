#include "server/config.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/parallel.h"
#include "server/config_keys.h"
#include "tests/support/another_value.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::SizeIs;
using Variables = std::map<std::string, std::string>;

absl::StatusOr<LoadedConfig> FromYaml(const std::string& yaml) {
  EBB_ASSIGN(const std::vector<ConfigSetting> settings, ReadConfigYaml(yaml, "ebb.yaml"));
  return ResolveConfig(settings);
}

absl::StatusOr<LoadedConfig> FromFlags(const std::vector<std::string>& flags, const Variables& variables = {}) {
  EBB_ASSIGN(const CommandLine line, ParseCommandLine(flags));
  return LoadConfig(line, variables);
}

// The message of a refused configuration.
std::string Problem(const absl::StatusOr<LoadedConfig>& loaded) {
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(loaded.status().message());
}

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(ConfigKeys, TheMostThreadsAreWhatAPoolCanHave) {
  const auto threads =
      std::ranges::find(ConfigKeys(), "model.threads", [](const ConfigKey& key) { return key.Path(); });
  ASSERT_NE(threads, ConfigKeys().end());
  EXPECT_EQ(threads->key.max(), std::to_string(kThreadsMax));
}

TEST(ConfigKeys, EachHasHelpAndARangeWhereItsTypeHasOne) {
  std::set<std::string> variables, flags;
  for (const ConfigKey& key : ConfigKeys()) {
    SCOPED_TRACE(key.Path());
    EXPECT_THAT(key.key.help(), Not(IsEmpty()));
    EXPECT_FALSE(key.key.default_().empty() && key.key.default_means().empty());
    const bool text = key.field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING;
    EXPECT_EQ(key.key.min().empty(), text);
    EXPECT_EQ(key.key.max().empty(), text);
    if (!key.is_named()) {
      EXPECT_TRUE(variables.insert(key.Variable()).second);
    }
    if (!key.key.flag().empty()) {
      EXPECT_TRUE(flags.insert(key.key.flag()).second);
    }
  }
}

TEST(LoadConfig, GivesTheDefaultsOfTheArchitectureWithoutAnything) {
  const auto loaded = FromFlags({});
  ASSERT_THAT(loaded, IsOk());
  const config::v1::Config& config = loaded->config;
  EXPECT_EQ(config.server().listen(), "127.0.0.1:7700");
  EXPECT_EQ(config.server().http_listen(), "127.0.0.1:7701");
  EXPECT_EQ(ToDuration(config.server().drain_timeout()), absl::Seconds(30));
  EXPECT_EQ(config.server().message_size_max(), 4u << 20);
  EXPECT_EQ(config.server().plan_size_max(), 4u << 20);
  EXPECT_EQ(config.model().path(), "");
  EXPECT_EQ(config.cache().arena(), 0u);
  EXPECT_EQ(config.scheduling().step_tokens_max(), 512u);
  EXPECT_EQ(config.log().level(), "info");
  EXPECT_THAT(config.tenants(), IsEmpty());
  EXPECT_THAT(loaded->origins, IsEmpty());
  EXPECT_THAT(loaded->warnings, IsEmpty());
}

TEST(LoadConfig, ReadsEveryKeyFromEverySource) {
  for (const ConfigKey& key : ConfigKeys()) {
    SCOPED_TRACE(key.Path("acme"));
    const ConfigPlace place = {.key = &key, .name = key.is_named() ? "acme" : ""};
    const std::string value = AnotherValue(key);
    std::string yaml = key.section + ":\n  ";
    if (key.is_named()) yaml += "acme:\n    ";
    yaml += key.name + ": \"" + value + "\"\n";
    const auto file = FromYaml(yaml);
    ASSERT_THAT(file, IsOk()) << yaml;
    EXPECT_EQ(GetConfigValue(place, file->config), value);
    const auto flag = FromFlags({"--" + key.Path("acme") + "=" + value});
    ASSERT_THAT(flag, IsOk());
    EXPECT_EQ(flag->config.SerializeAsString(), file->config.SerializeAsString());
    EXPECT_THAT(flag->origins, ElementsAre(Pair(key.Path("acme"), "--" + key.Path("acme"))));
    if (key.is_named()) continue;
    const auto variable = FromFlags({}, {{key.Variable(), value}});
    ASSERT_THAT(variable, IsOk());
    EXPECT_EQ(variable->config.SerializeAsString(), file->config.SerializeAsString());
    EXPECT_THAT(variable->origins, ElementsAre(Pair(key.Path(), key.Variable())));
  }
}

TEST(LoadConfig, PrefersFlagsToVariablesToTheFile) {
  const std::string file =
      WriteFile("precedence.yaml", "scheduling: {rows_max: 1, queue_max: 1, step_tokens_max: 1}\n");
  const auto loaded = FromFlags({"--config", file, "--scheduling.rows_max", "3"},
                                {{"EBB_SCHEDULING_ROWS_MAX", "2"}, {"EBB_SCHEDULING_QUEUE_MAX", "2"}});
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(loaded->config.scheduling().rows_max(), 3u);
  EXPECT_EQ(loaded->config.scheduling().queue_max(), 2u);
  EXPECT_EQ(loaded->config.scheduling().step_tokens_max(), 1u);
  EXPECT_THAT(loaded->origins, ElementsAre(Pair("scheduling.queue_max", "EBB_SCHEDULING_QUEUE_MAX"),
                                           Pair("scheduling.rows_max", "--scheduling.rows_max"),
                                           Pair("scheduling.step_tokens_max", file + ":1")));
}

TEST(LoadConfig, RefusesAFileThatCannotBeRead) {
  EXPECT_THAT(Problem(FromFlags({"--config=/nowhere/ebb.yaml"})), HasSubstr("/nowhere/ebb.yaml: No such file"));
  EXPECT_THAT(Problem(FromFlags({"--config", testing::TempDir()})), HasSubstr("cannot read"));
}

TEST(LoadConfig, WarnsOfVariablesThatNameNoKeyButNotOfTheToolsOwn) {
  const auto loaded = FromFlags({}, {{"EBB_SERVER_LISEN", "x"},
                                     {"EBB_PORT", "tcp://10.0.0.1:7700"},
                                     {"EBB_ADDR", "x"},
                                     {"EBB_TOKEN_FILE", "x"},
                                     {"EBB_ISA", "x"},
                                     {"EBB_GOLDEN", "x"},
                                     {"HOME", "x"}});
  ASSERT_THAT(loaded, IsOk());
  EXPECT_THAT(loaded->warnings,
              ElementsAre(HasSubstr("EBB_PORT is ignored"),
                          AllOf(HasSubstr("EBB_SERVER_LISEN"), HasSubstr("nearest is EBB_SERVER_LISTEN"))));
}

TEST(ResolveConfig, NamesUnknownKeysTheirLineAndTheNearestKnownOne) {
  const auto loaded =
      FromYaml("server:\n  lisen: x\nlisten: y\nserve:\n  a: 1\n  b: 2\ntenants:\n  acme:\n    wieght: 2\n");
  const std::string problem = Problem(loaded);
  EXPECT_THAT(problem, HasSubstr("ebb.yaml:2: server.lisen: there is no such key; the nearest is server.listen\n"));
  EXPECT_THAT(problem, HasSubstr("ebb.yaml:3: listen: there is no such key; the nearest is server.listen\n"));
  EXPECT_THAT(problem, HasSubstr("ebb.yaml:4: serve: there is no such key; the nearest is server\n"));
  EXPECT_THAT(problem, Not(HasSubstr("serve.a"))) << "one line for the section is enough";
  EXPECT_THAT(problem, HasSubstr("tenants.acme.wieght: there is no such key; the nearest is tenants.acme.weight"));
  EXPECT_THAT(loaded, IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_CONFIG", "server.lisen"));
}

TEST(FindConfigPlace, RefusesAnUnknownKey) {
  EXPECT_THAT(FindConfigPlace({"server", "lisen"}),
              IsRefusal(absl::StatusCode::kInvalidArgument, "UNKNOWN_KEY", "server.lisen"));
}

TEST(SetConfigValue, RefusesABadValue) {
  config::v1::Config config = DefaultConfig();
  const auto place = FindConfigPlace({"scheduling", "rows_max"});
  ASSERT_THAT(place, IsOk());
  for (const char* const text : {"many", "0"}) {
    EXPECT_THAT(SetConfigValue(*place, text, config),
                IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_VALUE", "scheduling.rows_max"));
  }
}

TEST(ReadConfigYaml, RefusesWhatIsNoYaml) {
  EXPECT_THAT(ReadConfigYaml("server: [", "ebb.yaml"), IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_YAML", ""));
}

TEST(ResolveConfig, NamesWhatIsAllowedForABadValue) {
  const auto problem = [](const std::string& yaml) { return Problem(FromYaml(yaml)); };
  EXPECT_EQ(problem("scheduling: {rows_max: 0}"), "ebb.yaml:1: scheduling.rows_max: 0 is not in [1, 4096]");
  EXPECT_EQ(problem("scheduling: {rows_max: 4097}"), "ebb.yaml:1: scheduling.rows_max: 4097 is not in [1, 4096]");
  EXPECT_EQ(problem("scheduling: {rows_max: -1}"),
            "ebb.yaml:1: scheduling.rows_max: '-1' is not a whole number, in [1, 4096]");
  EXPECT_THAT(problem("scheduling: {rows_max: 99999999999999999999}"), HasSubstr("not a whole number, in [1, 4096]"));
  EXPECT_THAT(problem("scheduling: {rows_max: many}"), HasSubstr("'many' is not a whole number"));
  EXPECT_THAT(problem("server: {drain_timeout: 30}"), HasSubstr("'30' is not a time with its unit"));
  EXPECT_THAT(problem("server: {drain_timeout: inf}"), HasSubstr("[0s, 24h]"));
  EXPECT_THAT(problem("server: {drain_timeout: -1s}"), HasSubstr("[0s, 24h]"));
  EXPECT_EQ(problem("quality: {shadow_share: 1.5}"), "ebb.yaml:1: quality.shadow_share: 1.5 is not in [0, 1]");
  for (const char* const text : {"half", "-0.1", "nan", "inf", "0.5.1"}) {
    EXPECT_THAT(problem(std::string("quality: {shadow_share: ") + text + "}"),
                HasSubstr("is not a number, for example 0.05, in [0, 1]"));
  }
  EXPECT_EQ(FromYaml("quality: {shadow_share: 0.05}")->config.quality().shadow_share(), 0.05);
  EXPECT_THAT(problem("server: {drain_timeout: 25h}"), HasSubstr("25h is not in [0s, 24h]"));
  EXPECT_THAT(problem("server: {message_size_max: 4MB}"), HasSubstr("'4MB' is not a size, for example 4096, 64KiB"));
  EXPECT_THAT(problem("server: {message_size_max: 1GiB}"), HasSubstr("1GiB is not in [64KiB, 64MiB]"));
  EXPECT_THAT(problem("server: {listen: localhost}"), HasSubstr("server.listen: 'localhost' is no address"));
  EXPECT_THAT(problem("server: {listen: \"\"}"), HasSubstr("server.listen: '' is no address"));
  EXPECT_THAT(problem("log: {level: loud}"), HasSubstr("'loud' is none of trace, debug, info, warn, error"));
  EXPECT_THAT(problem("model: {isa: sse}"),
              HasSubstr("'sse' is none of scalar, avx2, avx2vnni, avx512, avx512vnni, avx512bf16, avx512amx, "
                        "avx512amxbf16"));
  EXPECT_THAT(problem("server: {listen: }"), HasSubstr("server.listen: has no value"));
  EXPECT_THAT(problem("server: 7"), HasSubstr("server: is a section"));
  EXPECT_THAT(problem("server: {listen: {host: x}}"), HasSubstr("server.listen: has no value"));
  EXPECT_THAT(problem("server.listen: x"), HasSubstr("server.listen: there is no such key"));
  EXPECT_THAT(problem("tenants: {acme: {weight: }}"), HasSubstr("tenants.acme.weight: has no value"));
  EXPECT_THAT(problem("tenants: {acme: 3}"), HasSubstr("tenants.acme: is a section"));
  EXPECT_THAT(problem("tenants: {Acme: {weight: 1}}"), HasSubstr("'Acme' is no tenant's name"));
  EXPECT_THAT(problem("models: {Big: {path: x}}"), HasSubstr("'Big' is no model's name"));
  EXPECT_THAT(problem("models: {big: {pat: x}}"), HasSubstr("the nearest is models.big.path"));
}

TEST(ResolveConfig, TellsAllProblemsAtOnceUpToABound) {
  std::string yaml = "tenants:\n";
  for (int i = 0; i < 100; ++i) yaml += "  t" + std::to_string(i) + ": {weight: 0}\n";
  const std::string problem = Problem(FromYaml(yaml));
  EXPECT_EQ(std::count(problem.begin(), problem.end(), '\n'), 20);
  EXPECT_THAT(problem, HasSubstr("and more"));
}

TEST(ResolveConfig, TakesSectionsWithoutKeysAndTenantsWithDotsInTheirNames) {
  const auto loaded = FromYaml("server:\nlog: {}\ntenants:\n  eu.acme-1: {weight: 7}\n  plain:\n  empty: {}\n");
  ASSERT_THAT(loaded, IsOk());
  EXPECT_THAT(loaded->config.tenants(), SizeIs(3));
  EXPECT_EQ(loaded->config.tenants().at("eu.acme-1").weight(), 7u);
  EXPECT_EQ(loaded->config.tenants().at("plain").weight(), 1u);
  EXPECT_EQ(loaded->config.tenants().at("empty").sessions_max(), 0u);
}

TEST(LoadConfig, GivesTenantsWhatTheyDoNotSetFromTenantDefaults) {
  const std::string file = WriteFile("tenant_defaults.yaml",
                                     "tenants:\n"
                                     "  acme: {weight: 7}\n"
                                     "  free: {sessions_max: 0, policy: \"\"}\n"
                                     "  plain:\n"
                                     "tenant_defaults: {weight: 2, sessions_max: 5, policy: '{\"h2o\": {}}'}\n");
  const auto loaded = FromFlags({"--config", file, "--tenants.flagged.weight=3", "--tenant_defaults.sessions_max=6"},
                                {{"EBB_TENANT_DEFAULTS_CALLS_MAX", "9"}});
  ASSERT_THAT(loaded, IsOk());
  const auto has = [&](const std::string& name) {
    const config::v1::Tenant& tenant = loaded->config.tenants().at(name);
    return absl::StrFormat("%d %d %d %d %s", tenant.weight(), tenant.sessions_max(), tenant.calls_max(),
                           tenant.watchers_max(), tenant.policy());
  };
  EXPECT_EQ(has("acme"), "7 6 9 16 {\"h2o\": {}}");
  EXPECT_EQ(has("free"), "2 0 9 16 ");
  EXPECT_EQ(has("plain"), "2 6 9 16 {\"h2o\": {}}");
  EXPECT_EQ(has("flagged"), "3 6 9 16 {\"h2o\": {}}");

  const std::string text = ExplainConfig(*loaded);
  EXPECT_THAT(text, HasSubstr("tenant_defaults:\n  weight: 2 "));
  EXPECT_THAT(text, HasSubstr("    sessions_max: 6                        # tenant_defaults.sessions_max\n"));
  EXPECT_THAT(text, HasSubstr("    watchers_max: 16                       # default\n"));
  const auto again = FromYaml(text);
  ASSERT_THAT(again, IsOk()) << text;
  EXPECT_EQ(again->config.DebugString(), loaded->config.DebugString());
}

// Each as "path: before -> after", of keys that a running server takes.
std::vector<std::string> LiveChanges(const LoadedConfig& before, const LoadedConfig& after) {
  std::vector<std::string> changes;
  for (const ConfigChange& change : ConfigChanges(before.config, after.config)) {
    EXPECT_TRUE(change.key->key.reload()) << change.path;
    changes.push_back(change.path + ": " + change.before + " -> " + change.after);
  }
  return changes;
}

TEST(ConfigChanges, SaysWhichModelsComeAndGo) {
  const auto before = FromYaml("models: {a.1: {path: a.gguf}, b: {path: b.gguf, threads: 2}}");
  const auto after = FromYaml("models: {b: {path: b.gguf, threads: 3}, c: {path: c.gguf}}");
  ASSERT_THAT(before, IsOk());
  ASSERT_THAT(after, IsOk());
  EXPECT_THAT(LiveChanges(*before, *after),
              ElementsAre("models.a.1.path: a.gguf -> ", "models.b.threads: 2 -> 3", "models.c.path:  -> c.gguf"));
}

TEST(ConfigChanges, OfWhatTenantsHaveByDefaultAreOnesOfEachThatDoesNotSetIt) {
  const auto before = FromYaml("tenant_defaults: {calls_max: 1}\ntenants: {a: {calls_max: 1}, b: {weight: 2}}");
  const auto after = FromYaml("tenant_defaults: {calls_max: 3}\ntenants: {a: {calls_max: 1}, c: {weight: 2}}");
  ASSERT_THAT(before, IsOk());
  ASSERT_THAT(after, IsOk());
  EXPECT_THAT(LiveChanges(*before, *after),
              ElementsAre("tenant_defaults.calls_max: 1 -> 3", "tenants.b.weight: 2 -> 1",
                          "tenants.b.calls_max: 1 -> 3", "tenants.c.weight: 1 -> 2", "tenants.c.calls_max: 1 -> 3"));
}

TEST(ResolveConfig, SwitchesTheHttpPortOffWithAnEmptyText) {
  EXPECT_EQ(FromYaml("server: {http_listen: \"\"}")->config.server().http_listen(), "");
  EXPECT_EQ(FromFlags({"--server.http_listen="})->config.server().http_listen(), "");
}

TEST(ReadConfigYaml, RefusesWhatAConfigurationDoesNotNeed) {
  const auto problem = [](const std::string& yaml) { return Problem(FromYaml(yaml)); };
  EXPECT_THAT(problem("server: [a]"), HasSubstr("ebb.yaml:1: server: expected one value, not a list"));
  EXPECT_THAT(problem("- a"), HasSubstr("not a list"));
  EXPECT_THAT(problem("text"), HasSubstr("expected keys"));
  EXPECT_THAT(problem("a: &x {b: 1}\nc: *x\n"), HasSubstr("ebb.yaml:2: aliases"));
  EXPECT_THAT(problem("a: 1\n---\nb: 1\n"), HasSubstr("more than one document"));
  EXPECT_THAT(problem("log:\n  level: info\n  level: warn\n"),
              HasSubstr("ebb.yaml:3: log.level is given twice, first in line 2"));
  EXPECT_THAT(problem("a: {b: {c: {d: {e: 1}}}}"), HasSubstr("nested deeper than 4"));
  EXPECT_THAT(problem("a: !!binary x"), HasSubstr("tag"));
  EXPECT_THAT(problem("server: {listen: \"x\n"), HasSubstr("ebb.yaml:"));
  EXPECT_THAT(problem(": x"), HasSubstr("ebb.yaml:1: "));
  EXPECT_THAT(problem("[a]: x"), HasSubstr("ebb.yaml:1: "));
  EXPECT_THAT(problem(std::string("a: \0", 4)), HasSubstr("NUL"));
  EXPECT_THAT(problem(std::string((1 << 20) + 1, ' ')), HasSubstr("too many"));
  EXPECT_THAT(problem(std::string(100000, '[')), HasSubstr("ebb.yaml:1: nested far too deeply"));
  EXPECT_THAT(problem(std::string(100, 'k') + ": 1"), HasSubstr("a key has 1 to 64 characters"));
}

TEST(ReadConfigYaml, FindsNothingInAnEmptyFile) {
  for (const std::string yaml : {"", "\n", "# a comment\n", "---\n", "{}\n"}) {
    const auto settings = ReadConfigYaml(yaml, "ebb.yaml");
    ASSERT_THAT(settings, IsOk()) << yaml;
    EXPECT_THAT(*settings, IsEmpty()) << yaml;
  }
}

TEST(ParseCommandLine, TakesShortFlagsAndActions) {
  const auto line = ParseCommandLine(std::vector<std::string>{"--listen", "[::]:1", "--model=a=b", "--print-config"});
  ASSERT_THAT(line, IsOk());
  EXPECT_EQ(line->action, CommandLine::Action::kPrintConfig);
  ASSERT_THAT(line->settings, SizeIs(2));
  EXPECT_THAT(line->settings[0].path, ElementsAre("server", "listen"));
  EXPECT_EQ(line->settings[0].origin, "--listen");
  EXPECT_THAT(line->settings[1].path, ElementsAre("model", "path"));
  EXPECT_EQ(line->settings[1].text, "a=b");
  EXPECT_EQ(ParseCommandLine(std::vector<std::string>{"-h"})->action, CommandLine::Action::kHelp);
  EXPECT_EQ(ParseCommandLine(std::vector<std::string>{"--version"})->action, CommandLine::Action::kVersion);
}

TEST(ParseCommandLine, NamesTheNearestFlag) {
  const auto problem = [](const std::vector<std::string>& flags) { return Problem(FromFlags(flags)); };
  EXPECT_EQ(problem({"--server.lisen=x"}), "--server.lisen: there is no such flag; the nearest is --server.listen");
  EXPECT_THAT(problem({"--liste=x"}), HasSubstr("nearest is --listen"));
  EXPECT_THAT(problem({"--server=x"}), HasSubstr("no such flag"));
  EXPECT_THAT(problem({"--listen"}), HasSubstr("--listen: a value is missing"));
  EXPECT_THAT(problem({"--model", "--listen"}), HasSubstr("--model: a value is missing"));
  EXPECT_THAT(problem({"model.gguf"}), HasSubstr("'model.gguf': only flags are expected"));
  EXPECT_THAT(problem({"--log.level=loud"}), HasSubstr("--log.level: log.level: 'loud' is none of"));
}

TEST(ExplainConfig, SaysWhereEachValueCameFromAndLoadsToTheSame) {
  const auto loaded =
      FromFlags({"--listen=0.0.0.0:1", "--model", "a \"quoted\" \\ # name: \xC3\xBC\t", "--model.name=null",
                 "--tenants.acme.weight=3", "--server.http_listen=", "--models.big.path=big.gguf"},
                {{"EBB_LOG_LEVEL", "debug"}});
  ASSERT_THAT(loaded, IsOk());
  const std::string text = ExplainConfig(*loaded);
  EXPECT_THAT(text, HasSubstr("  listen: 0.0.0.0:1                        # --listen\n"));
  EXPECT_THAT(text, HasSubstr("# EBB_LOG_LEVEL\n"));
  EXPECT_THAT(text, HasSubstr("drain_timeout: 30s                       # default\n"));
  const auto again = FromYaml(text);
  ASSERT_THAT(again, IsOk()) << text;
  EXPECT_EQ(again->config.DebugString(), loaded->config.DebugString());
}

TEST(ExplainConfig, LoadsToTheSameForAnyText) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string name(1 + random() % 12, ' ');
    for (char& c : name) c = static_cast<char>(1 + random() % 0x7F);
    const auto loaded = FromFlags({"--model.name=" + name});
    ASSERT_THAT(loaded, IsOk());
    const auto again = FromYaml(ExplainConfig(*loaded));
    ASSERT_THAT(again, IsOk()) << ExplainConfig(*loaded);
    EXPECT_EQ(again->config.model().name(), name);
  }
}

TEST(ConfigHelp, ListsEveryKey) {
  const std::string help = ConfigHelp();
  for (const ConfigKey& key : ConfigKeys()) EXPECT_THAT(help, HasSubstr("  --" + key.Path()));
  EXPECT_THAT(help, HasSubstr("  --server.listen, --listen HOST:PORT\n"));
  EXPECT_THAT(help, HasSubstr("--log.level trace|debug|info|warn|error\n"));
  EXPECT_THAT(help, HasSubstr("1 to 4096. Default: 64."));
  EXPECT_THAT(help, HasSubstr("Default: tenant_defaults.weight."));
}

TEST(ReadVariables, SplitsAtTheFirstEqualsSign) {
  const char* const environment[] = {"A=b=c", "EMPTY=", "odd", nullptr};
  EXPECT_THAT(ReadVariables(environment), ElementsAre(Pair("A", "b=c"), Pair("EMPTY", "")));
}

}  // namespace
}  // namespace ebb
