// The server's configuration: flags over EBB_* variables over a YAML file over defaults, into one ebb.config.v1.Config
// whose every field is set and within its range.
//
//   EBB_ASSIGN(const CommandLine line, ParseCommandLine(arguments));
//   if (line.action == CommandLine::Action::kHelp) ...
//   EBB_ASSIGN(const LoadedConfig loaded, LoadConfig(line, variables));
//
// Pure but for reading the file. Errors are INVALID_ARGUMENT with reason BAD_CONFIG, one line per problem, all of them
// at once: where it was given, the path, what is wrong and what would be right.

#ifndef EBB_SERVER_CONFIG_H_
#define EBB_SERVER_CONFIG_H_

#include <google/protobuf/duration.pb.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ebb/config/v1/config.pb.h"
#include "server/config_yaml.h"

namespace ebb {

struct CommandLine {
  enum class Action { kRun, kHelp, kVersion, kPrintConfig };
  Action action = Action::kRun;
  std::string config_file = {};  // empty: none
  std::vector<ConfigSetting> settings = {};
};

// `arguments` without the program's name. Takes --config FILE, --help (-h), --version, --print-config, --section.key
// for every key, and the short flags of the schema; a value follows as `--flag=value` or `--flag value`. The last of
// equals wins. Values are not yet checked.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> arguments);

struct LoadedConfig {
  config::v1::Config config = {};
  std::map<std::string, std::string> origins = {};  // of each path that is not a default: ebb.yaml:3, --listen
  std::vector<std::string> warnings = {};           // EBB_* variables that are no keys
  std::string text = {};                            // of the file
};

// `variables`: the process's environment; only names that begin with EBB_ are looked at. One that names no key is a
// warning, since Kubernetes sets such names too; those of the tools (EBB_ADDR, EBB_ISA, ...) are not even that.
absl::StatusOr<LoadedConfig> LoadConfig(const CommandLine& line, const std::map<std::string, std::string>& variables);

// The same with the file's text where it has been read already; `line` says what it is called.
absl::StatusOr<LoadedConfig> LoadConfigText(const CommandLine& line,
                                            const std::map<std::string, std::string>& variables,
                                            const std::string& yaml);
// INVALID_ARGUMENT BAD_CONFIG, saying why it cannot be read.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path);

// The same from settings, weakest first; what LoadConfig does once it has read everything.
absl::StatusOr<LoadedConfig> ResolveConfig(std::span<const ConfigSetting> settings);

// YAML of every key with its value, and in a comment where it came from; loads to the same configuration.
std::string ExplainConfig(const LoadedConfig& loaded);

// What --help prints: usage, then every key with its default and range.
std::string ConfigHelp();

// NAME=value pairs as main gets them, up to the null.
std::map<std::string, std::string> ReadVariables(const char* const* environment);

inline absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

}  // namespace ebb

#endif  // EBB_SERVER_CONFIG_H_
