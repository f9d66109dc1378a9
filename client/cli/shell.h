// What every subcommand of `ebb` shares: where the server is, how to print, and how a failure becomes an exit code.
//
// Exit codes: 0 done; 1 the server refused or failed; 2 wrong usage; 3 the server cannot be reached; 130 interrupted.

#ifndef EBB_CLIENT_CLI_SHELL_H_
#define EBB_CLIENT_CLI_SHELL_H_

#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/client.h"
#include "command_line/command_line.h"

namespace ebb::cli {

inline constexpr int kDone = 0;
inline constexpr int kRefused = 1;
inline constexpr int kUsage = 2;
inline constexpr int kUnreachable = 3;
inline constexpr int kInterrupted = 130;

// One per process; filled from the flags before a subcommand's callback runs.
struct Shell {
  std::string address = "127.0.0.1:7700";
  std::string tenant = {};
  client::CredentialFiles credentials = {};
  std::vector<std::string> follow = {};
  std::string keepalive = "60s";  // a time, > 0
  std::string patience = "60s";   // a time
  bool json = false;
  int exit_code = kDone;

  // Throws UsageError where the credentials cannot be read, one of `follow` is no server, or a time is none.
  client::Client Connect() const;

  // Prints an error to stderr (as an object with --json) and sets exit_code. Returns status.ok().
  bool Check(const grpc::Status& status);

  // Likewise for a command line that cannot be carried out: kUsage; as an object its code is INVALID_ARGUMENT, its
  // reason USAGE.
  void Misused(const std::string& message);

  // Likewise for what this process could not do: kRefused. `code` and `reason` as in an ErrorInfo, the latter may be
  // empty.
  void Failed(const std::string& code, const std::string& reason, const std::string& message);

  // One JSON object on one line of stdout, fields named as in the proto.
  void PrintJson(const google::protobuf::Message& message) const;
};

// What is wrong with a command line: what the parser says, but a command that there is not by its name, with those that
// there are.
std::string WhatIsWrong(const Stopped& stopped);

// `sessions/{id}`, whatever of the two the user typed.
std::string SessionName(const std::string& typed);

// Adds --model, of calls that open a session or are about none; `use` is what the help says of it.
Flag AddModel(Command command, std::string& model, const std::string& use = "Of a new session");

// The time that a flag was given. Throws UsageError.
absl::Duration ReadTime(const std::string& flag, const std::string& text);

// 3.4 MiB.
std::string Bytes(double bytes);

// Each adds one subcommand with its flags, help and callback; main.cc has the table.
void AddHealth(Command app, Shell& shell);
void AddStatus(Command app, Shell& shell);
void AddModels(Command app, Shell& shell);
void AddGenerate(Command app, Shell& shell);
void AddChat(Command app, Shell& shell);
void AddSessions(Command app, Shell& shell);
void AddFork(Command app, Shell& shell);
void AddSave(Command app, Shell& shell);
void AddRestore(Command app, Shell& shell);
void AddSnapshots(Command app, Shell& shell);
void AddCache(Command app, Shell& shell);
void AddEdit(Command app, Shell& shell);
void AddEvictions(Command app, Shell& shell);
void AddExperiment(Command app, Shell& shell);
void AddTenant(Command app, Shell& shell);
void AddEvict(Command app, Shell& shell);
void AddPolicy(Command app, Shell& shell);
void AddWatch(Command app, Shell& shell);
void AddDemo(Command app, Shell& shell);
void AddToken(Command app, Shell& shell);
void AddReload(Command app, Shell& shell);

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_SHELL_H_
