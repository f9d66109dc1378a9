#include "client/cli/experiment_sum.h"

#include <google/protobuf/util/message_differencer.h>

#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/client.h"
#include "server/experiment_parts.h"
#include "server/experiment_results.h"
#include "server/experiments/sum.h"

namespace ebb::cli {
namespace {

// What one server has seen.
struct Seen {
  v1::ExperimentSpec spec = {};
  absl::StatusOr<WholeExperiment> whole = absl::InvalidArgumentError("nothing came");
};

grpc::Status Fetch(client::Client& client, const std::string& name, Seen& seen) {
  ExperimentParts parts;
  absl::Status taken;
  client::Cancellation cancellation;
  const grpc::Status status = client.ExportExperiment(
      name,
      [&](const v1::ExperimentPart& part) {
        if (part.has_head()) seen.spec = part.head().spec();
        taken.Update(parts.Take(part));
        if (!taken.ok()) cancellation.Cancel();
      },
      &cancellation);
  if (!taken.ok()) {
    seen.whole = taken;
    return grpc::Status::OK;
  }
  if (status.ok()) seen.whole = parts.Finish();
  return status;
}

// As Shell::Check, of another server than the shell's.
bool CheckAt(Shell& shell, const std::string& server, const grpc::Status& status) {
  if (status.ok()) return true;
  Shell there = shell;
  there.address = server;
  there.Check(grpc::Status(status.error_code(), server + ": " + status.error_message(), status.error_details()));
  shell.exit_code = there.exit_code;
  return false;
}

}  // namespace

std::string DifferenceBetween(const v1::ExperimentSpec& one, const v1::ExperimentSpec& other) {
  v1::ExperimentSpec alike = other;
  alike.set_ramp(one.ramp());
  std::string difference;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  differencer.Compare(one, alike);
  return absl::StrReplaceAll(std::string(absl::StripSuffix(difference, "\n")), {{"\n", "; "}});
}

std::optional<v1::Experiment> SumOver(Shell& shell, const std::vector<std::string>& servers, const std::string& name) {
  ExperimentSum sum;
  std::optional<v1::ExperimentSpec> spec;
  std::set<std::string> asked;
  for (const std::string& server : servers) {
    if (!asked.insert(server).second) throw UsageError("--from", server + " is there twice");
  }
  for (const std::string& server : servers) {
    Shell there = shell;
    there.address = server;
    client::Client client = there.Connect();
    Seen seen;
    if (!CheckAt(shell, server, Fetch(client, name, seen))) return std::nullopt;
    if (!seen.whole.ok()) {
      shell.Failed("DATA_LOSS", "",
                   absl::StrFormat("%s: what it tells of %s cannot be: %s", server, name,
                                   std::string(seen.whole.status().message())));
      return std::nullopt;
    }
    if (!spec) spec = seen.spec;
    const std::string difference = DifferenceBetween(*spec, seen.spec);
    if (!difference.empty()) {
      shell.Failed("FAILED_PRECONDITION", "",
                   absl::StrFormat("%s is another experiment at %s than at %s, and only the ramp may differ: %s", name,
                                   server, servers.front(), difference));
      return std::nullopt;
    }
    const absl::Status added = sum.Add(server, *seen.whole);
    if (!added.ok()) {
      shell.Failed("FAILED_PRECONDITION", "", std::string(added.message()));
      return std::nullopt;
    }
  }
  const WholeExperiment total = std::move(sum).Total();
  v1::Experiment experiment = ResultsProto(ViewOf(total.state));
  *experiment.mutable_spec() = *std::move(spec);
  experiment.mutable_spec()->set_ramp(total.state.spec.ramp);
  return experiment;
}

}  // namespace ebb::cli
