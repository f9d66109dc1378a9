#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/lab/lab.h"
#include "engine/lab/progress.h"
#include "engine/model/architecture.h"
#include "engine/model/convert_model.h"
#include "engine/model/encode.h"
#include "engine/model/hub_model.h"
#include "engine/model/hub_tokenizer.h"
#include "engine/model/quantization.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct ConvertFlags {
  std::string model = {};
  std::string output = {};
  std::string type = "f16";
  std::string tokenizer = {};
  uint64_t part_bytes = 0;
};

std::string Spelled(DType type) {
  const std::string_view name = TypeName(type);
  return absl::AsciiStrToLower(std::string(name));
}

absl::StatusOr<Converted> Convert(const ConvertFlags& options) {
  EBB_ASSIGN(const GgufFile model, OpenModel(options.model));
  // A model that could not be opened afterwards is refused before anything is written.
  EBB_ASSIGN(const ModelConfig config, ReadConfig(model));
  EBB_TRY(FindWeights(model, config).status());
  std::optional<GgufFile> tokenizer;
  if (!options.tokenizer.empty()) {
    EBB_ASSIGN(HubEnds ends, ReadEnds(model));
    ends.eos.clear();  // ConvertModel adds them, as far as there are keys
    EBB_ASSIGN(tokenizer, OpenTokenizerFile(options.tokenizer, config.vocab, std::move(ends)));
  }
  ConvertOptions convert = {.output = options.output,
                            .part_bytes = static_cast<int64_t>(options.part_bytes),
                            .tokenizer = tokenizer ? &*tokenizer : nullptr};
  for (const DType type : EncodableTypes()) {
    if (Spelled(type) == options.type) convert.type = type;
  }
  int64_t bytes = 0;
  for (const GgufTensor& tensor : model.tensors()) bytes += static_cast<int64_t>(tensor.data.size());
  Progress progress(bytes);
  return ConvertModel(model, convert,
                      [&progress](int64_t done, std::string_view tensor) { progress.Add(done, std::string(tensor)); });
}

}  // namespace

void AddConvert(Command app, Lab& lab) {
  const Command command = app.add_subcommand("convert", "Write a model as a GGUF file, its matrices in another type");
  const auto options = std::make_shared<ConvertFlags>();
  std::vector<std::string> types;
  for (const DType type : EncodableTypes()) types.push_back(Spelled(type));
  command.add_option("MODEL", options->model, "Model file (GGUF), or a folder with config.json and safetensors files")
      .required();
  command.add_option("-o,--output", options->output, "File to write").required();
  command.add_option("--type", options->type, "Of matrices: " + absl::StrJoin(types, ", "))
      .one_of(types)
      .capture_default_str();
  command.add_option("--tokenizer", options->tokenizer,
                     "GGUF file or folder with tokenizer.json whose tokenizer and chat template the result has");
  command
      .add_option("--split-size", options->part_bytes,
                  "Write files of about this size, NAME-00001-of-0000N.gguf and on; default: one file")
      .bytes();
  command.callback([&lab, options] {
    const absl::StatusOr<Converted> converted = Convert(*options);
    if (!lab.Check(converted.status())) return;
    if (lab.json) {
      const Json line = {{"files", converted->files}, {"bytes", converted->bytes}, {"f16", converted->kept}};
      absl::PrintF("%s\n", line.dump());
      return;
    }
    for (const std::string& name : converted->kept) {
      absl::PrintF("%s: no whole blocks of %s in a row; F16\n", name, options->type);
    }
    for (const std::string& file : converted->files) absl::PrintF("%s\n", file);
    absl::PrintF("%d bytes\n", converted->bytes);
  });
}

}  // namespace ebb::lab
