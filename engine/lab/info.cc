#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "engine/lab/grid.h"
#include "engine/lab/lab.h"
#include "engine/memory_plan.h"
#include "engine/model/architecture.h"
#include "engine/model/ggml_types.h"
#include "engine/model/gguf.h"
#include "engine/model/hub_model.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct InfoOptions {
  std::string model = {};
  bool tensors = false;
  int32_t sessions = 0;  // 0: nothing is said of memory
  int32_t budget = 0;    // 0: the trained context
  KvType kv_type = KvType::kBf16;
};

absl::StatusOr<MemoryPlan> PlanOf(const GgufFile& file, const InfoOptions& options) {
  EBB_ASSIGN(const ModelConfig config, ReadConfig(file));
  EBB_ASSIGN(const Weights weights, FindWeights(file, config));
  PolicySpec spec = {.kv_type = options.kv_type};
  if (options.budget > 0) spec.budget = options.budget;
  EBB_ASSIGN(const ValidSpec policy, Resolve(spec, LimitsOf(config)));
  return PlanMemory(file, config, weights, {.sessions = options.sessions, .session = {.policy = policy}});
}

void PrintPlan(const MemoryPlan& plan, const InfoOptions& options) {
  const auto line = [](const char* what, int64_t bytes, const std::string& of) {
    absl::PrintF("%-10s %14d bytes  %s\n", what, bytes, of);
  };
  absl::PrintF("\nIn memory, on a CPU:\n");
  line("weights", plan.weights, "repacked");
  if (plan.copied > 0) line("copied", plan.copied, "of the folder's tensors, until all are repacked");
  line("caches", plan.caches,
       absl::StrFormat("%d sessions of %d pages of %d bytes: the least cache.arena", options.sessions,
                       plan.session_pages, plan.page_bytes));
  line("scratch", plan.scratch, absl::StrFormat("of a step of %d tokens", MemoryQuestion().step_tokens_max));
  line("together", plan.total(), "");
  line("mapped", plan.mapped, "of the file, the embedding: what is read of it, as long as nobody needs the memory");
}

Json JsonOf(const MemoryPlan& plan) {
  return {{"weights", plan.weights},
          {"copied", plan.copied},
          {"mapped", plan.mapped},
          {"page_bytes", plan.page_bytes},
          {"session_pages", plan.session_pages},
          {"caches", plan.caches},
          {"scratch", plan.scratch},
          {"total", plan.total()}};
}

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

void PrintJson(const GgufFile& file, const absl::StatusOr<ModelConfig>& config, bool tensors, const MemoryPlan* plan) {
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
  if (plan != nullptr) json["memory"] = JsonOf(*plan);
  absl::PrintF("%s\n", json.dump());
}

}  // namespace

void AddInfo(Command app, Lab& lab) {
  const Command command = app.add_subcommand("info", "Show what a model file says about itself");
  const auto options = std::make_shared<InfoOptions>();
  command.add_option("FILE", options->model, "Model file (GGUF), or a folder with config.json and safetensors files")
      .required();
  command.add_flag("--tensors", options->tensors, "List the tensors too");
  const Flag sessions =
      command.add_option("--sessions", options->sessions, "Say what Ebb takes of memory for so many sessions at once")
          .range(1, 1000000);
  command.add_option("--budget", options->budget, "Tokens that each of them keeps; default: the trained context")
      .range(1, 1 << 24)
      .needs(sessions);
  AddKvTypeOption(command, options->kv_type).needs(sessions);
  command.callback([&lab, options] {
    const absl::StatusOr<GgufFile> file = OpenModel(options->model);
    if (!lab.Check(file.status())) return;
    std::optional<MemoryPlan> plan;
    if (options->sessions > 0) {
      const absl::StatusOr<MemoryPlan> made = PlanOf(*file, *options);
      if (!lab.Check(made.status())) return;
      plan = *made;
    }
    if (lab.json) return PrintJson(*file, ReadConfig(*file), options->tensors, plan ? &*plan : nullptr);
    PrintText(*file, ReadConfig(*file), options->tensors);
    if (plan) PrintPlan(*plan, *options);
  });
}

}  // namespace ebb::lab
