#include <google/protobuf/struct.pb.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/policy_flags.h"
#include "client/cli/policy_page.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"
#include "client/error.h"

namespace ebb::cli {
namespace {

std::string StateOf(v1::StateOrigin state) {
  switch (state) {
    case v1::STATE_ORIGIN_NONE:
      return "needs no state";
    case v1::STATE_ORIGIN_CARRIED:
      return "state carried over";
    case v1::STATE_ORIGIN_REBUILT:
      return "state rebuilt from the cache";
    case v1::STATE_ORIGIN_FROM_SCORES:
      return "state from the former scores";
    case v1::STATE_ORIGIN_FROM_ATTENTION:
      return "state from the newest token's attention";
    default:
      return "state empty: it has yet to see";
  }
}

void Print(const v1::PolicyChange& change, bool dry_run) {
  if (change.has_refusal()) {
    std::printf("%s: kept its policy: %s\n", change.session().c_str(), change.refusal().message().c_str());
    return;
  }
  std::printf("%s: %s%s\n", change.session().c_str(), dry_run ? "would change: " : "",
              dry_run ? StateOf(change.state()).c_str() : Summary(change.policy()).c_str());
  if (!dry_run)
    std::printf("  %s%s\n", StateOf(change.state()).c_str(),
                change.former_chose() ? "; the former policy chose who left" : "");
  std::printf("  %u -> %u tokens per lane, %llu slots left with %.4f of the attention, output error %.4f\n",
              change.length_before(), change.length_after(), static_cast<unsigned long long>(change.slots_evicted()),
              change.attention_mass(), change.output_error());
  std::printf("  %llu -> %llu pages\n", static_cast<unsigned long long>(change.pages_before()),
              static_cast<unsigned long long>(change.pages_after()));
}

// Prints the part that is called `name`, and says whether there is one.
template <typename Parts>
bool PrintNamed(const Shell& shell, const Parts& parts, const std::string& name) {
  for (const auto& part : parts) {
    if (part.name() != name) continue;
    shell.json ? shell.PrintJson(part)
               : static_cast<void>(std::printf("%s", PolicyPage(part, StdoutColumns()).c_str()));
    return true;
  }
  return false;
}

void AddList(Command parent, Shell& shell) {
  const Command list = parent.add_subcommand("list", "What policies are made of: scorers, modifiers, allocations");
  auto name = std::make_shared<std::string>();
  list.add_option("name", *name, "One of them: what, when, equation, paper, cost, defaults, parameters");
  auto model = std::make_shared<std::string>();
  AddModel(list, *model, "On whose shape sizes and defaults depend");
  list.footer(
      "Examples:\n"
      "  ebb policy list\n"
      "  ebb policy list h2o");
  list.callback([&shell, name, model] {
    client::Client client = shell.Connect();
    v1::ListPoliciesRequest request;
    request.set_model(*model);
    v1::ListPoliciesResponse policies;
    if (!shell.Check(client.ListPolicies(request, &policies))) return;
    if (!name->empty()) {
      const bool found = PrintNamed(shell, policies.scorers(), *name) ||
                         PrintNamed(shell, policies.modifiers(), *name) ||
                         PrintNamed(shell, policies.allocations(), *name);
      if (!found) shell.Misused(*name + ": no policy of this name; `ebb policy list` names them");
      return;
    }
    if (shell.json) return shell.PrintJson(policies);
    std::printf("%s\n`ebb policy list NAME` tells more.\n", PolicyTable(policies, StdoutColumns()).c_str());
  });
}

void AddShow(Command parent, Shell& shell) {
  const Command show = parent.add_subcommand("show", "The policy in force on a session");
  auto id = std::make_shared<std::string>();
  show.add_option("id", *id, "Session").required();
  show.footer("Example:\n  ebb policy show tour");
  show.callback([&shell, id] {
    client::Client client = shell.Connect();
    v1::Session session;
    if (!shell.Check(client.GetSession(SessionName(*id), &session))) return;
    if (shell.json) return shell.PrintJson(session.policy());
    std::printf("%s\n", Summary(session.policy()).c_str());
  });
}

void AddSet(Command parent, Shell& shell) {
  const Command set = parent.add_subcommand("set", "Put another policy in force on a live session, on its warm cache");
  struct Flags {
    std::string id, model;
    bool all = false, dry_run = false;
    std::optional<uint64_t> generation;
    PolicyFlags policy;
  };
  auto flags = std::make_shared<Flags>();
  const Command whose = set.add_option_group("whose", "Exactly one of");
  whose.add_option("id", flags->id, "Session");
  const Flag all = whose.add_flag("--all", flags->all, "Every session of the tenant that is of one model");
  whose.require_option(1);
  AddModel(set, flags->model, "With --all: of which model").needs(all);
  set.add_flag("--dry-run", flags->dry_run, "Say what it would cost, change nothing");
  set.add_option("--expected-generation", flags->generation, "Refuse if the session's generation is another");
  flags->policy.AddTo(set, "The new policy; what is left out is the scorer's default");
  set.footer("Example:\n  ebb policy set tour --policy h2o --budget 128");
  set.callback([&shell, flags] {
    v1::SetPolicyRequest request;
    *request.mutable_policy() = flags->policy.Build();
    client::Client client = shell.Connect();
    if (flags->all) {
      request.set_all_sessions(true);
      request.set_model(flags->model);
    } else {
      request.set_session(SessionName(flags->id));
    }
    if (flags->generation) request.set_expected_generation(*flags->generation);
    request.set_dry_run(flags->dry_run);
    v1::SetPolicyResponse response;
    if (!shell.Check(client.SetPolicy(request, &response))) return;
    for (const v1::PolicyChange& change : response.changes()) {
      shell.json ? shell.PrintJson(change) : Print(change, flags->dry_run);
    }
    if (!shell.json && response.changes().empty()) std::printf("no sessions\n");
  });
}

// A row of the table, or of JSON: what a change to `policy` would cost, or why it cannot be made.
bool Try(Shell& shell, client::Client& client, const std::string& policy, const v1::SetPolicyRequest& request) {
  v1::SetPolicyResponse response;
  const grpc::Status status = client.SetPolicy(request, &response);
  // A policy that the session cannot have is an answer; anything else ends the table.
  const bool refused = status.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
                       status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
                       status.error_code() == grpc::StatusCode::UNAVAILABLE;
  const client::ErrorDetails details = client::ReadDetails(status);
  if (!status.ok() && (!refused || details.reason.empty())) return shell.Check(status);
  const v1::PolicyChange change = status.ok() ? response.changes(0) : v1::PolicyChange();
  const uint32_t tokens = change.length_before() - change.length_after();
  if (shell.json) {
    google::protobuf::Struct row;
    auto& fields = *row.mutable_fields();
    fields["policy"].set_string_value(policy);
    if (status.ok()) {
      fields["tokens"].set_number_value(tokens);
      fields["attention_mass"].set_number_value(change.attention_mass());
      fields["output_error"].set_number_value(change.output_error());
      fields["pages_before"].set_number_value(static_cast<double>(change.pages_before()));
      fields["pages_after"].set_number_value(static_cast<double>(change.pages_after()));
      fields["state"].set_string_value(v1::StateOrigin_Name(change.state()));
    } else {
      fields["reason"].set_string_value(details.reason);
      fields["message"].set_string_value(status.error_message());
    }
    shell.PrintJson(row);
  } else if (status.ok()) {
    std::printf("%-24s %6u  %14.6f  %12.6f  %6llu  %s%s\n", policy.c_str(), tokens, change.attention_mass(),
                change.output_error(), static_cast<unsigned long long>(change.pages_after()),
                StateOf(change.state()).c_str(), change.former_chose() ? "; the policy in force chose" : "");
  } else {
    std::printf("%-24s      -  %s\n", policy.c_str(), client::Describe(status).c_str());
  }
  return true;
}

void AddTry(Command parent, Shell& shell) {
  const Command command =
      parent.add_subcommand("try", "What each of some policies would cost a live session; changes nothing");
  struct Flags {
    std::string id;
    std::vector<std::string> policies;
    std::optional<uint32_t> budget;
  };
  auto flags = std::make_shared<Flags>();
  command.add_option("id", flags->id, "Session").required();
  command
      .add_option("--policies", flags->policies,
                  "NAME[:KEY=VALUE]...[+MODIFIER][@ALLOCATION[:KEY=VALUE]...], separated by commas; default: every "
                  "scorer that evicts")
      .delimiter(',');
  command.add_option("--budget", flags->budget,
                     "Tokens that each lane would keep, where a policy does not say; default: half of them");
  command.footer("Example:\n  ebb policy try tour --policies streaming,h2o,h2o+caote,knorm:keep=long --budget 64");
  command.callback([&shell, flags] {
    std::vector<v1::PolicySpec> specs;
    for (const std::string& word : flags->policies) specs.push_back(PolicyFlags::FromWord("--policies", word).Build());
    client::Client client = shell.Connect();
    v1::Session session;
    if (!shell.Check(client.GetSession(SessionName(flags->id), &session))) return;
    if (!flags->budget && session.cache_length() == 0) {
      return shell.Misused(session.name() + " holds no tokens: there is no half of them; give it some, or --budget");
    }
    v1::ListPoliciesRequest list;
    list.set_model(session.model());
    v1::ListPoliciesResponse known;
    if (specs.empty() && !shell.Check(client.ListPolicies(list, &known))) return;
    for (const v1::ScorerDescription& scorer : known.scorers()) {
      if (!scorer.evicts()) continue;
      flags->policies.push_back(scorer.name());
      specs.push_back(PolicyFlags::FromWord("--policies", scorer.name()).Build());
    }
    if (!shell.json) {
      std::printf(
          "%s\n",
          Styled("1", "POLICY                    LEAVE  ATTENTION LOST  OUTPUT ERROR   PAGES  STARTS FROM").c_str());
    }
    v1::SetPolicyRequest request;
    request.set_session(session.name());
    request.set_dry_run(true);
    for (size_t i = 0; i < specs.size(); ++i) {
      *request.mutable_policy() = specs[i];
      v1::Trigger& trigger = *request.mutable_policy()->mutable_trigger();
      if (!trigger.has_budget()) trigger.set_budget(flags->budget.value_or((session.cache_length() + 1) / 2));
      if (!Try(shell, client, flags->policies[i], request)) return;
    }
  });
}

}  // namespace

void AddPolicy(Command app, Shell& shell) {
  const Command command = app.add_subcommand("policy", "Eviction policies");
  command.require_subcommand(1);
  AddList(command, shell);
  AddShow(command, shell);
  AddSet(command, shell);
  AddTry(command, shell);
  command.footer(
      "Examples:\n"
      "  ebb policy list h2o\n"
      "  ebb policy set tour --policy h2o --budget 128");
}

}  // namespace ebb::cli
