// `ebb bench ceilings`: what this machine can do at most, by one thread and by all.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "policies/status.h"

namespace ebb::bench {
namespace {

struct Ceiling {
  std::string what = {};
  std::string key = {};
  std::string unit = {};  // of 1e9
  std::string instruction = {};
  double (*measure)(Meter& meter, const Caches& caches) = {};
};

// Bytes per thread that lie in the cache: well within, and well beyond the one before it.
int64_t InL2(const Caches& caches) { return caches.l2 / 2 / 4096 * 4096; }
int64_t InL3(const Caches& caches, int32_t threads) {
  const int64_t share = std::min(caches.l3 / 2 / threads, std::max(8 * caches.l2, int64_t{16} << 20));
  return share < 2 * caches.l2 ? 0 : share / 4096 * 4096;
}

std::vector<Ceiling> Ceilings(const Caches& caches, int32_t threads) {
  std::vector<Ceiling> all = {{"read memory", "read_memory", "B/s", BestReadLoop().instruction,
                               [](Meter& meter, const Caches&) { return meter.Read(); }}};
  if (InL3(caches, threads) > 0) {
    all.push_back({"read L3", "read_l3", "B/s", BestReadLoop().instruction,
                   [](Meter& meter, const Caches& c) { return meter.ReadAgain(InL3(c, meter.threads())); }});
  }
  if (caches.l2 > 0) {
    all.push_back({"read L2", "read_l2", "B/s", BestReadLoop().instruction,
                   [](Meter& meter, const Caches& c) { return meter.ReadAgain(InL2(c)); }});
  }
  all.push_back({"int8 dot", "int8", "op/s", Int8Loop().instruction,
                 [](Meter& meter, const Caches&) { return meter.Operations(Int8Loop()); }});
  all.push_back({"BF16 dot", "bf16", "op/s", Bf16Loop().instruction,
                 [](Meter& meter, const Caches&) { return meter.Operations(Bf16Loop()); }});
  all.push_back({"float32 multiply-add", "fma", "op/s", FmaLoop().instruction,
                 [](Meter& meter, const Caches&) { return meter.Operations(FmaLoop()); }});
  all.push_back({"clock", "clock", "Hz", ClockLoop().instruction,
                 [](Meter& meter, const Caches&) { return meter.Operations(ClockLoop()) / meter.threads(); }});
  return all;
}

absl::Status RunCeilings(const cli::Shell& shell, const Common& common) {
  const Caches caches = ReadCaches();
  const int32_t threads = common.Threads();
  // Room for the most that one thread reads again, in whole pages.
  const int64_t part = std::max(InL2(caches), InL3(caches, 1)) + (int64_t{2} << 20);
  Common alone = common;
  alone.threads = 1;
  EBB_ASSIGN(const std::unique_ptr<Meter> all, MakeMeter(common, part));
  EBB_ASSIGN(const std::unique_ptr<Meter> one, MakeMeter(alone, part));
  const std::vector<Ceiling> ceilings = Ceilings(caches, threads);
  std::vector<std::vector<double>> of_one(ceilings.size()), of_all(ceilings.size());
  for (int32_t round = -1; round < common.rounds; ++round) {
    for (size_t i = 0; i < ceilings.size(); ++i) {
      const double single = ceilings[i].measure(*one, caches);
      const double together = ceilings[i].measure(*all, caches);
      if (round < 0) continue;
      of_one[i].push_back(single);
      of_all[i].push_back(together);
    }
  }
  Report report("ceilings",
                {{.key = "ceiling", .header = "ceiling"},
                 {.key = "instruction", .header = "by"},
                 {.key = "unit", .header = "unit"},
                 {.key = "one_thread", .header = "1 thread", .scale = 1e-9, .digits = 1},
                 {.key = "all_threads", .header = "all threads", .scale = 1e-9, .digits = 1}},
                MachineFacts(common));
  for (size_t i = 0; i < ceilings.size(); ++i) {
    const Ceiling& ceiling = ceilings[i];
    report.Add({shell.json ? ceiling.key : ceiling.what, ceiling.instruction, (shell.json ? "" : "G") + ceiling.unit,
                SpreadOf(of_one[i]), SpreadOf(of_all[i])});
  }
  report.Print(shell.json, common.form);
  return absl::OkStatus();
}

}  // namespace

void AddCeilings(Command bench, cli::Shell& shell) {
  const Command command = bench.add_subcommand("ceilings", "What this machine can do at most");
  const auto common = std::make_shared<Common>();
  AddCommonOptions(command, *common);
  command.footer(
      "Bytes read per second, by plain sums; operations per second in registers alone, a multiply-add counting two,\n"
      "by the widest instruction of its kind that this CPU has. The clock is that of additions that wait for each\n"
      "other. Medians over the rounds, with quartiles.\n"
      "Example:\n  ebb bench ceilings --threads 1");
  command.callback([&shell, common] { Check(shell, RunCeilings(shell, *common)); });
}

}  // namespace ebb::bench
