#include <cstdio>
#include <string>
#include <vector>

#include "client/cli/edit_words.h"
#include "client/cli/shell.h"

namespace ebb::cli {
namespace {

struct EditFlags {
  std::string id = {}, text = {}, mode = "tail";
  uint64_t start = 0, end = 0;
  std::vector<uint32_t> tokens = {};
  std::optional<uint32_t> window = {};
  std::optional<uint64_t> expected = {};
  bool restore = false, exact = false;
};

void Run(Shell& shell, const EditFlags& flags) {
  client::Client client = shell.Connect();
  v1::EditRequest request;
  request.set_session(SessionName(flags.id));
  v1::EditSpan* const span = request.add_spans();
  span->set_start(flags.start);
  span->set_end(flags.end);
  if (!flags.tokens.empty()) {
    span->mutable_tokens()->mutable_ids()->Add(flags.tokens.begin(), flags.tokens.end());
  } else if (!flags.text.empty()) {
    span->set_text(flags.text);
  }
  request.set_mode(EditModeOf(flags.mode));
  if (flags.window) request.set_window(*flags.window);
  request.set_restore(flags.restore);
  request.set_require_exact(flags.exact);
  // An edit that is tried again after a lost answer must not be done twice.
  v1::Session session;
  if (!flags.expected && !shell.Check(client.GetSession(request.session(), &session))) return;
  request.set_expected_generation(flags.expected.value_or(session.generation()));
  v1::EditResponse response;
  if (!shell.Check(client.Edit(request, &response))) return;
  if (shell.json) {
    shell.PrintJson(response);
  } else {
    std::printf("%s\n", EditSummary(response).c_str());
  }
}

}  // namespace

void AddEdit(Command app, Shell& shell) {
  const Command command = app.add_subcommand("edit", "Replace tokens of a session on its warm cache");
  auto flags = std::make_shared<EditFlags>();
  command.add_option("id", flags->id, "Session").required();
  command.add_option("start", flags->start, "Index in the log of the first token replaced").required();
  command.add_option("end", flags->end, "One past the last token replaced; START: only insert").required();
  const Flag text = command.add_option("text", flags->text, "What takes their place; none: they are deleted");
  command.add_option("--tokens", flags->tokens, "Token ids, separated by commas, in the place of text")
      .delimiter(',')
      .excludes(text);
  AddEditMode(command, flags->mode, flags->window);
  command.add_flag("--restore", flags->restore, "Compute all of the edited log anew, evicted tokens included");
  command.add_flag("--exact", flags->exact, "Refuse an edit that would only be an approximation");
  command.add_option("--expected-generation", flags->expected, "Refuse if the session's generation is another");
  command.footer(
      "Several spans at once go through the API (EditRequest.spans).\n"
      "Examples:\n"
      "  ebb edit tour 10 14 \" the second floor\"\n"
      "  ebb edit tour 10 14 --mode reposition --json");
  command.callback([&shell, flags] { Run(shell, *flags); });
}

}  // namespace ebb::cli
