#include <cstdio>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

// "serving", of MODEL_STATE_SERVING.
std::string StateWord(v1::ModelState state) {
  return absl::AsciiStrToLower(v1::ModelState_Name(state).substr(sizeof("MODEL_STATE_") - 1));
}

void PrintHeader() {
  std::printf("%s\n",
              Styled("1",
                     "MODEL                     STATE      SESSIONS  RUNNING  QUEUED  PAGES                   WEIGHTS  "
                     "ARCHITECTURE")
                  .c_str());
}

void PrintRow(const v1::Model& model) {
  const std::string head = absl::StrFormat("%-25s %-9s", model.name(), StateWord(model.state()));
  if (!model.has_status()) {
    std::printf("%s  %s\n", head.c_str(), model.problem().empty() ? "-" : model.problem().c_str());
    return;
  }
  const v1::WorkStatus& work = model.work();
  std::printf("%s  %8u %8u %7u  %-18s %12s  %s\n", head.c_str(), work.sessions(), work.requests_running(),
              work.requests_queued(),
              absl::StrFormat("%d/%d", model.cache().pages_reserved(), model.cache().pages_total()).c_str(),
              Bytes(static_cast<double>(model.status().weight_bytes())).c_str(), model.status().architecture().c_str());
}

}  // namespace

void AddModels(Command app, Shell& shell) {
  const Command command =
      app.add_subcommand("models", "The server's models: state, sessions, pages; why one could not be loaded");
  command.footer(
      "The first is the one that the server started with, and what calls mean that name no model. Others come and go\n"
      "with the server's configuration (models.NAME), at `ebb reload`.\n"
      "Example:\n  ebb models --json");
  command.callback([&shell] {
    client::Client client = shell.Connect();
    v1::ListModelsResponse response;
    if (!shell.Check(client.ListModels(&response))) return;
    if (!shell.json) PrintHeader();
    for (const v1::Model& model : response.models()) shell.json ? shell.PrintJson(model) : PrintRow(model);
  });
}

}  // namespace ebb::cli
