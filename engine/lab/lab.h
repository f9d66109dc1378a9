// What every subcommand of `ebb-lab` shares: how an engine is opened, how results and failures are printed.
//
// Exit codes: 0 done; 1 something failed or did not match; 2 wrong usage.

#ifndef EBB_ENGINE_LAB_LAB_H_
#define EBB_ENGINE_LAB_LAB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "command_line/command_line.h"
#include "engine/engine.h"
#include "engine/lab/record.h"

namespace ebb::lab {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

// What of a long command decides its numbers beside the engine, which it is resumed by.
struct Measurement {
  std::string command = {};  // "passkey"
  std::string model = {};    // path
  Settings files = {};       // by their names on the command line, paths
  Settings flags = {};       // all but those whose values are in the names of what is measured, as --policies
};

// One per process; filled from the flags before a subcommand's callback runs.
struct Lab {
  std::string isa = {};
  std::string accuracy = "exact";  // or "fast"
  std::string calibration = {};
  std::string pack_cache = {};
  std::string resume = {};
  int32_t threads = 0;
  bool json = false;
  int exit_code = kDone;

  absl::StatusOr<std::unique_ptr<Engine>> Open(const std::string& model) const;
  // The record that --resume names. What Record::Open refuses, and NOT_FOUND naming a file that cannot be read.
  absl::StatusOr<Record> Resume(const Engine& engine, const Measurement& measurement) const;
  Accuracy arithmetic() const { return accuracy == "fast" ? Accuracy::kFast : Accuracy::kExact; }

  // Prints an error to stderr and sets exit_code. Returns status.ok().
  bool Check(const absl::Status& status);
};

// --isa, --accuracy, --threads, --calibration and --pack-cache, for subcommands that compute.
void AddComputeOptions(Command command, Lab& lab);
// --resume, for those that compute for long.
void AddResumeOption(Command command, Lab& lab);

// INVALID_ARGUMENT for a model whose layers have sliding windows, naming it and what `command` could not tell of it:
// such layers keep what their window shows under every policy.
absl::Status RefuseWindows(const Engine& engine, std::string_view command);

// A whole file as text. NOT_FOUND naming it.
absl::StatusOr<std::string> ReadText(const std::string& path);

// Each adds one subcommand with its flags, help and callback; main.cc has the table.
void AddInfo(Command app, Lab& lab);
void AddConvert(Command app, Lab& lab);
void AddLogits(Command app, Lab& lab);
void AddPpl(Command app, Lab& lab);
void AddAgree(Command app, Lab& lab);
void AddCases(Command app, Lab& lab);
void AddCalibrate(Command app, Lab& lab);
void AddRecall(Command app, Lab& lab);
void AddOuterr(Command app, Lab& lab);
void AddCompare(Command app, Lab& lab);
void AddPasskey(Command app, Lab& lab);
void AddLazy(Command app, Lab& lab);
void AddQueries(Command app, Lab& lab);
void AddRotation(Command app, Lab& lab);
void AddHeads(Command app, Lab& lab);
void AddGolden(Command app, Lab& lab);
void AddTokenize(Command app, Lab& lab);

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_LAB_H_
