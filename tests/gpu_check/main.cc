// ebb_gpu_check: everything that tests say of the kernels and the engine of a GPU, on a device; then what the device
// does in how much time, beside its ceilings. Leaves gpu.json and gpu.md.
//
//   ebb_gpu_check --kind cuda|hip|emulated --libraries FOLDER --out FOLDER
//                 [--seconds N] [--tests FILTER] [--part NAME]... [--tiny] [--peers FILE]... [--fact KEY=VALUE]...
//   ebb_gpu_check --dense --kind cuda|hip --libraries FOLDER
//   ebb_gpu_check --prompt --kind cuda|hip --libraries FOLDER
//
// The last two print what the maker's library of products does, where it is installed, as a file of peers has it: the
// rate of a dense product; the seconds of prompts, or why it is not fit for them (engine/gpu/block_products.h).
//
// What is built with EBB_STATIC has no emulation. Run from a folder that has tests/golden/data. Exits with 0 where all
// checks passed, 1 where one did not, 2 where it was called wrongly, and 3 where there is no device. A target that is
// missed is said in the report and is no failure.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/gpu/gpu.h"
#include "engine/ops/gpu/emulated.h"
#include "tests/gpu_check/bench.h"
#include "tests/gpu_check/report.h"
#include "tests/support/gpu_target.h"

namespace ebb::gpu_check {
namespace {

enum Exit { kPassed = 0, kFailed = 1, kWrongCall = 2, kNoDevice = 3 };

struct Options {
  std::string kind = "cuda";
  std::string libraries = ".";
  std::string out = ".";
  std::string tests = "*";
  std::vector<std::string> parts = {};  // of what is measured; none: all
  std::vector<std::string> peers = {};
  std::string peer = {};  // the flag of a number to print instead
  int seconds = 420;
  Size size = Size::kWhole;
  std::vector<std::pair<std::string, std::string>> facts = {};
};

std::optional<Options> Parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--tiny") {
      o.size = Size::kTiny;
      continue;
    }
    if (flag == "--dense" || flag == "--prompt") {
      o.peer = flag;
      continue;
    }
    if (i + 1 == argc) return std::nullopt;
    const std::string value = argv[++i];
    if (flag == "--kind") {
      o.kind = value;
    } else if (flag == "--libraries") {
      o.libraries = value;
    } else if (flag == "--out") {
      o.out = value;
    } else if (flag == "--tests") {
      o.tests = value;
    } else if (flag == "--part") {
      o.parts.push_back(value);
    } else if (flag == "--peers") {
      o.peers.push_back(value);
    } else if (flag == "--seconds") {
      if (!absl::SimpleAtoi(value, &o.seconds)) return std::nullopt;
    } else if (const size_t at = value.find('='); flag == "--fact" && at != std::string::npos) {
      o.facts.emplace_back(value.substr(0, at), value.substr(at + 1));
    } else {
      return std::nullopt;
    }
  }
  return o;
}

// Gathers how each test went.
class Gather : public testing::EmptyTestEventListener {
 public:
  Gather(Report& report, std::function<void()> save) : report_(report), save_(std::move(save)) {}

  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (part.failed() && why_.empty()) why_ = part.message();
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    report_.checks.push_back({.name = absl::StrFormat("%s.%s", test.test_suite_name(), test.name()),
                              .passed = !test.result()->Failed(),
                              .why = why_});
    why_.clear();
    save_();
  }

 private:
  Report& report_;
  std::function<void()> save_;
  std::string why_ = {};
};

std::string Today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::array<char, 16> text = {};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", std::gmtime(&now));
  return text.data();
}

// What `measure` gives, or why there is no peer of that name, as `NAME_why`.
int PrintPeers(const std::string& name, absl::StatusOr<Peers> (*measure)(Bench&), const gpu::Table& table,
               std::unique_ptr<Gpu> gpu) {
  Report report;
  Bench bench = {.table = table, .report = report, .gpu = std::move(gpu)};
  bench.end = std::chrono::steady_clock::now() + std::chrono::seconds(20);  // `run` ends it at 30
  const absl::StatusOr<Peers> peers = measure(bench);
  nlohmann::json printed = {{name + "_why", std::string(peers.status().message())}};
  if (peers.ok()) printed = *peers;
  std::printf("%s\n", printed.dump().c_str());
  return peers.ok() ? kPassed : kFailed;
}

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::optional<Options> options = Parse(argc, argv);
  if (!options) {
    std::fprintf(stderr, "ebb_gpu_check: wrong arguments; the top of tests/gpu_check/main.cc says which there are\n");
    return kWrongCall;
  }
  const std::vector<std::string> names = PartNames();
  for (const std::string& part : options->parts) {
    if (std::ranges::find(names, part) != names.end()) continue;
    std::fprintf(stderr, "ebb_gpu_check: --part '%s' is none of: %s\n", part.c_str(),
                 absl::StrJoin(names, ", ").c_str());
    return kWrongCall;
  }
  const bool is_emulated = options->kind == "emulated";
  const gpu::Table* table = is_emulated ? &gpu::EmulatedTable(32) : nullptr;
  if (!is_emulated) {
    const auto loaded = LoadGpuTable(options->kind, options->libraries);
    if (!loaded.ok()) {
      std::printf("no device: %s\n", std::string(loaded.status().message()).c_str());
      return kNoDevice;
    }
    table = *loaded;
    gpu::TestOnDevice(*table);
  }
  auto gpu = Gpu::Open(*table, 0);
  const auto device = Gpu::Describe(*table, 0);
  if (!gpu.ok() || !device.ok()) {
    std::printf("no device: %s\n", std::string((gpu.ok() ? device.status() : gpu.status()).message()).c_str());
    return kNoDevice;
  }

  if (options->peer == "--dense") return PrintPeers("cublaslt", DenseRate, *table, *std::move(gpu));
  if (options->peer == "--prompt")
    return PrintPeers("prompt_by_library", PromptSecondsByLibrary, *table, *std::move(gpu));
  Report report;
  report.is_emulated = is_emulated;
  report.facts = {{"device", *device}, {"date", Today()}};
  report.facts.insert(report.facts.end(), options->facts.begin(), options->facts.end());
  // Whole or not at all: whoever ends this program finds what was saved before.
  const auto write = [&](const std::string& name, const std::string& text) {
    const std::string part = options->out + "/" + name + ".part";
    std::ofstream file(part);
    file << text;
    file.close();
    std::error_code failed;  // of which the end of this function speaks
    if (file.good()) std::filesystem::rename(part, options->out + "/" + name, failed);
  };
  const auto save = [&] {
    write("gpu.json", ToJson(report).dump(2) + "\n");
    write("gpu.md", ToMarkdown(report));
  };
  AnnounceAll(report);
  const auto begin = std::chrono::steady_clock::now();
  // What says something of the emulation alone stays there.
  GTEST_FLAG_SET(filter, options->tests + (options->tests.find('-') == std::string::npos ? "-" : ":") + "Emulation*");
  testing::UnitTest::GetInstance()->listeners().Append(new Gather(report, save));
  [[maybe_unused]] const int is_wrong = RUN_ALL_TESTS();  // the report has it, test by test

  Bench bench = {.table = *table,
                 .size = options->size,
                 .end = begin + std::chrono::seconds(options->seconds),
                 .parts = options->parts,
                 .report = report,
                 .save = save,
                 .gpu = *std::move(gpu)};
  for (const std::string& file : options->peers) {
    std::ifstream stream(file);
    const nlohmann::json peers = nlohmann::json::parse(stream, nullptr, false);
    if (peers.is_object()) bench.peers.update(peers);
  }
  MeasureAll(bench);

  save();
  std::printf("%s\n", ToMarkdown(report).c_str());
  if (!std::ifstream(options->out + "/gpu.md")) {
    std::fprintf(stderr, "ebb_gpu_check: %s/gpu.md could not be written\n", options->out.c_str());
    return kFailed;
  }
  return report.failed() == 0 && !report.checks.empty() ? kPassed : kFailed;
}

}  // namespace
}  // namespace ebb::gpu_check

int main(int argc, char** argv) { return ebb::gpu_check::Main(argc, argv); }
