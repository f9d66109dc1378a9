#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/shell.h"

namespace ebb::cli {
namespace {

constexpr char kPrefix[] = "snapshots/";

// `snapshots/{id}`, whatever of the two the user typed.
std::string SnapshotName(const std::string& typed) { return typed.rfind(kPrefix, 0) == 0 ? typed : kPrefix + typed; }

std::string IdOf(const std::string& name) { return name.substr(name.find('/') + 1); }

// False where a page did not come, which is said.
bool EachSnapshot(Shell& shell, client::Client& client, const std::function<void(const v1::Snapshot&)>& take) {
  v1::ListSnapshotsRequest request;
  do {
    v1::ListSnapshotsResponse response;
    if (!shell.Check(client.ListSnapshots(request, &response))) return false;
    for (const v1::Snapshot& snapshot : response.snapshots()) take(snapshot);
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return true;
}

void PrintRow(const v1::Snapshot& snapshot) {
  const absl::Time saved = absl::FromUnixSeconds(snapshot.create_time().seconds());
  std::printf("%-25s %12s  %s\n", IdOf(snapshot.name()).c_str(), Bytes(static_cast<double>(snapshot.bytes())).c_str(),
              absl::FormatTime("%Y-%m-%d %H:%M:%S", saved, absl::LocalTimeZone()).c_str());
}

void ListSnapshots(Shell& shell) {
  client::Client client = shell.Connect();
  bool any = false;
  const auto print = [&](const v1::Snapshot& snapshot) {
    any = true;
    shell.json ? shell.PrintJson(snapshot) : PrintRow(snapshot);
  };
  if (EachSnapshot(shell, client, print) && !any && !shell.json) std::printf("no snapshots\n");
}

void PrintWouldDelete(Shell& shell, const std::vector<std::string>& names) {
  client::Client client = shell.Connect();
  std::map<std::string, v1::Snapshot> kept;
  if (!EachSnapshot(shell, client, [&](const v1::Snapshot& one) { kept[one.name()] = one; })) return;
  for (const std::string& name : names) {
    const auto found = kept.find(SnapshotName(name));
    if (found == kept.end()) {
      return shell.Failed("NOT_FOUND", "UNKNOWN_SNAPSHOT", absl::StrFormat("there is no %s", SnapshotName(name)));
    }
    if (!shell.json) std::printf("would delete ");
    shell.json ? shell.PrintJson(found->second) : PrintRow(found->second);
  }
}

void AddDeleteSnapshots(Command parent, Shell& shell) {
  const Command command = parent.add_subcommand("delete", "Delete snapshots");
  auto names = std::make_shared<std::vector<std::string>>();
  auto dry_run = std::make_shared<bool>(false);
  command.add_option("name", *names).required();
  command.add_flag("--dry-run", *dry_run, "Say what would be deleted, and delete nothing");
  command.footer(
      "Examples:\n"
      "  ebb snapshots delete tour-monday --dry-run\n"
      "  ebb snapshots delete tour-monday");
  command.callback([&shell, names, dry_run] {
    if (*dry_run) return PrintWouldDelete(shell, *names);
    client::Client client = shell.Connect();
    for (const std::string& name : *names) {
      v1::DeleteSnapshotResponse response;
      if (!shell.Check(client.DeleteSnapshot(SnapshotName(name), &response))) return;
      shell.json ? shell.PrintJson(response) : static_cast<void>(std::printf("deleted %s\n", name.c_str()));
    }
  });
}

}  // namespace

void AddSave(Command app, Shell& shell) {
  const Command command = app.add_subcommand("save", "Keep a session as it stands in the server's store");
  struct Flags {
    std::string id, name;
    std::optional<uint64_t> generation;
  };
  auto flags = std::make_shared<Flags>();
  command.add_option("id", flags->id, "Session").required();
  command.add_option("name", flags->name,
                     "What to call the snapshot, replacing one of that name; default: as the session");
  command.add_option("--expected-generation", flags->generation, "Refuse if the session's generation is another");
  command.footer(
      "Examples:\n"
      "  ebb save tour\n"
      "  ebb save tour tour-monday");
  command.callback([&shell, flags] {
    client::Client client = shell.Connect();
    v1::SaveSessionRequest request;
    request.set_session(SessionName(flags->id));
    request.set_snapshot_id(flags->name);
    if (flags->generation) request.set_expected_generation(*flags->generation);
    v1::SaveSessionResponse response;
    if (!shell.Check(client.SaveSession(request, &response))) return;
    if (shell.json) {
      shell.PrintJson(response);
    } else {
      std::printf("saved %s: %llu tokens, %s\n", IdOf(response.snapshot().name()).c_str(),
                  static_cast<unsigned long long>(response.tokens()),
                  Bytes(static_cast<double>(response.snapshot().bytes())).c_str());
    }
  });
}

void AddRestore(Command app, Shell& shell) {
  const Command command = app.add_subcommand("restore", "Open a session that goes on where a saved one was");
  struct Flags {
    std::string name, id, model;
  };
  auto flags = std::make_shared<Flags>();
  command.add_option("name", flags->name, "Snapshot").required();
  command.add_option("id", flags->id, "What to call the session; default: chosen by the server");
  AddModel(command, flags->model, "The model that the snapshot was made with");
  command.footer(
      "Examples:\n"
      "  ebb restore tour-monday\n"
      "  ebb restore tour-monday tour");
  command.callback([&shell, flags] {
    client::Client client = shell.Connect();
    v1::RestoreSessionRequest request;
    request.set_snapshot(SnapshotName(flags->name));
    request.set_session_id(flags->id);
    request.set_model(flags->model);
    v1::Session session;
    if (!shell.Check(client.RestoreSession(request, &session))) return;
    if (shell.json) {
      shell.PrintJson(session);
    } else {
      std::printf("%s: %llu tokens, %u of them in the cache\n", IdOf(session.name()).c_str(),
                  static_cast<unsigned long long>(session.tokens()), session.cache_length());
    }
  });
}

void AddSnapshots(Command app, Shell& shell) {
  const Command command = app.add_subcommand("snapshots", "List saved sessions; delete them");
  AddDeleteSnapshots(command, shell);
  const Command list = command.add_subcommand("list", "All snapshots of the tenant (the default)");
  list.footer("Example:\n  ebb snapshots list --json");
  command.footer(
      "Examples:\n"
      "  ebb snapshots\n"
      "  ebb snapshots delete tour-monday");
  command.require_subcommand(0, 1);
  command.final_callback([&shell, command] {
    const std::string chosen = command.chosen();
    if (chosen.empty() || chosen == "list") ListSnapshots(shell);
  });
}

}  // namespace ebb::cli
