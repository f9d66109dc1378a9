#include <cstdio>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/policy_flags.h"
#include "client/cli/session_words.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

void PrintSessionsHeader() {
  std::printf("%s\n",
              Styled("1", "SESSION                   STATE    TOKENS   CACHE/CAPACITY     EVICTED     RESERVED  POLICY")
                  .c_str());
}

void PrintRow(const v1::Session& session) {
  std::printf("%-25s %-7s %7llu  %6u/%-9u %10llu %12s  %s%s\n", session.name().substr(sizeof("sessions/") - 1).c_str(),
              session.swapped()                           ? "swapped"
              : session.state() == v1::SESSION_STATE_BUSY ? "busy"
                                                          : "idle",
              static_cast<unsigned long long>(session.tokens()), session.cache_length(), session.cache_capacity(),
              static_cast<unsigned long long>(session.evicted_tokens()),
              Bytes(static_cast<double>(session.reserved_bytes())).c_str(), Summary(session.policy()).c_str(),
              OnWorker(session).c_str());
}

void ListSessions(Shell& shell) {
  client::Client client = shell.Connect();
  v1::ListSessionsRequest request;
  bool first = true;
  do {
    v1::ListSessionsResponse response;
    if (!shell.Check(client.ListSessions(request, &response))) return;
    for (const v1::Session& session : response.sessions()) {
      if (first && !shell.json) PrintSessionsHeader();
      first = false;
      shell.json ? shell.PrintJson(session) : PrintRow(session);
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  if (first && !shell.json) std::printf("no sessions\n");
}

google::protobuf::Duration DurationProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  absl::Duration rest;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &rest));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  return proto;
}

void AddCreate(Command parent, Shell& shell) {
  const Command command = parent.add_subcommand("create", "Open a session and print it");
  auto id = std::make_shared<std::string>();
  auto flags = std::make_shared<PolicyFlags>();
  auto block_size = std::make_shared<std::optional<uint32_t>>();
  command.add_option("id", *id, "Its id; default: chosen by the server");
  command.add_option("--block-size", *block_size, "Largest prefill block");
  auto ttl = std::make_shared<std::string>();
  command.add_option("--ttl", *ttl, "Delete it after so long without a call (90s, 1h30m); default: never")
      .type_name("TIME");
  auto model = std::make_shared<std::string>();
  AddModel(command, *model, "Its model");
  auto end_user = std::make_shared<std::string>();
  command.add_option("--end-user", *end_user, "Who it is for, best a hash: experiments keep them in one arm");
  flags->AddTo(command);
  command.footer(
      "Examples:\n"
      "  ebb sessions create tour --policy h2o --budget 256\n"
      "  ebb sessions create --ttl 1h30m --end-user 5f0c1d2e3a4b");
  command.callback([&shell, id, flags, block_size, ttl, model, end_user] {
    client::Client client = shell.Connect();
    v1::CreateSessionRequest request;
    request.set_session_id(*id);
    request.set_model(*model);
    if (flags->given()) *request.mutable_policy() = flags->Build();
    request.set_end_user(*end_user);
    if (*block_size) request.set_block_size(**block_size);
    if (!ttl->empty()) *request.mutable_ttl() = DurationProto(ReadTime("--ttl", *ttl));
    v1::Session session;
    if (!shell.Check(client.CreateSession(request, &session))) return;
    if (!shell.json) PrintSessionsHeader();
    shell.json ? shell.PrintJson(session) : PrintRow(session);
  });
}

void AddGet(Command parent, Shell& shell) {
  const Command command = parent.add_subcommand("get", "One session");
  auto id = std::make_shared<std::string>();
  command.add_option("id", *id).required();
  command.footer("Example:\n  ebb sessions get tour --json");
  command.callback([&shell, id] {
    client::Client client = shell.Connect();
    v1::Session session;
    if (!shell.Check(client.GetSession(SessionName(*id), &session))) return;
    if (!shell.json) PrintSessionsHeader();
    shell.json ? shell.PrintJson(session) : PrintRow(session);
  });
}

// One that a deletion would take.
void PrintWouldDelete(const Shell& shell, const v1::Session& session) {
  if (shell.json) return shell.PrintJson(session);
  const uint64_t freed = session.reserved_bytes() - session.shared_bytes();
  std::printf("would delete %s, %llu tokens, %s given back\n", session.name().substr(sizeof("sessions/") - 1).c_str(),
              static_cast<unsigned long long>(session.tokens()), Bytes(static_cast<double>(freed)).c_str());
}

void AddDeleteSessions(Command parent, Shell& shell) {
  const Command command = parent.add_subcommand("delete", "Delete sessions; running streams end");
  auto ids = std::make_shared<std::vector<std::string>>();
  auto dry_run = std::make_shared<bool>(false);
  command.add_option("id", *ids).required();
  command.add_flag("--dry-run", *dry_run, "Say what would be deleted, and delete nothing");
  command.footer(
      "Examples:\n"
      "  ebb sessions delete tour --dry-run\n"
      "  ebb sessions delete tour tour-draft");
  command.callback([&shell, ids, dry_run] {
    client::Client client = shell.Connect();
    for (const std::string& id : *ids) {
      if (*dry_run) {
        v1::Session session;
        if (!shell.Check(client.GetSession(SessionName(id), &session))) return;
        PrintWouldDelete(shell, session);
        continue;
      }
      v1::DeleteSessionResponse response;
      if (!shell.Check(client.DeleteSession(SessionName(id), &response))) return;
      if (shell.json) {
        shell.PrintJson(response);
      } else {
        std::printf("deleted %s, %s given back\n", id.c_str(),
                    Bytes(static_cast<double>(response.freed_bytes())).c_str());
      }
    }
  });
}

}  // namespace

void AddFork(Command app, Shell& shell) {
  const Command command =
      app.add_subcommand("fork", "Open a branch of a session: its tokens and cache, a future of its own");
  struct Flags {
    std::string session, id, ttl;
    std::optional<uint64_t> seed;
    bool reserve_copies = false;
    PolicyFlags policy;
  };
  auto flags = std::make_shared<Flags>();
  command.add_option("session", flags->session, "The session that is forked; it stays as it is").required();
  command.add_option("id", flags->id, "The branch's id; default: chosen by the server");
  command.add_option("--seed", flags->seed, "Of the branch's calls; default: derived from its name");
  command.add_option("--ttl", flags->ttl, "As of `sessions create`; default: the session's").type_name("TIME");
  command.add_flag("--reserve-copies", flags->reserve_copies,
                   "Reserve a copy of every shared page, so that neither will lack one");
  flags->policy.AddTo(command);
  command.footer(
      "Examples:\n"
      "  ebb fork s1 s1-draft\n"
      "  ebb fork s1 --policy h2o --budget 256");
  command.callback([&shell, flags] {
    client::Client client = shell.Connect();
    v1::ForkSessionRequest request;
    request.set_session(SessionName(flags->session));
    request.set_session_id(flags->id);
    if (flags->policy.given()) *request.mutable_policy() = flags->policy.Build();
    if (flags->seed) request.mutable_sampling()->set_seed(*flags->seed);
    if (!flags->ttl.empty()) *request.mutable_ttl() = DurationProto(ReadTime("--ttl", flags->ttl));
    request.set_reserve_copies(flags->reserve_copies);
    v1::Session branch;
    if (!shell.Check(client.ForkSession(request, &branch))) return;
    if (shell.json) return shell.PrintJson(branch);
    PrintSessionsHeader();
    PrintRow(branch);
    std::printf("%s of it shared\n", Bytes(static_cast<double>(branch.shared_bytes())).c_str());
  });
}

void AddSessions(Command app, Shell& shell) {
  const Command command = app.add_subcommand("sessions", "List sessions; create, get, delete them");
  AddCreate(command, shell);
  AddGet(command, shell);
  AddDeleteSessions(command, shell);
  const Command list = command.add_subcommand("list", "All sessions of the tenant (the default)");
  list.footer("Example:\n  ebb sessions list --json");
  command.footer(
      "Examples:\n"
      "  ebb sessions\n"
      "  ebb sessions create tour --policy streaming --budget 256");
  command.require_subcommand(0, 1);
  command.final_callback([&shell, command] {
    const std::string chosen = command.chosen();
    if (chosen.empty() || chosen == "list") ListSessions(shell);
  });
}

}  // namespace ebb::cli
