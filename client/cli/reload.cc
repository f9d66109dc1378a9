#include <cstdio>

#include "client/cli/shell.h"

namespace ebb::cli {

void AddReload(Command app, Shell& shell) {
  const Command command =
      app.add_subcommand("reload", "Have the server read its files again, and print what has changed");
  command.footer(
      "Its files: that of --config, tokens, certificates, experiments. It takes all of what has changed in them or,\n"
      "with an error in any, nothing. It looks at each by itself, too (server.reload, auth.reload, tls.reload,\n"
      "experiments.reload).\n"
      "Example:\n  ebb reload");
  command.callback([&shell] {
    client::Client client = shell.Connect();
    v1::ReloadConfigResponse response;
    if (!shell.Check(client.ReloadConfig(&response))) return;
    if (shell.json) return shell.PrintJson(response);
    for (const v1::ConfigChange& change : response.changes()) {
      std::printf("%s: %s -> %s\n", change.key().c_str(), change.before().empty() ? "\"\"" : change.before().c_str(),
                  change.after().empty() ? "\"\"" : change.after().c_str());
    }
    for (const std::string& file : response.files()) std::printf("taken: %s\n", file.c_str());
    if (response.files().empty()) std::printf("nothing has changed\n");
  });
}

}  // namespace ebb::cli
