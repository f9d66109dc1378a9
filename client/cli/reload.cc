#include <cstdio>

#include "client/cli/shell.h"

namespace ebb::cli {

void AddReload(Command app, Shell& shell) {
  const Command command =
      app.add_subcommand("reload", "Have the server read its configuration again, and print what has changed");
  command.footer(
      "The server looks at its file by itself, too (server.reload). It takes all of it or, with an error, nothing.");
  command.callback([&shell] {
    client::Client client = shell.Connect();
    v1::ReloadConfigResponse response;
    if (!shell.Check(client.ReloadConfig(&response))) return;
    if (shell.json) return shell.PrintJson(response);
    for (const v1::ConfigChange& change : response.changes()) {
      std::printf("%s: %s -> %s\n", change.key().c_str(), change.before().empty() ? "\"\"" : change.before().c_str(),
                  change.after().empty() ? "\"\"" : change.after().c_str());
    }
    if (response.changes().empty()) std::printf("nothing has changed\n");
  });
}

}  // namespace ebb::cli
