// What is measured on a device, each beside its ceiling of the same run. Every function adds rows to the report; what
// fails is said there, too, and the others go on.

#ifndef EBB_TESTS_GPU_CHECK_BENCH_H_
#define EBB_TESTS_GPU_CHECK_BENCH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gpu/gpu.h"
#include "policies/check.h"
#include "tests/gpu_check/report.h"

namespace ebb::gpu_check {

// What is measured, of a size that means something, or so small that the emulation gets through it.
enum class Size { kWhole, kTiny };

// What a library gave, by name.
using Peers = std::map<std::string, double>;

struct Bench {
  const gpu::Table& table;
  Size size = Size::kWhole;
  std::chrono::steady_clock::time_point end = {};   // nothing begins past it
  std::vector<std::string> parts = {};              // names of those that are measured, beside ceilings; none: all
  nlohmann::json peers = nlohmann::json::object();  // what other libraries gave: name -> number
  Report& report;
  std::function<void()> save = {};  // the report so far, in case that what comes next ends the program
  std::unique_ptr<Gpu> gpu = {};
  double copy_rate = 0;       // bytes read and written per second, of one large copy
  double dense_rate = 0;      // operations per second of a large BF16 product: the best that any library here gave,
  std::string dense_by = {};  // this one; or, where there is none, the own kernel's, by which no target is judged
  bool dense_is_own = false;

  bool tiny() const { return size == Size::kTiny; }
  // A number of peers.py's or of DenseRate, 0 where there is none.
  double Peer(const std::string& name) const { return peers.value(name, 0.0); }
  // Why there is none, where it said so.
  std::string WhyNot(const std::string& name) const { return peers.value(name + "_why", "no result of it is there"); }
};

// Seconds of one of the `count` launches that launch(0), launch(1), ... make, the median of several timings. They are
// recorded and replayed together, so that what the host takes for each is not in it.
template <typename Launch>
absl::StatusOr<double> SecondsOf(const Bench& bench, int count, const Launch& launch);

// "3.91 TB/s", "1.25 ms".
std::string Rate(double per_second, const std::string& unit);
std::string Time(double seconds);

// "cuBLASLt's product of 8192^3 700.00 TFLOP/s".
std::string Dense(const Bench& bench);

// Rows and columns of the dense product, the same as peers.py's, and operations a second by the maker's library, into
// floats, as the engine wants them. As OpenBlasLt. For a process of its own (dense.cc).
inline constexpr int32_t kDenseSide = 8192;
absl::StatusOr<Peers> DenseRate(Bench& bench);
// Seconds of the prompts that MeasurePrefill measures, whose products that library makes. Alike, and as
// BlockProducts::Make.
absl::StatusOr<Peers> PromptSecondsByLibrary(Bench& bench);

// What Bench::parts may name.
std::vector<std::string> PartNames();
// Says of every part that it was not reached, which MeasureAll takes back part by part: so a page that was cut off says
// what it lacks.
void AnnounceAll(Report& report);
void MeasureAll(Bench& bench);

absl::Status MeasureCeilings(Bench& bench);
absl::Status MeasureAttention(Bench& bench);
absl::Status MeasurePromptAttention(Bench& bench);
absl::Status MeasureUpdate(Bench& bench);
absl::Status MeasureSelection(Bench& bench);
absl::Status MeasureScores(Bench& bench);
absl::Status MeasureLinear(Bench& bench);
absl::Status MeasureLargest(Bench& bench);
absl::Status MeasureMass(Bench& bench);
absl::Status CountWaits(Bench& bench);
absl::Status MeasureDecode(Bench& bench);
absl::Status MeasurePrefill(Bench& bench);

// --- as templates are ----------------------------------------------------------------------------------------------

double MedianSeconds(const Bench& bench, const GpuRecording& recording);

template <typename Launch>
absl::StatusOr<double> SecondsOf(const Bench& bench, int count, const Launch& launch) {
  auto recording = bench.gpu->Record([&] {
    for (int i = 0; i < count; ++i) launch(i);
  });
  if (!recording.ok()) return recording.status();
  if (const absl::Status ran = bench.gpu->Replay(*recording); !ran.ok()) return ran;
  if (const absl::Status done = bench.gpu->Wait(); !done.ok()) return done;
  const double seconds = MedianSeconds(bench, *recording);
  if (const absl::Status done = bench.gpu->Wait(); !done.ok()) return done;
  return seconds / count;
}

}  // namespace ebb::gpu_check

#endif  // EBB_TESTS_GPU_CHECK_BENCH_H_
