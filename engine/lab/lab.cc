#include "engine/lab/lab.h"

#include <cstdio>
#include <fstream>
#include <iterator>

#include "absl/strings/str_format.h"
#include "engine/parallel.h"

namespace ebb::lab {

absl::StatusOr<std::unique_ptr<Engine>> Lab::Open(const std::string& model) const {
  return Engine::Open(
      {.model_path = model, .calibration_path = calibration, .threads = threads, .accuracy = arithmetic(), .isa = isa});
}

bool Lab::Check(const absl::Status& status) {
  if (status.ok()) return true;
  std::fflush(stdout);
  absl::FPrintF(stderr, "ebb-lab: %s\n", status.message());
  exit_code = kFailed;
  return false;
}

void AddComputeOptions(CLI::App& command, Lab& lab) {
  command.add_option("--isa", lab.isa,
                     "Instruction set: scalar, avx2, avx512, ...; default: EBB_ISA, else the best here");
  command
      .add_option("--accuracy", lab.accuracy,
                  "exact, or fast as the server has it: activations rounded before products with quantised and BF16 "
                  "weights")
      ->check(CLI::IsMember({"exact", "fast"}))
      ->capture_default_str();
  command.add_option("--threads", lab.threads, "Compute threads; default: as many as this process may run on")
      ->check(CLI::Range(0, kThreadsMax));
  command.add_option("--calibration", lab.calibration,
                     "What the scorer `calibrated` goes by; default: the model's path with .calibration.json for its "
                     "ending");
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return absl::NotFoundError(absl::StrFormat("%s: cannot be read", path));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace ebb::lab
