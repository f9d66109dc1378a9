#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/golden_family.h"
#include "engine/lab/lab.h"
#include "engine/model/gguf.h"
#include "engine/text/tokenizer.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct GoldenOptions {
  std::string folder = {};
  std::string tokenizers = {};
};

struct Counts {
  int ok = 0;
  int failed = 0;
  int skipped = 0;
};

void PrintSkip(const Lab& lab, const GoldenFamily& family, const absl::Status& status, Counts& counts) {
  for (const GoldenCase& golden : family.cases) {
    ++counts.skipped;
    const std::string why(status.message());
    if (lab.json) {
      const Json line = {{"result", "skip"}, {"family", family.name}, {"case", golden.name}, {"why", why}};
      absl::PrintF("%s\n", line.dump());
    } else {
      absl::PrintF("skip %-16s %-13s %s\n", family.name, golden.name, why);
    }
  }
}

void PrintResult(const Lab& lab, const GoldenFamily& family, const GoldenCase& golden, const GoldenResult& result,
                 const std::string& accuracy, Counts& counts) {
  const bool ok = result.error.empty();
  ++(ok ? counts.ok : counts.failed);
  if (lab.json) {
    const Json line = {{"result", ok ? "ok" : "FAIL"},
                       {"family", family.name},
                       {"case", golden.name},
                       {"reference", golden.reference},
                       {"max_abs", result.max_abs},
                       {"rms", result.rms},
                       {"max_abs_allowed", golden.max_abs},
                       {"rms_allowed", golden.rms},
                       {"rows", golden.rows},
                       {"accuracy", accuracy},
                       {"error", result.error}};
    absl::PrintF("%s\n", line.dump());
    return;
  }
  absl::PrintF("%-4s %-16s %-13s %-6s  max_abs %.1e of %.0e  rms %.1e of %.0e  %d rows  %s%s%s\n", ok ? "ok" : "FAIL",
               family.name, golden.name, golden.reference, result.max_abs, golden.max_abs, result.rms, golden.rms,
               golden.rows, accuracy, ok ? "" : ": ", result.error);
}

void RunFamily(Lab& lab, const GoldenFamily& family, Counts& counts) {
  const auto engine = lab.Open(family.model);
  if (!engine.ok() && IsUnsupported(engine.status())) {
    PrintSkip(lab, family, engine.status(), counts);
    return;
  }
  if (!lab.Check(engine.status())) {
    counts.failed += static_cast<int>(family.cases.size());
    return;
  }
  // "model.gguf 0123 avx512 exact": the instruction set and the accuracy mode are the last two words.
  const std::string fingerprint = (*engine)->fingerprint();
  const size_t mode = fingerprint.rfind(' ', fingerprint.rfind(' ') - 1);
  for (const GoldenCase& golden : family.cases) {
    PrintResult(lab, family, golden, RunGoldenCase(**engine, golden), fingerprint.substr(mode + 1), counts);
  }
}

// The texts of one tokenizer file that are not cut as stored.
absl::StatusOr<std::vector<std::string>> FindWrongCuts(const std::string& path, size_t& texts) {
  EBB_ASSIGN(const std::string text, ReadText(path));
  std::vector<std::string> wrong;
  try {
    const Json json = Json::parse(text);
    const auto model = std::filesystem::path(path).parent_path() / json.at("model").get<std::string>();
    EBB_ASSIGN(const GgufFile file, GgufFile::Open(model.string()));
    EBB_ASSIGN(const auto tokenizer, Tokenizer::FromGguf(file));
    texts = json.at("cases").size();
    for (const Json& golden : json.at("cases")) {
      const auto sample = golden.at("text").get<std::string>();
      const auto plain = tokenizer->Encode(sample, Special::kPlain, Start::kText);
      const auto special = tokenizer->Encode(sample, Special::kParse, Start::kSequence);
      if (Json(plain) != golden.at("plain") || Json(special) != golden.at("special")) wrong.push_back(sample);
    }
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrFormat("%s: not a tokenizer file: %s", path, error.what()));
  }
  return wrong;
}

void RunTokenizers(Lab& lab, const std::string& folder, Counts& counts) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  }
  if (paths.empty()) lab.Check(absl::NotFoundError(absl::StrFormat("%s: no tokenizer (*.json)", folder)));
  std::ranges::sort(paths);
  for (const std::string& path : paths) {
    size_t texts = 0;
    const auto wrong = FindWrongCuts(path, texts);
    const bool ok = wrong.ok() && wrong->empty();
    ++(ok ? counts.ok : counts.failed);
    if (!lab.Check(wrong.status())) continue;
    const std::string name = std::filesystem::path(path).stem().string();
    if (lab.json) {
      const Json line = {{"result", ok ? "ok" : "FAIL"}, {"tokenizer", name}, {"texts", texts}, {"wrong", *wrong}};
      absl::PrintF("%s\n", line.dump());
      continue;
    }
    absl::PrintF("%-4s %-16s %d of %d texts\n", ok ? "ok" : "FAIL", name, texts - wrong->size(), texts);
    for (const std::string& sample : *wrong) absl::PrintF("     %s\n", Json(sample).dump());
  }
}

void RunGolden(Lab& lab, const GoldenOptions& options) {
  Counts counts;
  if (!options.folder.empty()) {
    const auto families = ReadGoldenFolder(options.folder, lab.arithmetic());
    if (!lab.Check(families.status())) return;
    for (const GoldenFamily& family : *families) RunFamily(lab, family, counts);
  }
  if (!options.tokenizers.empty()) RunTokenizers(lab, options.tokenizers, counts);
  if (!lab.json) absl::PrintF("%d ok, %d failed, %d skipped\n", counts.ok, counts.failed, counts.skipped);
  if (counts.failed > 0 || counts.ok == 0) lab.exit_code = kFailed;
}

}  // namespace

void AddGolden(Command app, Lab& lab) {
  const Command command = app.add_subcommand("golden", "Check the engine against stored logits, case by case");
  const auto options = std::make_shared<GoldenOptions>();
  command.add_option("DIR", options->folder, "Folder of families (*.json with their models and logits)");
  command.add_option("--tokenizer", options->tokenizers, "Folder of tokenizer files, instead or besides");
  AddComputeOptions(command, lab);
  command.footer(
      "One line per case: ok, FAIL or skip; the largest deviation and the root of the mean square, each with what is\n"
      "allowed; and which stored numbers it was held to. Families that are not supported yet are skipped, each by "
      "name.");
  command.callback([&lab, options] {
    if (options->folder.empty() && options->tokenizers.empty()) throw UsageError("DIR or --tokenizer is required");
    RunGolden(lab, *options);
  });
}

}  // namespace ebb::lab
