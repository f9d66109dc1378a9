// `ebb bench`: speed, always as a share of what this machine was measured to do in the same minute.
//
// A verb is a file: it adds its subcommand, measures in rounds (this machine's ceilings first, then each thing to be
// compared, so that a shared machine's moods meet all of them) and prints medians over the rounds with their quartiles.
//
// Exit codes are those of `ebb`: 0 done; 1 something failed; 2 wrong usage; 3 no server (serve, speculate).

#ifndef EBB_BENCH_BENCH_H_
#define EBB_BENCH_BENCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/meter.h"
#include "bench/report.h"
#include "client/cli/shell.h"
#include "command_line/command_line.h"
#include "engine/lab/table.h"

namespace ebb::bench {

// What every verb takes.
struct Common {
  int32_t threads = 0;   // 0: as many as this process may run on
  int32_t rounds = 7;    // that count; one more goes before them
  int64_t read_mib = 0;  // 0: DefaultReadBytes
  uint64_t seed = 1;
  lab::TableForm form = lab::TableForm::kText;

  int32_t Threads() const;
};

// --threads, --rounds, --seed, --read-mib, --csv and --markdown.
void AddCommonOptions(Command command, Common& common);

// With the memory that was asked for, and at least so many bytes a thread.
absl::StatusOr<std::unique_ptr<Meter>> MakeMeter(const Common& common, int64_t part_bytes = 0);

// The facts of any report: CPU, cores, threads, rounds, seed; a verb adds its own.
std::vector<std::pair<std::string, Value>> MachineFacts(const Common& common);

// Prints the error and sets the exit code: INVALID_ARGUMENT is wrong usage.
void Check(cli::Shell& shell, const absl::Status& status);

// Each adds one verb with its flags, help and callback; bench.cc has the table.
void AddCeilings(Command bench, cli::Shell& shell);
void AddDecode(Command bench, cli::Shell& shell);
void AddBatch(Command bench, cli::Shell& shell);
void AddPrefill(Command bench, cli::Shell& shell);
void AddKvUpdate(Command bench, cli::Shell& shell);
void AddAttention(Command bench, cli::Shell& shell);
void AddVerify(Command bench, cli::Shell& shell);
void AddServe(Command bench, cli::Shell& shell);
void AddSpeculate(Command bench, cli::Shell& shell);

// `ebb bench` itself.
void AddBench(Command app, cli::Shell& shell);

}  // namespace ebb::bench

#endif  // EBB_BENCH_BENCH_H_
