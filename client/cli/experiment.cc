#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/experiment_sum.h"
#include "client/cli/experiment_table.h"
#include "client/cli/policy_flags.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

// `experiments/{id}`, whatever of the two the user typed.
std::string ExperimentName(const std::string& typed) {
  return typed.starts_with("experiments/") ? typed : "experiments/" + typed;
}

// What the page below it does not say.
std::string SumLine(const std::vector<std::string>& servers) {
  return absl::StrCat("of ", absl::StrJoin(servers, " and "), " together; the sample ratio is that of these units now");
}

void Print(const Shell& shell, const v1::Experiment& experiment) {
  if (shell.json) return shell.PrintJson(experiment);
  std::printf("%s", ExperimentPage(experiment, StdoutColumns()).c_str());
}

void PrintHeader() {
  std::printf("%s\n", Styled("1", "EXPERIMENT                STATE      RAMP  TENANT       ARMS").c_str());
}

void PrintLine(const Shell& shell, const v1::Experiment& experiment) {
  if (shell.json) return shell.PrintJson(experiment);
  std::printf("%s\n", ExperimentLine(experiment).c_str());
}

std::vector<std::string> MetricWords() {
  std::vector<std::string> words;
  for (int i = 1; i < v1::ExperimentMetric_ARRAYSIZE; ++i) {
    words.push_back(MetricWord(static_cast<v1::ExperimentMetric>(i)));
  }
  return words;
}

// NAME=POLICY.
v1::ExperimentArm ReadArm(const std::string& text) {
  const std::vector<std::string> halves = absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (halves.size() != 2) throw UsageError("--arm", text + " is not NAME=POLICY");
  v1::ExperimentArm arm;
  arm.set_name(halves[0]);
  *arm.mutable_policy() = PolicyFlags::FromWord("--arm", halves[1]).Build();
  return arm;
}

struct StartFlags {
  std::string name, tenant, salt, metric;
  std::vector<std::string> arms;
  std::vector<uint32_t> weights;
  std::optional<uint32_t> budget, units_min, units_planned;
  std::optional<double> ramp, alpha;
  double margin = 0;

  v1::ExperimentSpec Build() const {
    v1::ExperimentSpec spec;
    spec.set_name(name);
    spec.set_tenant(tenant);
    spec.set_salt(salt);
    spec.set_metric(MetricOf(metric));
    spec.set_margin(margin);
    if (ramp) spec.set_ramp(*ramp);
    if (alpha) spec.set_alpha(*alpha);
    if (units_min) spec.set_units_min(*units_min);
    if (units_planned) spec.set_units_planned(*units_planned);
    for (const std::string& text : arms) *spec.add_arms() = ReadArm(text);
    for (v1::ExperimentArm& arm : *spec.mutable_arms()) {
      v1::Trigger& trigger = *arm.mutable_policy()->mutable_trigger();
      if (budget && !trigger.has_budget()) trigger.set_budget(*budget);
    }
    if (weights.empty()) return spec;
    if (weights.size() != arms.size()) throw UsageError("--weights", "give one for each --arm");
    for (size_t i = 0; i < weights.size(); ++i) spec.mutable_arms(static_cast<int>(i))->set_weight(weights[i]);
    return spec;
  }
};

void AddStart(Command parent, Shell& shell) {
  const Command command =
      parent.add_subcommand("start", "Compare policies on the sessions that are created from now on");
  auto flags = std::make_shared<StartFlags>();
  command.add_option("name", flags->name, "Its id; one that was never used").required();
  command
      .add_option("--arm", flags->arms,
                  "NAME=POLICY, as `ebb policy try` takes policies, with :budget=N; the first arm is the control")
      .required()
      .allow_extra_args(false);
  command.add_option("--weights", flags->weights, "Shares of the arms, separated by commas; default: all alike")
      .delimiter(',');
  command.add_option("--budget", flags->budget, "Of arms that say none");
  command.add_option("--of", flags->tenant, "Tenant whose sessions are compared; default: every one's")
      .type_name("TENANT");
  command.add_option("--ramp", flags->ramp, "Share of the units that are in it; default: 1");
  command.add_option("--metric", flags->metric, "What decides; default: attention-mass-lost").one_of(MetricWords());
  command.add_option("--margin", flags->margin, "Largest difference in it that does not matter; default: none");
  command.add_option("--alpha", flags->alpha, "Chance that an interval is ever wrong; default: 0.05");
  command.add_option("--units-min", flags->units_min, "Units of each arm before anything is said; default: 100");
  command.add_option("--units-planned", flags->units_planned,
                     "Units of all arms at which intervals are tightest; default: 1000");
  command.add_option("--salt", flags->salt, "What units are hashed with; default: the name");
  command.footer(
      "Example:\n  ebb experiment start h2o-at-256 --arm control=streaming --arm h2o=h2o --budget 256 --ramp 0.1");
  command.callback([&shell, flags] {
    v1::StartExperimentRequest request;
    *request.mutable_experiment() = flags->Build();
    client::Client client = shell.Connect();
    v1::Experiment experiment;
    if (shell.Check(client.StartExperiment(request, &experiment))) {
      if (!shell.json) PrintHeader();
      PrintLine(shell, experiment);
    }
  });
}

void AddStop(Command parent, Shell& shell) {
  const Command command = parent.add_subcommand("stop", "Assign nobody more; open sessions keep their policies");
  auto name = std::make_shared<std::string>();
  command.add_option("name", *name).required();
  command.footer("Example:\n  ebb experiment stop h2o-at-256");
  command.callback([&shell, name] {
    client::Client client = shell.Connect();
    v1::Experiment experiment;
    if (shell.Check(client.StopExperiment(ExperimentName(*name), &experiment))) Print(shell, experiment);
  });
}

void AddRamp(Command parent, Shell& shell) {
  const Command command = parent.add_subcommand("ramp", "Have another share of the units in it; nobody changes arms");
  auto name = std::make_shared<std::string>();
  auto ramp = std::make_shared<double>(0);
  command.add_option("name", *name).required();
  command.add_option("share", *ramp, "From 0 to 1").required();
  command.footer("Example:\n  ebb experiment ramp h2o-at-256 0.5");
  command.callback([&shell, name, ramp] {
    client::Client client = shell.Connect();
    v1::Experiment experiment;
    if (!shell.Check(client.RampExperiment(ExperimentName(*name), *ramp, &experiment))) return;
    if (!shell.json) PrintHeader();
    PrintLine(shell, experiment);
  });
}

void AddResults(Command parent, Shell& shell) {
  const Command command = parent.add_subcommand("results", "What it has shown, with intervals that hold at every look");
  struct Flags {
    std::string name;
    std::vector<std::string> from;
  };
  auto flags = std::make_shared<Flags>();
  command.add_option("name", flags->name).required();
  command
      .add_option("--from", flags->from,
                  "host:port: instead of --addr's, what all of these servers have seen, added up; a unit that several "
                  "have seen is one. Separated by commas, or given several times")
      .delimiter(',')
      .allow_extra_args(false)
      .type_name("SERVER");
  command.footer(
      "Examples:\n"
      "  ebb experiment results h2o-at-256\n"
      "  ebb experiment results h2o-at-256 --from 10.0.0.1:7700,10.0.0.2:7700");
  command.callback([&shell, flags] {
    if (!flags->from.empty()) {
      const auto sum = SumOver(shell, flags->from, ExperimentName(flags->name));
      if (!sum) return;
      if (!shell.json) std::printf("%s\n", SumLine(flags->from).c_str());
      return Print(shell, *sum);
    }
    client::Client client = shell.Connect();
    v1::Experiment experiment;
    if (shell.Check(client.GetExperiment(ExperimentName(flags->name), &experiment))) Print(shell, experiment);
  });
}

void AddReport(Command parent, Shell& shell) {
  const Command command = parent.add_subcommand("report", "Say how well a session did its task");
  struct Flags {
    std::string session, request_id;
    std::optional<double> score;
    bool up = false, down = false;
  };
  auto flags = std::make_shared<Flags>();
  command.add_option("session", flags->session, "Session").required();
  const Command outcome = command.add_option_group("outcome", "Exactly one of");
  outcome.add_option("--score", flags->score, "How well the task was done, from 0 to 1");
  outcome.add_flag("--up", flags->up, "Somebody liked it");
  outcome.add_flag("--down", flags->down, "Somebody did not");
  outcome.require_option(1);
  command.add_option("--request-id", flags->request_id, "A repeated report with the same one counts once");
  command.footer(
      "Examples:\n"
      "  ebb experiment report tour --score 0.8\n"
      "  ebb experiment report tour --up --request-id visit-17");
  command.callback([&shell, flags] {
    v1::ReportOutcomeRequest request;
    request.set_session(SessionName(flags->session));
    request.set_request_id(flags->request_id);
    if (flags->score) {
      request.set_score(*flags->score);
    } else {
      request.set_thumb_up(flags->up);
    }
    client::Client client = shell.Connect();
    v1::ReportOutcomeResponse response;
    if (!shell.Check(client.ReportOutcome(request, &response))) return;
    if (shell.json) return shell.PrintJson(response);
    if (response.experiment().empty()) {
      std::printf("taken; the session is in no experiment\n");
    } else {
      std::printf("counts for %s of %s\n", response.arm().c_str(), response.experiment().c_str());
    }
  });
}

void List(Shell& shell) {
  client::Client client = shell.Connect();
  v1::ListExperimentsResponse response;
  if (!shell.Check(client.ListExperiments(&response))) return;
  if (!shell.json && response.experiments().empty()) {
    std::printf("no experiments\n");
    return;
  }
  if (!shell.json) PrintHeader();
  for (const v1::Experiment& experiment : response.experiments()) PrintLine(shell, experiment);
}

}  // namespace

void AddExperiment(Command app, Shell& shell) {
  const Command command = app.add_subcommand("experiment", "Compare policies on real sessions");
  AddStart(command, shell);
  AddRamp(command, shell);
  AddStop(command, shell);
  AddResults(command, shell);
  AddReport(command, shell);
  const Command list = command.add_subcommand("list", "Those that run, and the last that have stopped");
  list.footer("Example:\n  ebb experiment list --json");
  list.callback([&shell] { List(shell); });
  command.footer(
      "Examples:\n"
      "  ebb experiment list\n"
      "  ebb experiment results h2o-at-256");
  command.require_subcommand(1);
}

}  // namespace ebb::cli
