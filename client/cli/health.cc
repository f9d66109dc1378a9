#include <cstdio>
#include <nlohmann/json.hpp>

#include "client/cli/shell.h"

namespace ebb::cli {

void AddHealth(Command app, Shell& shell) {
  const Command command = app.add_subcommand("health", "Is the server there and serving? Exit code 0 only if it is");
  auto service = std::make_shared<std::string>();
  command.add_option("service", *service,
                     "liveness or readiness, the two apart; models/NAME; or the full name of one gRPC service, for "
                     "example ebb.v1.InferenceService");
  command.footer(
      "Examples:\n"
      "  ebb health\n"
      "  ebb health readiness");
  command.callback([&shell, service] {
    client::Client client = shell.Connect();
    std::string answer;
    if (!shell.Check(client.CheckHealth(*service, &answer))) return;
    if (shell.json) {
      std::printf("%s\n", nlohmann::json{{"status", answer}}.dump().c_str());
    } else {
      std::printf("%s\n", answer.c_str());
    }
    if (answer != "SERVING") shell.exit_code = kRefused;
  });
}

}  // namespace ebb::cli
