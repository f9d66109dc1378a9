#include "engine/lab/lab.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/calibration_file.h"
#include "engine/model/head_gates_file.h"
#include "engine/parallel.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

constexpr int kRecordVersion = 1;  // of what the commands measure: one more when the same flags mean other numbers

std::string HashOfFileBeside(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadText(path);
  return text.ok() ? HashOf(*text) : "missing";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Lab::Open(const std::string& model) const {
  auto engine = Engine::Open({.model_path = model,
                              .calibration_path = calibration,
                              .threads = threads,
                              .accuracy = arithmetic(),
                              .isa = isa,
                              .pack_cache = pack_cache});
  if (!engine.ok()) return engine;
  const PackReport& packs = (*engine)->packs();
  for (const std::string& trouble : {packs.ignored, packs.not_written}) {
    if (!trouble.empty()) absl::FPrintF(stderr, "ebb-lab: warning: %s\n", trouble);
  }
  return engine;
}

absl::StatusOr<Record> Lab::Resume(const Engine& engine, const Measurement& measurement) const {
  Settings run = {
      {"ebb-lab", measurement.command},
      {"record", absl::StrCat(kRecordVersion)},
      {"engine", engine.fingerprint()},
      {"--calibration", HashOfFileBeside(calibration.empty() ? CalibrationPath(measurement.model) : calibration)},
      {"heads", HashOfFileBeside(HeadGatesPath(measurement.model))}};
  for (const auto& [name, path] : measurement.files) {
    EBB_ASSIGN(const std::string text, ReadText(path));
    run.push_back({name, HashOf(text)});
  }
  run.insert(run.end(), measurement.flags.begin(), measurement.flags.end());
  return Record::Open(resume, run);
}

bool Lab::Check(const absl::Status& status) {
  if (status.ok()) return true;
  std::fflush(stdout);
  absl::FPrintF(stderr, "ebb-lab: %s\n", status.message());
  exit_code = kFailed;
  return false;
}

void AddComputeOptions(Command command, Lab& lab) {
  command.add_option("--isa", lab.isa,
                     "Instruction set: scalar, avx2, avx512, ...; default: EBB_ISA, else the best here");
  command
      .add_option("--accuracy", lab.accuracy,
                  "exact, or fast as the server has it: activations rounded before products with quantised and BF16 "
                  "weights")
      .one_of({"exact", "fast"})
      .capture_default_str();
  command.add_option("--threads", lab.threads, "Compute threads; default: as many as this process may run on")
      .range(0, kThreadsMax);
  command.add_option("--calibration", lab.calibration,
                     "What the scorer `calibrated` goes by; default: the model's path with .calibration.json for its "
                     "ending");
  command.add_option("--pack-cache", lab.pack_cache,
                     "Folder where packed weights are kept for the next time; beside: the model's own");
}

void AddResumeOption(Command command, Lab& lab) {
  command.add_option("--resume", lab.resume,
                     "Keep here what is measured, as it is; where the file is there already, go on with it");
}

absl::Status RefuseWindows(const Engine& engine, std::string_view command) {
  const ModelConfig& model = engine.config();
  const auto windows = std::ranges::count_if(model.windows, [](int32_t window) { return window > 0; });
  if (windows == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %d of the %d layers of this %s model have a sliding window, and keep what it shows under every "
      "policy; %s measures models without",
      engine.fingerprint(), windows, model.layers, model.architecture, command));
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code unknown;
  if (!file.is_open() || std::filesystem::is_directory(path, unknown)) {  // a folder opens, and throws when it is read
    return absl::NotFoundError(absl::StrFormat("%s: cannot be read", path));
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace ebb::lab
