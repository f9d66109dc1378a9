#include "bench/model_run.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "engine/lab/policy_text.h"
#include "engine/model/architecture.h"
#include "engine/snapshot/session_image.h"
#include "engine/snapshot/snapshot_file.h"
#include "policies/status.h"

namespace ebb::bench {
namespace {

const std::map<std::string, KvType> kTypes = {{"f32", KvType::kF32},
                                              {"bf16", KvType::kBf16},
                                              {"f16", KvType::kF16},
                                              {"int8", KvType::kInt8},
                                              {"fp8", KvType::kFp8}};

const std::map<std::string, Accuracy> kAccuracies = {{"exact", Accuracy::kExact}, {"fast", Accuracy::kFast}};

// One token through a matrix.
Work Through(const GgufTensor& tensor) {
  Work work = {.bytes = static_cast<double>(tensor.data.size())};
  const double operations = 2 * static_cast<double>(tensor.rows()) * static_cast<double>(tensor.cols());
  if (tensor.dims < 2 || !tensor.type) return work;
  if (*tensor.type == DType::kF32 || *tensor.type == DType::kF16) {
    work.fma = operations;
  } else if (*tensor.type == DType::kBf16) {
    work.bf16 = operations;
  } else {
    work.int8 = operations;
  }
  return work;
}

}  // namespace

Work ModelWork::Step(double tokens, double logits) const {
  Work work = body * tokens;
  work += head * logits;
  work.bytes = body.bytes + (logits > 0 ? head.bytes : 0);
  return work;
}

absl::StatusOr<ModelWork> WorkOf(const GgufFile& file) {
  EBB_ASSIGN(const ModelConfig config, ReadConfig(file));
  const bool tied = file.FindTensor("output.weight") == nullptr;
  ModelWork work;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == (tied ? "token_embd.weight" : "output.weight")) {
      work.head += Through(tensor);
    } else if (tensor.name != "token_embd.weight") {
      work.body += Through(tensor);
    }
  }
  // A dot product with K and a weighted sum of V.
  work.attention_per_pair = 4.0 * config.head_dim * config.heads * config.layers;
  return work;
}

void AddModelOptions(Command command, ModelOptions& options) {
  command.add_option("MODEL", options.model, "Model file (GGUF)").required();
  command.add_option("--isa", options.isa,
                     "Instruction set: scalar, avx2 or avx512; default: EBB_ISA, else the best here");
  command
      .add_choice("--accuracy", options.accuracy, kAccuracies, "Of the matrices' products: exact or fast",
                  {.ignore_case = false})
      .default_str("fast");
  command.add_choice("--kv-dtype", options.kv_type, kTypes, "Type of K and V: f32, bf16, f16, int8 or fp8")
      .default_str("bf16");
}

void AddKvTypes(Command command, std::vector<KvType>& types) {
  std::string names;
  for (const KvType type : types) names += (names.empty() ? "" : ",") + std::string(NameOf(type));
  command.add_choice("--kv-dtype", types, kTypes, "Types of K and V, with commas: f32, bf16, f16, int8, fp8")
      .delimiter(',')
      .default_str(names);
}

absl::StatusOr<ValidSpec> OpenModel::Policy(const std::string& policy, int32_t slots, KvType kv_type) const {
  EBB_ASSIGN(lab::NamedPolicy named, lab::ParsePolicy(policy));
  named.spec.budget = slots;
  named.spec.kv_type = kv_type;
  return Resolve(named.spec, LimitsOf(engine->config()));
}

double OpenModel::TokenBytes(KvType kv_type) const {
  const ModelConfig& config = engine->config();
  const KvFormat format = {.type = kv_type, .head_dim = config.head_dim};
  return static_cast<double>(format.slot_bytes()) * config.layers * config.kv_heads;
}

absl::StatusOr<OpenModel> OpenForBench(const Common& common, const ModelOptions& options) {
  OpenModel open;
  EBB_ASSIGN(const GgufFile file, GgufFile::Open(options.model));
  EBB_ASSIGN(open.work, WorkOf(file));
  EBB_ASSIGN(const ModelConfig config, ReadConfig(file));
  // A block beyond the slots, and in each lane what is left of its last page.
  const double slots = std::max(options.tokens_max, options.slots) + kStepTokens + 128.0;
  const double lanes = static_cast<double>(config.layers) * config.kv_heads * options.sessions;
  const KvFormat widest = {.type = options.kv_type, .rope_cache = RopeCache::kRk, .head_dim = config.head_dim};
  const double arena = static_cast<double>(widest.slot_bytes()) * lanes * slots;
  std::function<std::unique_ptr<Ops>(std::unique_ptr<Ops>)> between;
  if (options.shifts) {
    between = [&](std::unique_ptr<Ops> ops) { return MakeShiftingOps(std::move(ops), *options.shifts); };
  }
  EBB_ASSIGN(open.engine, Engine::Open({.model_path = options.model,
                                        .threads = common.Threads(),
                                        .arena_bytes = static_cast<int64_t>(arena) + (int64_t{64} << 20),
                                        .step_tokens_max = options.step_tokens,
                                        .accuracy = options.accuracy,
                                        .isa = options.isa,
                                        .between = between}));
  return open;
}

absl::StatusOr<std::unique_ptr<Sessions>> Sessions::Open(Engine& engine, const ValidSpec& policy, int32_t count,
                                                         int32_t block, uint64_t seed) {
  std::unique_ptr<Sessions> sessions(new Sessions(engine, seed));
  sessions->block_ = block;
  for (int32_t i = 0; i < count; ++i) {
    EBB_ASSIGN(auto session, engine.OpenSession({.policy = policy, .block_size_max = block}));
    sessions->sessions_.push_back(std::move(session));
  }
  return sessions;
}

std::vector<int32_t> Sessions::Tokens(int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = random_.Uniform(0, engine_.config().vocab - 1);
  return tokens;
}

void Sessions::Fill(int32_t tokens) { FillFirst(sessions_.size(), tokens); }

void Sessions::FillFirst(size_t count, int32_t tokens) {
  for (;;) {
    std::vector<std::vector<int32_t>> texts;
    std::vector<BatchRow> rows;
    texts.reserve(sessions_.size());
    int32_t room = engine_.step_tokens_max();
    for (const auto& session : std::span(sessions_).first(count)) {
      const int32_t missing = tokens - static_cast<int32_t>(session->log().size());
      const int32_t block = std::min({missing, block_, room});
      if (block <= 0) continue;
      room -= block;
      texts.push_back(Tokens(block));
      const bool last = block == missing;
      rows.push_back({.session = session.get(),
                      .tokens = texts.back(),
                      .want = last ? Want::kLast : Want::kNone,
                      .prompt_ends = last});
    }
    if (rows.empty()) return;
    engine_.Run(rows);
  }
}

absl::Status Sessions::FillAlike(int32_t tokens) {
  FillFirst(1, tokens);
  SnapshotWriter writer;
  EBB_TRY(engine_.Save(*sessions_.front(), writer));
  std::string bytes = writer.Finish();
  SealSnapshot(bytes);
  EBB_ASSIGN(const auto records, ReadSnapshot(std::as_bytes(std::span(bytes))));
  for (auto& session : std::span(sessions_).subspan(1)) {
    EBB_ASSIGN(SessionImage image, ReadSession(records, engine_.image_limits()));
    session.reset();  // its pages first
    EBB_ASSIGN(session, engine_.Reopen(image));
  }
  return absl::OkStatus();
}

double Sessions::Step(int32_t count) {
  const std::vector<int32_t> tokens = Tokens(count);
  std::vector<BatchRow> rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    rows.push_back({.session = sessions_[i].get(), .tokens = std::span(tokens).subspan(i, 1), .want = Want::kLast});
  }
  const double begin = Now();
  engine_.Run(rows);
  return Now() - begin;
}

Sessions::VerifyTimes Sessions::Verify(int32_t count, int32_t tokens) {
  const std::vector<int32_t> drafts = Tokens(count * tokens);
  std::vector<BatchRow> rows;
  for (int32_t i = 0; i < count; ++i) {
    rows.push_back({.session = sessions_[static_cast<size_t>(i)].get(),
                    .tokens = std::span(drafts).subspan(static_cast<size_t>(i) * static_cast<size_t>(tokens),
                                                        static_cast<size_t>(tokens)),
                    .want = Want::kAll,
                    .draft = true});
  }
  const double begin = Now();
  engine_.Run(rows);
  const double ran = Now();
  for (BatchRow& row : rows) {
    BatchRow kept = {.session = row.session};
    engine_.Accept(kept, tokens);
  }
  return {.run = ran - begin, .keep = Now() - ran};
}

double Sessions::LiveTokens(int32_t count) const {
  double live = 0;
  for (int32_t i = 0; i < count; ++i) live += sessions_[static_cast<size_t>(i)]->cache_length();
  return live;
}

}  // namespace ebb::bench
