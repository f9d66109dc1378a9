#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_format.h"
#include "engine/lab/lab.h"
#include "engine/model/architecture.h"
#include "engine/model/ggml_types.h"
#include "engine/model/gguf.h"
#include "engine/model/hub_model.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct Options {
  std::string model = {};
  bool tensors = false;
};

std::string Shape(const GgufTensor& tensor) {
  std::string shape;
  for (int32_t i = 0; i < tensor.dims; ++i) shape += absl::StrFormat("%s%d", i == 0 ? "" : " x ", tensor.shape[i]);
  return shape;
}

void PrintText(const GgufFile& file, const absl::StatusOr<ModelConfig>& config, bool tensors) {
  absl::PrintF("%s: GGUF version %d, %d bytes, %d tensors\n", file.name(), file.version(), file.file_bytes(),
               file.tensors().size());
  if (config.ok()) {
    absl::PrintF("%s: %d layers of width %d, %d query and %d KV heads of %d, feed-forward %d, %d tokens, context %d\n",
                 config->architecture, config->layers, config->dim, config->heads, config->kv_heads, config->head_dim,
                 config->ffn_dim, config->vocab, config->context);
  } else {
    absl::PrintF("not supported: %s\n", config.status().message());
  }
  absl::PrintF("\n");
  for (const GgufValue& value : file.metadata()) absl::PrintF("%-44s %s\n", value.key, FormatValue(value));
  if (!tensors) return;
  absl::PrintF("\n");
  for (const GgufTensor& tensor : file.tensors()) {
    absl::PrintF("%-32s %-6s %s\n", tensor.name, GgmlTypeName(tensor.type_id), Shape(tensor));
  }
}

void PrintJson(const GgufFile& file, const absl::StatusOr<ModelConfig>& config, bool tensors) {
  Json json = {{"file", file.name()}, {"version", file.version()}, {"bytes", file.file_bytes()}};
  for (const GgufValue& value : file.metadata()) json["metadata"][std::string(value.key)] = FormatValue(value);
  if (config.ok()) {
    json["config"] = {{"architecture", config->architecture},
                      {"layers", config->layers},
                      {"dim", config->dim},
                      {"heads", config->heads},
                      {"kv_heads", config->kv_heads},
                      {"head_dim", config->head_dim},
                      {"ffn_dim", config->ffn_dim},
                      {"vocab", config->vocab},
                      {"context", config->context}};
  } else {
    json["unsupported"] = std::string(config.status().message());
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (!tensors) break;
    json["tensors"].push_back(
        {{"name", tensor.name}, {"type", GgmlTypeName(tensor.type_id)}, {"shape", Shape(tensor)}});
  }
  absl::PrintF("%s\n", json.dump());
}

}  // namespace

void AddInfo(Command app, Lab& lab) {
  const Command command = app.add_subcommand("info", "Show what a model file says about itself");
  const auto options = std::make_shared<Options>();
  command.add_option("FILE", options->model, "Model file (GGUF), or a folder with config.json and safetensors files")
      .required();
  command.add_flag("--tensors", options->tensors, "List the tensors too");
  command.callback([&lab, options] {
    const absl::StatusOr<GgufFile> file = OpenModel(options->model);
    if (!lab.Check(file.status())) return;
    (lab.json ? PrintJson : PrintText)(*file, ReadConfig(*file), options->tensors);
  });
}

}  // namespace ebb::lab
