// A conversation in the terminal. Lines are edited and remembered by libedit; Ctrl-C cancels the answer or the line,
// not the program. However it ends, the lines are kept and a session of its own is deleted.

#include <editline/readline.h>
#include <google/protobuf/struct.pb.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/cli/policy_flags.h"
#include "client/cli/prompt_flags.h"
#include "client/cli/session_words.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

constexpr char kHelp[] =
    "  /policy                show the session's policy\n"
    "  /policy NAME [BUDGET]  put another policy in force on the session as it is\n"
    "  /stats                 what the session's cache holds and has lost\n"
    "  /reset                 forget everything\n"
    "  /help  /quit\n"
    "  Ctrl-C cancels an answer or a line, Ctrl-D leaves.\n";

struct ChatFlags {
  std::string session, system, model;
  PolicyFlags policy;
  PromptFlags prompt;
};

// Where lines are remembered between two runs; empty: nowhere.
std::string HistoryPath() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (state != nullptr && *state != '\0') {
    folder = state;
  } else if (home != nullptr && *home != '\0') {
    folder = std::filesystem::path(home) / ".local" / "state";
  } else {
    return {};
  }
  std::error_code error;
  std::filesystem::create_directories(folder / "ebb", error);
  return error ? std::string() : (folder / "ebb" / "chat_history").string();
}

class Chat {
 public:
  Chat(Shell& shell, const ChatFlags& flags) : shell_(shell), flags_(flags), client_(shell.Connect()) {
    if (flags.policy.given()) spec_ = flags.policy.Build();
    if (!flags.system.empty()) pending_.emplace_back("system", flags.system);
  }

  void Run() {
    owns_session_ = flags_.session.empty();
    if (owns_session_ ? !Open(spec_, flags_.model) : !Attach()) return;
    const bool terminal = StdinIsTerminal();
    const std::string history = terminal ? HistoryPath() : std::string();
    if (terminal) {
      using_history();
      if (!history.empty()) read_history(history.c_str());
      if (!shell_.json) std::printf("%s  (/help for commands)\n", Styled("2", Summary(session_.policy())).c_str());
    }
    LineGuard guard;
    std::string line;
    while (ReadLine(terminal, guard, &line)) {
      if (line.empty()) continue;
      if (line == "/quit" || line == "/exit") break;
      if (line.front() == '/') {
        Command(line);
      } else {
        Say(line);
      }
    }
    if (!history.empty()) write_history(history.c_str());
    if (owns_session_) {
      v1::DeleteSessionResponse response;
      client_.DeleteSession(session_.name(), &response);
    }
  }

 private:
  // False when no line comes any more. Ctrl-C in a terminal gives an empty one; any other signal is the last.
  bool ReadLine(bool terminal, LineGuard& guard, std::string* line) {
    std::fflush(stdout);
    bool read = false;
    int signal = guard.TakeSignal();
    if (signal == 0) {
      read = terminal ? EditLine(line) : static_cast<bool>(std::getline(std::cin, *line));
      signal = guard.TakeSignal();
    }
    if (signal == 0) return read;
    line->clear();
    if (terminal) std::printf("\n");
    if (terminal && signal == SIGINT) return true;
    shell_.exit_code = kInterrupted;
    return false;
  }

  bool EditLine(std::string* line) {
    char* typed = readline("> ");
    if (typed == nullptr) return false;
    *line = typed;
    if (!line->empty()) add_history(typed);
    std::free(typed);
    return true;
  }

  bool Open(const v1::PolicySpec& spec, const std::string& model) {
    v1::CreateSessionRequest request;
    request.set_model(model);
    *request.mutable_policy() = spec;
    v1::Session session;
    if (!shell_.Check(client_.CreateSession(request, &session))) return false;
    session_ = session;
    return true;
  }

  bool Attach() { return shell_.Check(client_.GetSession(SessionName(flags_.session), &session_)); }

  // Sends the turns not yet in the session plus this one, and streams the answer.
  void Say(const std::string& text) {
    v1::GenerateRequest request;
    request.set_session(session_.name());
    std::vector<std::pair<std::string, std::string>> turns = std::exchange(pending_, {});
    turns.emplace_back("user", text);
    for (const auto& [role, content] : turns) {
      v1::ChatMessage* message = request.mutable_prompt()->mutable_chat()->add_messages();
      message->set_role(role);
      message->set_content(content);
    }
    *request.mutable_sampling() = flags_.prompt.Sampling();
    *request.mutable_stopping() = flags_.prompt.Stopping();
    *request.mutable_speculation() = flags_.prompt.Speculation();
    client::Cancellation cancellation;
    InterruptGuard guard(cancellation);
    ProgressBar bar;
    const grpc::Status status = client_.Generate(
        request,
        [&](const v1::GenerateResponse& message) {
          if (shell_.json) shell_.PrintJson(message);
          if (message.has_prefill()) {
            bar.Update(message.prefill());
            return;
          }
          bar.Clear();
          if (shell_.json) return;
          std::fwrite(message.decode().text().data(), 1, message.decode().text().size(), stdout);
          std::fflush(stdout);
        },
        &cancellation);
    bar.Clear();
    if (!shell_.json) std::printf("\n");
    const bool cancelled = guard.interrupted();
    if (!status.ok() && !cancelled) {
      shell_.Check(status);
      return;
    }
    if (cancelled) Tell("cancelled", Styled("2", "(cancelled)"));
  }

  void Command(const std::string& line) {
    std::istringstream words(line);
    std::string verb, name;
    uint32_t budget = 0;
    words >> verb >> name >> budget;
    if (verb == "/stats") {
      Stats();
    } else if (verb == "/policy" && name.empty()) {
      if (shell_.json) return shell_.PrintJson(session_.policy());
      std::printf("%s\n", Summary(session_.policy()).c_str());
    } else if (verb == "/policy") {
      SwitchPolicy(name, budget);
    } else if (verb == "/reset") {
      Restart();
    } else if (verb == "/help") {
      Tell("help", kHelp);
    } else {
      Mistyped(absl::StrFormat("no such command: %s\n%s", verb, kHelp));
    }
  }

  // A line on stdout, or an object of one field.
  void Tell(const std::string& field, const std::string& text) {
    if (!shell_.json) {
      std::printf("%s%s", text.c_str(), text.ends_with('\n') ? "" : "\n");
      return;
    }
    google::protobuf::Struct row;
    (*row.mutable_fields())[field].set_string_value(text);
    shell_.PrintJson(row);
  }

  // To a person a remark; to a program an error.
  void Mistyped(const std::string& message) { shell_.json ? shell_.Misused(message) : Tell("", message); }

  void SwitchPolicy(const std::string& name, uint32_t budget) {
    const std::vector<std::string> known = ScorerNames();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string list;
      for (const std::string& scorer : known) list += " " + scorer;
      return Mistyped(absl::StrFormat("no such policy: %s; there are%s", name, list));
    }
    v1::PolicySpec spec;
    SetScorer(spec, name);
    const v1::Trigger& now = session_.policy().trigger();
    if (budget > 0 || now.has_budget()) spec.mutable_trigger()->set_budget(budget > 0 ? budget : now.budget());
    v1::SetPolicyRequest request;
    request.set_session(session_.name());
    *request.mutable_policy() = spec;
    v1::SetPolicyResponse response;
    if (!shell_.Check(client_.SetPolicy(request, &response))) return;
    const v1::PolicyChange& change = response.changes(0);
    *session_.mutable_policy() = change.policy();
    if (shell_.json) return shell_.PrintJson(change);
    std::printf("%s\n", Styled("2", absl::StrFormat("%s; %u -> %u tokens, %.4f of the attention left",
                                                    Summary(session_.policy()), change.length_before(),
                                                    change.length_after(), change.attention_mass()))
                            .c_str());
  }

  // A new session of the same model, under the same policy.
  void Restart() {
    const v1::Session old = session_;
    if (!Open(old.policy(), old.model())) return;
    if (std::exchange(owns_session_, true)) {
      v1::DeleteSessionResponse response;
      client_.DeleteSession(old.name(), &response);
    }
    pending_.clear();
    if (shell_.json) return shell_.PrintJson(session_);
    std::printf("%s\n", Styled("2", Summary(session_.policy())).c_str());
  }

  void Stats() {
    v1::Session session;
    if (!shell_.Check(client_.GetSession(session_.name(), &session))) return;
    if (shell_.json) return shell_.PrintJson(session);
    std::printf("%s: %llu tokens seen, %u in the cache (capacity %u), %llu evicted, %s live of %s reserved\n%s%s\n",
                session.name().c_str(), static_cast<unsigned long long>(session.tokens()), session.cache_length(),
                session.cache_capacity(), static_cast<unsigned long long>(session.evicted_tokens()),
                Bytes(static_cast<double>(session.used_bytes())).c_str(),
                Bytes(static_cast<double>(session.reserved_bytes())).c_str(), Summary(session.policy()).c_str(),
                OnWorker(session).c_str());
  }

  Shell& shell_;
  const ChatFlags& flags_;
  client::Client client_;
  v1::PolicySpec spec_ = {};
  v1::Session session_ = {};
  bool owns_session_ = true;
  std::vector<std::pair<std::string, std::string>> pending_ = {};  // turns the session has not read yet
};

}  // namespace

void AddChat(Command app, Shell& shell) {
  const Command command =
      app.add_subcommand("chat", "Talk to the model; the cache stays inside its budget however long it gets");
  auto flags = std::make_shared<ChatFlags>();
  const Flag session =
      command.add_option("--session", flags->session, "Go on in this session; default: a new one, deleted at the end");
  AddModel(command, flags->model).excludes(session);
  command.add_option("--system", flags->system, "A system message before the first turn");
  flags->policy.AddTo(command);
  flags->prompt.AddTo(command);
  command.footer("Example:\n  ebb chat --policy streaming --budget 256");
  command.callback([&shell, flags] { Chat(shell, *flags).Run(); });
}

}  // namespace ebb::cli
