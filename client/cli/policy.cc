#include <cstdio>

#include "client/cli/policy_flags.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

void Print(const v1::ScorerDescription& scorer) {
  std::printf("%s  %s\n", Styled("1", scorer.name()).c_str(), scorer.summary().c_str());
  if (!scorer.paper().empty()) std::printf("    paper      %s\n", scorer.paper().c_str());
  std::printf("    defaults   %s\n", Summary(scorer.defaults()).c_str());
  std::printf("    state      %u bytes per slot\n", scorer.state_bytes_per_slot());
  std::string observations;
  for (const std::string& name : scorer.observations()) observations += (observations.empty() ? "" : ", ") + name;
  std::printf("    observes   %s\n", observations.empty() ? "nothing" : observations.c_str());
  std::printf("    over turns %s\n", scorer.safe_across_turns() ? "safe" : "not safe");
  for (const v1::ParameterDescription& parameter : scorer.parameters()) {
    std::printf("    %s = %g in [%g, %g]: %s\n", parameter.name().c_str(), parameter.default_(), parameter.min(),
                parameter.max(), parameter.help().c_str());
  }
}

}  // namespace

void AddPolicy(CLI::App& app, Shell& shell) {
  CLI::App* command = app.add_subcommand("policy", "Eviction policies");
  command->require_subcommand(1);
  CLI::App* list = command->add_subcommand("list", "Every scorer with its defaults, paper and cost");
  list->callback([&shell] {
    client::Client client = shell.Connect();
    v1::ListPoliciesResponse response;
    if (!shell.Check(client.ListPolicies(&response))) return;
    for (const v1::ScorerDescription& scorer : response.scorers()) shell.json ? shell.PrintJson(scorer) : Print(scorer);
  });
}

}  // namespace ebb::cli
