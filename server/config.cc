#include "server/config.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "policies/status.h"
#include "server/bounded_text.h"
#include "server/config_keys.h"
#include "server/small_file.h"

namespace ebb {
namespace {

constexpr size_t kProblemsMax = 20;
constexpr std::array<std::string_view, 8> kToolVariables = {"EBB_ADDR", "EBB_TOKEN_FILE", "EBB_TLS", "EBB_CA",
                                                            "EBB_CERT", "EBB_KEY",        "EBB_ISA", "EBB_GOLDEN"};

absl::Status BadConfig(const std::string& message, const std::string& field = "") {
  return Refuse(absl::StatusCode::kInvalidArgument, message, {.reason = "BAD_CONFIG", .field = field});
}

// Every flag that takes a value, by its path.
std::map<std::string, std::string, std::less<>> ShortFlags() {
  std::map<std::string, std::string, std::less<>> flags;
  for (const ConfigKey& key : ConfigKeys()) {
    if (!key.key.flag().empty()) flags[key.key.flag()] = key.Path();
  }
  return flags;
}

absl::Status UnknownFlag(const std::string& name) {
  std::vector<std::string> known = {"config", "help", "version", "print-config"};
  for (const auto& [flag, path] : ShortFlags()) known.push_back(flag);
  for (const ConfigKey& key : ConfigKeys()) known.push_back(key.Path());
  return BadConfig(absl::StrFormat("--%s: there is no such flag; the nearest is --%s", BoundedText(name, 200),
                                   NearestWord(name.substr(0, 200), known)));
}

std::optional<CommandLine::Action> ActionOf(std::string_view argument) {
  if (argument == "--help" || argument == "-h") return CommandLine::Action::kHelp;
  if (argument == "--version") return CommandLine::Action::kVersion;
  if (argument == "--print-config") return CommandLine::Action::kPrintConfig;
  return std::nullopt;
}

// Variables that name a key become settings, the others warnings.
std::vector<ConfigSetting> ReadEnvironment(const std::map<std::string, std::string>& variables,
                                           std::vector<std::string>& warnings) {
  std::map<std::string, std::string> paths;
  std::vector<std::string> known;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.is_named()) continue;
    paths[key.Variable()] = key.Path();
    known.push_back(key.Variable());
  }
  std::vector<ConfigSetting> settings;
  for (const auto& [name, value] : variables) {
    if (!name.starts_with("EBB_")) continue;
    if (std::find(kToolVariables.begin(), kToolVariables.end(), name) != kToolVariables.end()) continue;
    if (const auto at = paths.find(name); at != paths.end()) {
      settings.push_back({.path = SplitConfigPath(at->second), .text = value, .origin = name});
    } else {
      warnings.push_back(absl::StrFormat("%s is ignored: no key is called so; the nearest is %s",
                                         BoundedText(name, 200), NearestWord(name.substr(0, 200), known)));
    }
  }
  return settings;
}

// Whether an unknown section holds the path: its keys need no line of their own.
bool IsWithin(const ConfigPath& path, const std::set<ConfigPath>& unknown) {
  for (size_t size = 1; size < path.size(); ++size) {
    if (unknown.contains(ConfigPath(path.begin(), path.begin() + static_cast<ptrdiff_t>(size)))) return true;
  }
  return false;
}

absl::Status Apply(const ConfigSetting& setting, config::v1::Config& config) {
  EBB_ASSIGN(const ConfigPlace place, FindConfigPlace(setting.path));
  const std::string path = absl::StrJoin(setting.path, ".");
  if (place.key != nullptr) {
    if (setting.text) return SetConfigValue(place, *setting.text, config);
    return RefuseField("BAD_VALUE", path, "has no value; leave it out, or write \"\" for nothing");
  }
  if (setting.text) return RefuseField("BAD_VALUE", path, "is a section, not a value");
  if (!place.name.empty()) AddNamed(setting.path[0], place.name, config);
  return absl::OkStatus();
}

// The value in double quotes where YAML would read something else without them.
std::string Quoted(const std::string& value) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./_-:";
  const bool plain = !value.empty() && value.find_first_not_of(kPlain) == std::string::npos &&
                     value.find_first_of("-:.") != 0 && value.back() != ':' && value != "null" && value != "Null" &&
                     value != "NULL";
  if (plain) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&quoted, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string TenantDefault(const ConfigKey& key) { return "tenant_defaults." + key.name; }

std::string OriginOf(const ConfigKey& key, const std::string& name, const LoadedConfig& loaded) {
  const auto origin = loaded.origins.find(key.Path(name));
  if (origin != loaded.origins.end()) return origin->second;
  const bool is_given_to_all = key.section == "tenants" && loaded.origins.contains(TenantDefault(key));
  return is_given_to_all ? TenantDefault(key) : "default";
}

void ExplainKeys(std::string_view section, const std::string& name, const std::string& indent,
                 const LoadedConfig& loaded, std::string& text) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section != section) continue;
    const std::string line =
        absl::StrCat(indent, key.name, ": ", Quoted(GetConfigValue({.key = &key, .name = name}, loaded.config)));
    absl::StrAppendFormat(&text, "%-42s # %s\n", line, OriginOf(key, name, loaded));
  }
}

// `words` in lines of at most 100 characters, each after `indent`.
std::string Wrapped(const std::string& words, const std::string& indent) {
  std::istringstream stream(words);
  std::string text, line = indent, word;
  while (stream >> word) {
    if (line.size() > indent.size() && line.size() + 1 + word.size() > 100) {
      absl::StrAppend(&text, line, "\n");
      line = indent;
    }
    absl::StrAppend(&line, line.size() > indent.size() ? " " : "", word);
  }
  return absl::StrCat(text, line, "\n");
}

std::string HelpOf(const ConfigKey& key) {
  std::string words = key.key.help();
  if (!key.key.min().empty()) absl::StrAppend(&words, " ", key.key.min(), " to ", key.key.max(), ".");
  absl::StrAppend(&words, " Default: ");
  if (key.section == "tenants") {
    absl::StrAppend(&words, TenantDefault(key), ".");
  } else if (key.key.default_means().empty()) {
    absl::StrAppend(&words, key.key.default_(), ".");
  } else {
    absl::StrAppend(&words, key.key.default_(), key.key.default_().empty() ? "" : ", ", key.key.default_means(), ".");
  }
  if (key.key.reload()) absl::StrAppend(&words, " Taken without a restart.");
  const std::string flag = key.key.flag().empty() ? "" : absl::StrCat(", --", key.key.flag());
  return absl::StrCat("  --", key.Path(), flag, " ", key.Shape(), "\n", Wrapped(words, "      "));
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> arguments) {
  static const auto short_flags = ShortFlags();
  CommandLine line;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (const auto action = ActionOf(argument)) {
      line.action = *action;
      continue;
    }
    if (!argument.starts_with("--")) {
      return BadConfig(absl::StrFormat("'%s': only flags are expected, see --help", BoundedText(argument, 200)));
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const auto short_flag = short_flags.find(name);
    const ConfigPath path = SplitConfigPath(short_flag == short_flags.end() ? name : short_flag->second);
    if (name != "config") {
      const auto place = FindConfigPlace(path);
      if (!place.ok() || place->key == nullptr) return UnknownFlag(name);
    }
    const bool is_apart = equals == std::string::npos;
    if (is_apart && (i + 1 == arguments.size() || arguments[i + 1].starts_with("--"))) {
      return BadConfig(
          absl::StrFormat("--%s: a value is missing (one that begins with -- is written --%s=VALUE)", name, name));
    }
    const std::string value = is_apart ? arguments[++i] : argument.substr(equals + 1);
    if (name == "config") {
      line.config_file = value;
    } else {
      line.settings.push_back({.path = path, .text = value, .origin = "--" + name});
    }
  }
  return line;
}

absl::StatusOr<LoadedConfig> ResolveConfig(std::span<const ConfigSetting> settings) {
  LoadedConfig loaded = {.config = DefaultConfig()};
  // Tenants last: they begin with tenant_defaults, which may be said behind them.
  std::vector<ConfigSetting> ordered(settings.begin(), settings.end());
  std::ranges::stable_partition(ordered, [](const ConfigSetting& setting) { return setting.path[0] != "tenants"; });
  std::vector<std::string> problems;
  std::set<ConfigPath> unknown;
  std::string field;
  for (const ConfigSetting& setting : ordered) {
    if (IsWithin(setting.path, unknown)) continue;
    const absl::Status applied = Apply(setting, loaded.config);
    if (applied.ok()) {
      if (setting.text) loaded.origins[absl::StrJoin(setting.path, ".")] = setting.origin;
      continue;
    }
    if (!setting.text) unknown.insert(setting.path);
    if (problems.empty()) field = GetRefusal(applied).field;
    if (problems.size() == kProblemsMax) {
      problems.push_back("and more");
      break;
    }
    problems.push_back(absl::StrCat(setting.origin, ": ", BoundedText(std::string(applied.message()), 1000)));
  }
  if (!problems.empty()) return BadConfig(absl::StrJoin(problems, "\n"), field);
  return loaded;
}

absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kConfigBytesMax);  // ReadConfigYaml refuses more
  if (text.ok()) return text;
  return BadConfig(absl::StrFormat("cannot read %s: %s", path, std::string(text.status().message())));
}

absl::StatusOr<LoadedConfig> LoadConfig(const CommandLine& line, const std::map<std::string, std::string>& variables) {
  std::string yaml;
  if (!line.config_file.empty()) {
    EBB_ASSIGN(yaml, ReadConfigFile(line.config_file));
  }
  return LoadConfigText(line, variables, yaml);
}

absl::StatusOr<LoadedConfig> LoadConfigText(const CommandLine& line,
                                            const std::map<std::string, std::string>& variables,
                                            const std::string& yaml) {
  std::vector<ConfigSetting> settings;
  if (!line.config_file.empty()) {
    EBB_ASSIGN(settings, ReadConfigYaml(yaml, line.config_file));
  }
  std::vector<std::string> warnings;
  std::vector<ConfigSetting> environment = ReadEnvironment(variables, warnings);
  std::move(environment.begin(), environment.end(), std::back_inserter(settings));
  settings.insert(settings.end(), line.settings.begin(), line.settings.end());
  EBB_ASSIGN(LoadedConfig loaded, ResolveConfig(settings));
  loaded.warnings = std::move(warnings);
  loaded.text = yaml;
  return loaded;
}

std::string ExplainConfig(const LoadedConfig& loaded) {
  std::string text, section;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section == section || key.is_named()) continue;
    section = key.section;
    absl::StrAppend(&text, section, ":\n");
    ExplainKeys(section, "", "  ", loaded, text);
  }
  for (const std::string named : {"models", "tenants"}) {
    const std::vector<std::string> names = NamesIn(named, loaded.config);
    if (!names.empty()) absl::StrAppend(&text, named, ":\n");
    for (const std::string& name : names) {
      absl::StrAppend(&text, "  ", name, ":\n");
      ExplainKeys(named, name, "    ", loaded, text);
    }
  }
  return text;
}

std::string ConfigHelp() {
  std::string text =
      "Usage: ebbd [--config FILE] [--KEY VALUE]...\n"
      "\n"
      "Serves a model over gRPC; every session's KV cache stays within its budget.\n"
      "\n"
      "  ebbd                                  the built-in model on 127.0.0.1:7700\n"
      "  ebbd --model llama.gguf --listen 0.0.0.0:7700\n"
      "  ebbd --config ebb.yaml --log.format json\n"
      "\n"
      "  --config FILE\n      YAML with the keys below: `server.listen` is `server: {listen: ...}`.\n"
      "  --print-config\n      Print every key, its value and where it came from, then end.\n"
      "  --version\n      Print the version, then end.\n"
      "  -h, --help\n      Print this, then end.\n"
      "\n"
      "A flag overrides the variable EBB_SECTION_KEY, which overrides the file, which overrides the default.\n"
      "\n"
      "Exit codes: 0 done, 1 cannot start, 2 wrong configuration.\n";
  std::string section;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.section != section) absl::StrAppend(&text, "\n", section = key.section, "\n");
    absl::StrAppend(&text, HelpOf(key));
  }
  return text;
}

std::map<std::string, std::string> ReadVariables(const char* const* environment) {
  std::map<std::string, std::string> variables;
  for (; *environment != nullptr; ++environment) {
    const std::string_view pair = *environment;
    const size_t equals = pair.find('=');
    if (equals != std::string_view::npos) variables.emplace(pair.substr(0, equals), pair.substr(equals + 1));
  }
  return variables;
}

}  // namespace ebb
