#include "bench/bench.h"

#include <algorithm>

#include "engine/machine.h"
#include "engine/parallel.h"
#include "policies/status.h"

namespace ebb::bench {
namespace {

constexpr void (*kVerbs[])(Command, cli::Shell&) = {AddCeilings,  AddDecode, AddBatch, AddPrefill,  AddKvUpdate,
                                                    AddAttention, AddVerify, AddServe, AddSpeculate};

constexpr int64_t kReadMibMax = int64_t{1} << 20;

}  // namespace

int32_t Common::Threads() const { return threads == 0 ? UsableThreads() : threads; }

void AddCommonOptions(Command command, Common& common) {
  command.add_option("--threads", common.threads, "Compute threads; default: as many as this process may run on")
      .range(0, kThreadsMax);
  command.add_option("--rounds", common.rounds, "Repetitions of everything in turn; one more warms up and is dropped")
      .range(1, 1000)
      .default_str("7");
  command.add_option("--seed", common.seed, "Of tokens, choices and arrivals").default_str("1");
  command
      .add_option("--read-mib", common.read_mib,
                  "Memory to read for the bandwidth; default: the most of 1536 and four times the last cache, where "
                  "there is so much")
      .range(int64_t{0}, kReadMibMax);
  lab::AddTableOptions(command, common.form);
}

absl::StatusOr<std::unique_ptr<Meter>> MakeMeter(const Common& common, int64_t part_bytes) {
  const int64_t asked = common.read_mib > 0 ? common.read_mib << 20 : DefaultReadBytes(ReadCaches());
  return Meter::Make(common.Threads(), std::max(asked, part_bytes * common.Threads()));
}

std::vector<std::pair<std::string, Value>> MachineFacts(const Common& common) {
  return {{"cpu", CpuName()},
          {"cores", int64_t{UsableThreads()}},
          {"threads", int64_t{common.Threads()}},
          {"rounds", int64_t{common.rounds}},
          {"seed", static_cast<int64_t>(common.seed)}};
}

void Check(cli::Shell& shell, const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(status.message());
  if (absl::IsInvalidArgument(status)) {
    shell.Misused(message);
  } else {
    shell.Failed(absl::StatusCodeToString(status.code()), GetRefusal(status).reason, message);
  }
}

void AddBench(Command app, cli::Shell& shell) {
  const Command bench = app.add_subcommand(
      "bench", "Speed as a share of what this machine can do: the engine's in this process, a server's from outside");
  bench.fallthrough();
  bench.require_subcommand(1);
  for (const auto add : kVerbs) add(bench, shell);
  bench.footer(
      "Examples:\n"
      "  ebb bench ceilings\n"
      "  ebb bench decode models/ebb-tiny-q8_0.gguf --policy h2o");
}

}  // namespace ebb::bench
