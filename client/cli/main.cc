// `ebb`: talks to an ebbd from a terminal or a script, and measures engine and server. Data goes to stdout, progress
// and messages to stderr.

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "bench/bench.h"
#include "client/cli/shell.h"
#include "command_line/command_line.h"

namespace {

constexpr void (*kCommands[])(ebb::Command, ebb::cli::Shell&) = {
    ebb::cli::AddGenerate,  ebb::cli::AddChat,      ebb::cli::AddSessions, ebb::cli::AddFork,       ebb::cli::AddSave,
    ebb::cli::AddRestore,   ebb::cli::AddSnapshots, ebb::cli::AddCache,    ebb::cli::AddEvict,      ebb::cli::AddEdit,
    ebb::cli::AddEvictions, ebb::cli::AddWatch,     ebb::cli::AddPolicy,   ebb::cli::AddExperiment, ebb::cli::AddStatus,
    ebb::cli::AddModels,    ebb::cli::AddHealth,    ebb::cli::AddReload,   ebb::cli::AddTenant,     ebb::cli::AddDemo,
    ebb::cli::AddToken,     ebb::bench::AddBench,
};

}  // namespace

int main(int argc, char** argv) {
  ebb::Program app("ebb: inference with a KV cache that stays inside its budget.\n", "ebb");
  ebb::cli::Shell shell;
  app.add_option("--addr", shell.address, "Address of the server").envname("EBB_ADDR").capture_default_str();
  app.add_option("--tenant", shell.tenant, "Whom to act for; default: the server's `default` tenant");
  app.add_flag("--tls", shell.credentials.tls, "Speak TLS; so does each of the next three").envname("EBB_TLS");
  app.add_option("--ca", shell.credentials.ca, "PEM file of who signed the server's certificate; default: the system's")
      .envname("EBB_CA");
  app.add_option("--cert", shell.credentials.cert, "PEM file of a certificate of yours, with --key")
      .envname("EBB_CERT");
  app.add_option("--key", shell.credentials.key, "PEM file of its key").envname("EBB_KEY");
  app.add_option("--token-file", shell.credentials.token_file, "File with your token").envname("EBB_TOKEN_FILE");
  app.add_option("--follow", shell.follow,
                 "host:port, or *.domain:port: another server that may be called, with your token, when a session has "
                 "moved there; answers go on there. Separated by commas, or given several times")
      .delimiter(',')
      .allow_extra_args(false)
      .type_name("SERVER")
      .envname("EBB_FOLLOW");
  app.add_option("--keepalive", shell.keepalive,
                 "Ask a server that owes an answer for a sign after so long a silence; without one for as long again, "
                 "20s at most, the connection is broken. A server ends one that asks more often than every 30s")
      .type_name("TIME")
      .envname("EBB_KEEPALIVE")
      .capture_default_str();
  app.add_option(
         "--patience", shell.patience,
         "How long to try again a server that has answered this command before and is away, or drains, as while "
         "it is restarted")
      .type_name("TIME")
      .envname("EBB_PATIENCE")
      .capture_default_str();
  app.add_flag("--json", shell.json, "Print JSON, one object per line");
  app.set_version_flag("--version", EBB_VERSION);
  app.footer(
      "Examples:\n"
      "  ebb generate \"It was a dark and stormy night\"\n"
      "  ebb chat --policy h2o --budget 256\n"
      "  ebb sessions\n"
      "Exit codes: 0 done, 1 refused, 2 usage, 3 no server, 130 interrupted.");
  app.fallthrough();
  app.require_subcommand(1);
  for (const auto add : kCommands) add(app, shell);
  const auto stopped = app.parse({argv + 1, argv + argc});
  if (stopped && stopped->asked) {
    std::fputs(stopped->text.c_str(), stdout);
  } else if (stopped) {
    // Parsing may have ended before it came to the flag.
    shell.json = std::find(argv + 1, argv + argc, std::string_view("--json")) != argv + argc;
    shell.Misused(ebb::cli::WhatIsWrong(*stopped));
    if (!shell.json) std::fprintf(stderr, "Run with --help for more information.\n");
  }
  return shell.exit_code;
}
