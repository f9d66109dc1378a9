// Whole steps of the engine, with random weights of an 8B shape that are made on the device.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/statistics.h"
#include "engine/gpu/blas_lt.h"
#include "engine/gpu/gpu_engine.h"
#include "policies/spec.h"
#include "policies/status.h"
#include "tests/gpu_check/bench.h"

namespace ebb::gpu_check {
namespace {

using Sessions = std::vector<std::unique_ptr<GpuSession>>;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The shape of Llama-3 8B, or a speck of it: what tests/support/make_models.py calls perf-8b.
ModelConfig Shape(const Bench& b, int32_t context) {
  ModelConfig c;
  c.layers = b.tiny() ? 1 : 32;
  c.dim = b.tiny() ? 64 : 4096;
  c.heads = b.tiny() ? 4 : 32;
  c.kv_heads = b.tiny() ? 2 : 8;
  c.head_dim = b.tiny() ? 16 : 128;
  c.ffn_dim = b.tiny() ? 96 : 14336;
  c.vocab = b.tiny() ? 96 : 128256;
  c.context = context;
  c.norm_eps = 1e-5F;
  c.rotary_dims = c.head_dim;
  for (int32_t i = 0; i < c.head_dim / 2; ++i) c.rope_frequencies.push_back(std::pow(500000.0, -2.0 * i / c.head_dim));
  return c;
}

int64_t KvBytes(const ModelConfig& c) { return int64_t{4} * c.layers * c.kv_heads * c.head_dim; }  // of a token, BF16

absl::StatusOr<ValidSpec> Policy(const ModelConfig& c, const PolicySpec& spec) {
  return Resolve(spec,
                 {.trained_context = c.context, .query_heads = c.group(), .layers = c.layers, .kv_heads = c.kv_heads});
}

// Sessions that hold `depth` tokens each.
absl::StatusOr<Sessions> OpenFull(GpuEngine& engine, const PolicySpec& spec, int32_t count, int32_t depth) {
  EBB_ASSIGN(const ValidSpec policy, Policy(engine.config(), spec));
  Sessions sessions;
  for (int32_t i = 0; i < count; ++i) {
    EBB_ASSIGN(std::unique_ptr<GpuSession> session, engine.OpenSession(policy, 1));
    EBB_TRY(session->Pretend(depth));
    sessions.push_back(std::move(session));
  }
  return sessions;
}

// Sessions whose prompt came in blocks, so much longer than their budget that the last ones found it full.
absl::StatusOr<Sessions> OpenAfterPrompt(GpuEngine& engine, const PolicySpec& spec, int32_t count, int32_t block) {
  EBB_ASSIGN(const ValidSpec policy, Policy(engine.config(), spec));
  const std::vector<int32_t> tokens(static_cast<size_t>(block), 1);
  Sessions sessions;
  for (int32_t i = 0; i < count; ++i) {
    EBB_ASSIGN(std::unique_ptr<GpuSession> session, engine.OpenSession(policy, block));
    for (int32_t at = 0; at < *spec.budget + block; at += block) {
      GpuRow row = {.session = session.get(), .tokens = tokens, .want = GpuWant::kToken};
      EBB_TRY(engine.Run({&row, 1}));
    }
    sessions.push_back(std::move(session));
  }
  return sessions;
}

// The median step in which every session brings a token and learns its next, the first few left out. `measures`: who
// leaves and what leaves with them is asked of each.
absl::StatusOr<double> StepSeconds(GpuEngine& engine, const Sessions& sessions, int steps, bool measures = false) {
  std::vector<int32_t> next(sessions.size(), 1);
  std::vector<double> all;
  for (int i = 0; i < steps + 3; ++i) {
    std::vector<GpuRow> rows;
    for (size_t s = 0; s < sessions.size(); ++s) {
      rows.push_back({.session = sessions[s].get(),
                      .tokens = {&next[s], 1},
                      .want = GpuWant::kToken,
                      .tells = measures,
                      .measures = measures});
    }
    const double begin = Now();
    EBB_TRY(engine.Run(rows));
    if (i >= 3) all.push_back(Now() - begin);
    for (size_t s = 0; s < sessions.size(); ++s) next[s] = rows[s].next;
  }
  return bench::Median(all);
}

// Counts what a table's runtime is asked for. One at a time.
struct Waits {
  static inline const gpu::Table* of = nullptr;
  static inline int64_t waits = 0;
  static inline int64_t copies_out = 0;

  static gpu::Table Counted(const gpu::Table& table) {
    of = &table;
    gpu::Table counted = table;
    counted.wait = [](gpu::Stream stream) {
      ++waits;
      return of->wait(stream);
    };
    counted.copy_out = [](void* to, const void* from, int64_t bytes, gpu::Stream stream) {
      ++copies_out;
      return of->copy_out(to, from, bytes, stream);
    };
    return counted;
  }
};

}  // namespace

// The same steps, of sessions from which a token leaves at each and of sessions that keep all.
absl::Status CountWaits(Bench& b) {
  Bench small = {.table = b.table, .size = Size::kTiny, .report = b.report};
  const ModelConfig config = Shape(small, 256);
  const gpu::Table table = Waits::Counted(b.table);
  constexpr int kSteps = 20;
  constexpr int32_t kDepth = 40;
  const auto count = [&](const PolicySpec& spec) -> absl::StatusOr<int64_t> {
    EBB_ASSIGN(const std::unique_ptr<GpuEngine> engine, GpuEngine::OpenRandom(table, config, {.arena_bytes = 8 << 20}));
    EBB_ASSIGN(const Sessions sessions, OpenFull(*engine, spec, 2, kDepth));
    EBB_TRY(StepSeconds(*engine, sessions, 1).status());  // buffers grow, and wait for what uses them
    const int64_t before = Waits::waits + Waits::copies_out;
    EBB_TRY(StepSeconds(*engine, sessions, kSteps).status());
    return Waits::waits + Waits::copies_out - before;
  };
  EBB_ASSIGN(const int64_t evicting, count({.scorer = "h2o", .budget = kDepth}));
  EBB_ASSIGN(const int64_t keeping, count({.scorer = "full"}));
  b.report.rows.push_back({.what = absl::StrFormat("host synchronisations caused by eviction, %d steps", kSteps + 3),
                           .measured = absl::StrFormat("%d waits and copies out", evicting),
                           .against = absl::StrFormat("%d where nobody leaves", keeping),
                           .ratio = static_cast<double>(evicting - keeping),
                           .target = 0,
                           .better = Better::kSmaller});
  return absl::OkStatus();
}

absl::Status MeasureDecode(Bench& b) {
  const int32_t sessions = b.tiny() ? 2 : 32;
  const int32_t budget = b.tiny() ? 40 : 1024;
  const int32_t depth = b.tiny() ? 128 : 16384;
  const int steps = b.tiny() ? 2 : 16;
  const ModelConfig config = Shape(b, depth + gpu::kPageSlots);
  const PolicySpec bounded = {.scorer = "h2o", .budget = budget};
  const int64_t arena = KvBytes(config) * sessions * (depth + 2 * gpu::kPageSlots);
  EBB_ASSIGN(const std::unique_ptr<GpuEngine> engine,
             GpuEngine::OpenRandom(b.table, config, {.arena_bytes = b.tiny() ? 8 << 20 : arena}));
  const auto shape = absl::StrFormat("8B shape, BF16, %d sessions", sessions);
  double full_seconds = 0;
  {
    EBB_ASSIGN(const Sessions full, OpenFull(*engine, {.scorer = "full"}, sessions, depth));
    EBB_ASSIGN(full_seconds, StepSeconds(*engine, full, steps));
  }
  EBB_ASSIGN(const Sessions few, OpenFull(*engine, bounded, sessions, budget));
  EBB_ASSIGN(const double seconds, StepSeconds(*engine, few, steps));
  const double bytes = static_cast<double>(engine->multiplied_bytes(sessions)) +
                       static_cast<double>(KvBytes(config)) * sessions * budget;
  b.report.rows.push_back({.what = absl::StrFormat("decode step, %s, %d slots, replayed, h2o", shape, budget),
                           .measured = absl::StrFormat("%s, %d replays", Time(seconds), engine->replays()),
                           .against = "reading weights, K and V at the copy rate: " + Time(bytes / b.copy_rate),
                           .ratio = bytes / b.copy_rate / seconds,
                           .target = 0.8});
  b.report.rows.push_back({.what = absl::StrFormat("bounded to %d beside full K and V at %d, %s", budget, depth, shape),
                           .measured = Time(seconds),
                           .against = "full " + Time(full_seconds),
                           .ratio = full_seconds / seconds,
                           .target = 3.5});
  EBB_ASSIGN(const double measured, StepSeconds(*engine, few, steps, true));
  b.report.rows.push_back({.what = absl::StrFormat("that step, what leaves each of %d sessions measured", sessions),
                           .measured = Time(measured),
                           .against = "not measured " + Time(seconds),
                           .ratio = measured / seconds,
                           .better = Better::kSmaller});
  const int32_t block = b.tiny() ? 16 : 512;
  EBB_ASSIGN(const Sessions prompted, OpenAfterPrompt(*engine, bounded, sessions, block));
  EBB_ASSIGN(const double after, StepSeconds(*engine, prompted, steps));
  b.report.rows.push_back({.what = absl::StrFormat("that step after prompts in blocks of %d, %d slots", block,
                                                   prompted.front()->slots(GpuSight::kAll)),
                           .measured = Time(after),
                           .against = absl::StrFormat("%d slots that no prompt filled %s", budget + 1, Time(seconds)),
                           .ratio = after / seconds,
                           .better = Better::kSmaller});
  return absl::OkStatus();
}

namespace {

// A prompt in blocks, whole, on an engine of the 8B shape.
class Prompts {
 public:
  static absl::StatusOr<Prompts> Open(const Bench& b, OpenProductLibrary products) {
    Prompts p(b);
    const int64_t arena = KvBytes(p.config_) * (p.length_ + 4 * p.block_);
    EBB_ASSIGN(p.engine_, GpuEngine::OpenRandom(b.table, p.config_,
                                                {.arena_bytes = b.tiny() ? 8 << 20 : arena, .products = products}));
    return p;
  }

  absl::StatusOr<double> Seconds(const PolicySpec& spec) const {
    EBB_ASSIGN(const ValidSpec policy, Policy(config_, spec));
    EBB_ASSIGN(const std::unique_ptr<GpuSession> session, engine_->OpenSession(policy, block_));
    const std::vector<int32_t> tokens(static_cast<size_t>(block_), 1);
    const double begin = Now();
    for (int32_t at = 0; at < length_; at += block_) {
      GpuRow row = {.session = session.get(), .tokens = tokens, .want = GpuWant::kToken};
      EBB_TRY(engine_->Run({&row, 1}));
      if (std::chrono::steady_clock::now() > end_) {
        return absl::DeadlineExceededError(
            absl::StrFormat("no time was left after %d of %d tokens", at + block_, length_));
      }
    }
    return Now() - begin;
  }

  int32_t length() const { return length_; }
  double operations() const {
    const double weights = static_cast<double>(engine_->weight_bytes() - 2 * engine_->embedding_bytes()) / 2;
    return 2 * weights * length_ +
           2.0 * config_.layers * config_.heads * config_.head_dim * static_cast<double>(length_) * length_;
  }

 private:
  explicit Prompts(const Bench& b)
      : end_(b.end), block_(b.tiny() ? 16 : 1024), length_(b.tiny() ? 32 : 8192), config_(Shape(b, length_)) {}

  std::chrono::steady_clock::time_point end_;
  int32_t block_;
  int32_t length_;
  ModelConfig config_;
  std::unique_ptr<GpuEngine> engine_ = {};
};

// Median seconds of the prompt by itself, with the scores of its last query, and with sums over all queries.
struct PromptSeconds {
  double plain = 0, last = 0, sums = 0;
};
// In turns, and none counts before each ran once: the first makes buffers grow.
absl::StatusOr<PromptSeconds> TimePrompts(const Bench& b, const Prompts& prompts) {
  const std::array<PolicySpec, 3> specs = {PolicySpec{.scorer = "full"},
                                           PolicySpec{.scorer = "tova", .budget = prompts.length()},
                                           PolicySpec{.scorer = "h2o", .budget = prompts.length()}};
  std::array<std::vector<double>, 3> seconds;
  for (int turn = 0; turn < (b.tiny() ? 2 : 4); ++turn) {
    for (size_t i = 0; i < specs.size(); ++i) {
      const absl::StatusOr<double> took = prompts.Seconds(specs[i]);
      const bool has_all = !seconds.back().empty();
      if (absl::IsDeadlineExceeded(took.status()) && has_all) break;  // those that there are count
      EBB_TRY(took.status());
      if (turn > 0) seconds[i].push_back(*took);
    }
  }
  return PromptSeconds{bench::Median(seconds[0]), bench::Median(seconds[1]), bench::Median(seconds[2])};
}

// What a prompt, `shape`, takes beside the dense product, and its scores beside it.
void ReportPrompts(Bench& b, const std::string& shape, double operations, const PromptSeconds& took) {
  b.report.rows.push_back({.what = shape,
                           .measured = Time(took.plain) + ", " + Rate(operations / took.plain, "FLOP/s"),
                           .against = Dense(b),
                           .ratio = operations / took.plain / b.dense_rate,
                           .target = b.dense_is_own ? std::nullopt : std::optional(0.6)});
  b.report.rows.push_back({.what = shape + ", scores of the last query",
                           .measured = Time(took.last),
                           .against = "without " + Time(took.plain),
                           .ratio = took.last / took.plain,
                           .target = 1.03,
                           .better = Better::kSmaller});
  b.report.rows.push_back({.what = shape + ", sums over all queries",
                           .measured = Time(took.sums),
                           .against = "without " + Time(took.plain),
                           .ratio = took.sums / took.plain,
                           .target = 1.10,
                           .better = Better::kSmaller});
}

}  // namespace

absl::StatusOr<Peers> PromptSecondsByLibrary(Bench& b) {
  EBB_ASSIGN(const Prompts prompts, Prompts::Open(b, OpenBlasLt));
  EBB_ASSIGN(const PromptSeconds took, TimePrompts(b, prompts));
  return Peers{
      {"prompt_by_library", took.plain}, {"prompt_by_library_last", took.last}, {"prompt_by_library_sums", took.sums}};
}

absl::Status MeasurePrefill(Bench& b) {
  EBB_ASSIGN(const Prompts prompts, Prompts::Open(b, NoProductLibrary));
  EBB_ASSIGN(const PromptSeconds own, TimePrompts(b, prompts));
  const auto shape = absl::StrFormat("prompt of %d, 8B shape, BF16", prompts.length());
  ReportPrompts(b, shape, prompts.operations(), own);
  const PromptSeconds library = {b.Peer("prompt_by_library"), b.Peer("prompt_by_library_last"),
                                 b.Peer("prompt_by_library_sums")};
  if (library.plain > 0 && library.last > 0 && library.sums > 0) {
    ReportPrompts(b, shape + ", products by the maker's library", prompts.operations(), library);
  } else {
    b.report.missing.push_back("prompts whose products the maker's library makes: " + b.WhyNot("prompt_by_library"));
  }
  return absl::OkStatus();
}

namespace {

struct Part {
  const char* name;
  absl::Status (*measure)(Bench&);
  bool stands_beside_ceilings = true;
};
constexpr Part kParts[] = {{"ceilings", MeasureCeilings, false},
                           {"attention", MeasureAttention},
                           {"attention of prompts", MeasurePromptAttention},
                           {"the update in place", MeasureUpdate},
                           {"selection", MeasureSelection, false},
                           {"what decides who leaves", MeasureScores},
                           {"products", MeasureLinear},
                           {"the largest logits", MeasureLargest},
                           {"the mass of logits", MeasureMass},
                           {"host synchronisations", CountWaits, false},
                           {"decode steps", MeasureDecode},
                           {"prompts", MeasurePrefill}};

// A ratio to a ceiling that was not measured is none.
absl::Status Measure(const Part& part, Bench& b) {
  if (!part.stands_beside_ceilings || (b.copy_rate > 0 && b.dense_rate > 0)) return part.measure(b);
  return absl::FailedPreconditionError("the ceilings beside which it stands were not measured");
}

std::string NotReached(const Part& part) {
  return absl::StrFormat("%s: the program was ended before it came there", part.name);
}

}  // namespace

std::vector<std::string> PartNames() {
  std::vector<std::string> names;
  for (const Part& part : kParts) names.push_back(part.name);
  return names;
}

void AnnounceAll(Report& report) {
  for (const Part& part : kParts) report.missing.push_back(NotReached(part));
}

void MeasureAll(Bench& b) {
  for (const Part& part : kParts) {
    const bool is_asked_for = b.parts.empty() || std::ranges::find(b.parts, part.name) != b.parts.end();
    if (!is_asked_for && part.measure != MeasureCeilings) {  // by which others are judged
      std::erase(b.report.missing, NotReached(part));
      b.report.missing.push_back(absl::StrFormat("%s: not asked for", part.name));
      continue;
    }
    if (std::chrono::steady_clock::now() > b.end) {
      std::erase(b.report.missing, NotReached(part));
      b.report.missing.push_back(absl::StrFormat("%s: no time was left", part.name));
      continue;
    }
    const size_t before = b.report.rows.size();
    const absl::Status measured = Measure(part, b);
    std::erase(b.report.missing, NotReached(part));
    if (!measured.ok()) {
      b.report.missing.push_back(
          absl::StrFormat("%s%s: %s", part.name, b.report.rows.size() > before ? ", in part" : "", measured.message()));
    }
    b.save();
  }
}

}  // namespace ebb::gpu_check
