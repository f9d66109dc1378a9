#include "engine/engine.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/cache/page_pool.h"
#include "engine/cache_work.h"
#include "engine/describe_cache.h"
#include "engine/edit_session.h"
#include "engine/evict_request.h"
#include "engine/machine.h"
#include "engine/model/calibration_file.h"
#include "engine/model/fingerprint.h"
#include "engine/model/gguf.h"
#include "engine/model/head_gates_file.h"
#include "engine/model/hub_model.h"
#include "engine/model/model_path.h"
#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/ops_cpu.h"
#include "engine/ops/cpu/pack_file.h"
#include "engine/parallel.h"
#include "engine/policy_change.h"
#include "engine/policy_swap.h"
#include "engine/prefix_cache.h"
#include "engine/session_digest.h"
#include "engine/session_on_engine.h"
#include "engine/session_shape.h"
#include "engine/snapshot/session_image.h"
#include "engine/snapshot/session_work.h"
#include "engine/step_evictions.h"
#include "engine/steps_sum.h"
#include "engine/transformer.h"
#include "policies/check.h"
#include "policies/shortest.h"
#include "policies/status.h"

namespace ebb {
namespace {

// What the file says about itself but this engine could not hold to.
absl::Status CheckModel(const GgufFile& file, const ModelConfig& config, const Tokenizer& tokenizer) {
  if (config.head_dim > cpu::kMaxHeadDim) {
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("%s: heads of %d components; at most %d are supported", file.name(), config.head_dim,
                                  cpu::kMaxHeadDim),
                  {.reason = "UNSUPPORTED_MODEL_FEATURE"});
  }
  if (tokenizer.size() != config.vocab) {
    return Refuse(
        absl::StatusCode::kDataLoss,
        absl::StrFormat("%s: tokenizer.ggml.tokens: expected one for each of the embedding's %d rows, found %d",
                        file.name(), config.vocab, tokenizer.size()),
        {.reason = "MODEL_DAMAGED"});
  }
  return absl::OkStatus();
}

// The weights of a folder say nothing of how its texts are cut.
absl::Status CheckHasTokenizer(const GgufFile& file) {
  if (!IsModelFolder(file.name()) || file.FindValue("tokenizer.ggml.model") != nullptr) return absl::OkStatus();
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("%s: no tokenizer that is read lies in the folder; `ebb-lab convert %s --tokenizer "
                                "FILE.gguf` makes a file with one",
                                file.name(), file.name()),
                {.reason = "UNSUPPORTED_TOKENIZER", .metadata = {{"file", file.name()}}});
}

absl::Status CheckOptions(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return RefuseField("THREADS_OUT_OF_RANGE", "model.threads",
                       absl::StrFormat("%d is not in 0..%d", options.threads, kThreadsMax));
  }
  if (options.step_tokens_max < 1 || options.step_tokens_max > 65536) {
    return RefuseField("STEP_TOKENS_OUT_OF_RANGE", "scheduling.step_tokens_max",
                       absl::StrFormat("%d is not in 1..65536", options.step_tokens_max));
  }
  if (!(options.prefix_share >= 0 && options.prefix_share <= 1)) {
    return RefuseField("OUT_OF_RANGE", "cache.prefix_share",
                       absl::StrFormat("%s is not in [0, 1]", Shortest(options.prefix_share)));
  }
  if (options.arena_bytes < 0) {
    return RefuseField("NEGATIVE_VALUE", "cache.arena", absl::StrFormat("%d is below 0", options.arena_bytes));
  }
  return absl::OkStatus();
}

// The file that keeps the model's packed weights; null where none does.
std::unique_ptr<cpu::PackFile> FindPacks(const EngineOptions& options, const GgufFile& file,
                                         const ModelConfig& config) {
  if (options.pack_cache.empty()) return nullptr;
  uint64_t changed = 0;  // of every part
  for (const std::string& part : file.parts()) {
    std::error_code unknown;  // what cannot be told is the same each time
    const auto time = std::filesystem::last_write_time(part, unknown).time_since_epoch().count();
    changed = changed * 31 + static_cast<uint64_t>(time);
  }
  return std::make_unique<cpu::PackFile>(
      PackPath(options.pack_cache, options.model_path),
      cpu::PackedModel{
          .fingerprint = config.fingerprint, .bytes = file.file_bytes(), .changed = static_cast<int64_t>(changed)});
}

absl::Status RunToEnd(CacheWork& work) {
  for (bool more = true; more;) {
    EBB_ASSIGN(more, work.Advance(std::numeric_limits<int32_t>::max()));
  }
  return absl::OkStatus();
}

class EngineOnOps final : public Engine {
 public:
  EngineOnOps(const EngineOptions& options, GgufFile file, ModelConfig config, const Weights& weights,
              std::unique_ptr<const Tokenizer> tokenizer, std::unique_ptr<cpu::PackFile> packs,
              std::unique_ptr<Ops> ops)
      : options_(options),
        file_(std::move(file)),
        config_(std::move(config)),
        tokenizer_(std::move(tokenizer)),
        pack_file_(std::move(packs)),
        ops_(std::move(ops)),
        rope_(MakeRope(config_)),
        transformer_(config_, weights, *ops_),
        evictions_(device()) {
    fingerprint_ = absl::StrFormat("%s %s %s", std::filesystem::path(file_.name()).filename().string(),
                                   config_.fingerprint, arithmetic());
    if (pack_file_ != nullptr) packs_ = pack_file_->Finish();
    const std::array read_in_place = {weights.embedding.data, weights.positions.data};
    file_.DropCopies(read_in_place);  // of the rest there are packed ones now
  }

  absl::Status MakeArena() {
    const int64_t usable = UsableMemory();  // 0: unknown
    const int64_t bytes = options_.arena_bytes > 0 ? options_.arena_bytes : usable / 2;
    // The system promises more than it has, and ends who takes it at its word: an arena that does not fit is found out
    // here, not by its last session.
    if (usable > 0 && bytes > usable) {
      return Refuse(
          absl::StatusCode::kUnavailable,
          absl::StrFormat("cache.arena: %d bytes are asked for, and %d are left beside the model", bytes, usable),
          {.reason = "ARENA_UNAVAILABLE", .field = "cache.arena"});
    }
    EBB_ASSIGN(pool_, PagePool::Create(bytes, PageBytes(config_.head_dim)));
    const auto kept_max = static_cast<int64_t>(options_.prefix_share * static_cast<double>(pool_->pages_total()));
    prefixes_.emplace(*pool_, kept_max, fingerprint_);
    return absl::OkStatus();
  }

  const ModelConfig& config() const override { return config_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  std::string fingerprint() const override { return fingerprint_; }
  const PackReport& packs() const override { return packs_; }
  Parallel& host_threads() const override { return ops_->host_threads(); }
  int32_t step_tokens_max() const override { return options_.step_tokens_max; }
  EngineMemory memory() const override {
    return {.page_bytes = pool_->page_bytes(),
            .pages_total = pool_->pages_total(),
            .pages_reserved = pool_->pages_total() - pool_->pages_free(),
            .pages_shared = pool_->pages_shared(),
            .pages_promised = pool_->pages_promised(),
            .pages_spared = pool_->pages_spared(),
            .pages_copied = pool_->pages_copied(),
            .pages_kept = pool_->pages_kept(),
            .weight_bytes = transformer_.weight_bytes()};
  }

  FreedPages FreedBy(std::span<const Session* const> sessions) const override {
    std::vector<const PageLease*> leases;
    std::vector<size_t> ends;
    for (const Session* const session : sessions) {
      static_cast<const SessionOnEngine*>(session)->cache().ListLeases(leases);
      ends.push_back(leases.size());
    }
    const PagePool::Freed freed = pool_->FreedBy(leases);
    FreedPages pages = {.pages = freed.pages};
    auto begin = freed.by.begin();
    for (const size_t end : ends) {
      const auto next = freed.by.begin() + static_cast<std::ptrdiff_t>(end);
      pages.by.push_back(std::find(begin, next, true) != next);
      begin = next;
    }
    return pages;
  }

  absl::StatusOr<int64_t> PagesFor(const SessionOptions& options) const override {
    EBB_ASSIGN(const CacheShape shape, ShapeFor(options, Prompt::kAhead, limits()));
    return shape.pages();
  }

  absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionOptions& options) override {
    EBB_ASSIGN(const CacheShape shape, ShapeFor(options, Prompt::kAhead, limits()));
    EBB_ASSIGN(PageLease lease, pool_->Reserve(shape.pages()));
    SessionCache cache(shape, std::move(lease), options.policy);
    return std::make_unique<SessionOnEngine>(options.policy, std::move(cache), options.block_size_max,
                                             LengthLimit(options.policy, Prompt::kAhead, limits()));
  }

  absl::StatusOr<Fork> ForkSession(Session& session, const ForkOptions& options) override {
    EBB_TRY(Of(session).CheckSettled());
    std::unique_ptr<SessionOnEngine> branch = Of(session).Fork();
    EBB_TRY(branch->cache().ReserveShared(*pool_, options.reserve_copies));
    std::optional<PolicySwap> swap;
    if (options.policy) {
      // What it moves it takes from promises of its own; what it frees needs new ones.
      EBB_ASSIGN(swap, SetPolicy(*branch, *options.policy));
      EBB_TRY(branch->cache().ReserveShared(*pool_, options.reserve_copies));
    }
    return Fork{.session = std::move(branch), .swap = std::move(swap)};
  }

  void KeepPrefix(const Session& session, std::string_view tenant, int32_t block_size) override {
    prefixes_->Keep(static_cast<const SessionOnEngine&>(session),
                    {.tenant = tenant, .block_size = block_size, .limits = LimitsOf(config_)});
  }

  int32_t BeginWithPrefix(Session& session, std::string_view tenant, std::span<const int32_t> prompt,
                          int32_t block_size) override {
    return prefixes_->Take(Of(session), {.tenant = tenant, .block_size = block_size, .limits = LimitsOf(config_)},
                           prompt);
  }

  absl::Status OwnPages(const BatchRow& row) override {
    SessionOnEngine& session = Of(*row.session);
    if (session.edit_left() > 0) return absl::OkStatus();  // they were its own before it began
    const auto tokens = static_cast<int32_t>(row.tokens.size());
    // Who is evicted between two accepted tokens leaves a slot to the next, wherever it is.
    const int32_t steps = row.draft ? std::max(0, tokens - session.steps_to_eviction()) : 0;
    return session.cache().OwnNext(*pool_, tokens, steps);
  }

  absl::Status OwnAllPages(Session& session) override { return Of(session).cache().OwnAll(*pool_); }

  void Run(std::span<BatchRow> rows) override {
    Seat(rows);
    evictions_.Begin(rows);
    const std::span<const float> logits =
        transformer_.Forward(sequences_, [this](size_t row, int32_t layer, int32_t head, int32_t thread) {
          evictions_.LaneDone(row, layer, head, thread);
        });
    size_t at = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t wanted = (rows[i].tokens.size() - sequences_[i].logits_from) * config_.vocab;
      rows[i].logits = logits.subspan(at, wanted);
      rows[i].facts = {};
      at += wanted;
      rows[i].status = rows[i].prompt_ends ? Of(*rows[i].session).EndPrompt() : absl::OkStatus();
      if (rows[i].draft) Of(*rows[i].session).UnseatDraft();
      if (rows[i].session->edit_left() > 0) CloseEditStep(device(), Of(*rows[i].session));
    }
    evictions_.Finish(rows);
  }

  absl::StatusOr<std::vector<float>> TakeLogits(Session& session) override {
    return std::exchange(Of(session).kept_logits(), {});
  }

  void Accept(BatchRow& row, int32_t count) override {
    SessionOnEngine& session = Of(*row.session);
    const Draft draft = session.TakeDraft();
    EBB_CHECK(count >= 0);
    EBB_CHECK(count <= static_cast<int32_t>(draft.tokens.size()));
    StepsSum sum;
    for (int32_t i = 0; i < count; ++i) {
      session.Keep(draft, i, *ops_);
      transformer_.Observe(SequenceOf(session, session.log().last(1)), session.last_queries());
      evictions_.Begin({&row, 1});
      evictions_.Finish({&row, 1});
      sum.Add(row);
    }
    session.cache().ForgetSpare();
    sum.Write(session.cache_length(), row);
  }

  absl::StatusOr<EditPlan> PlanEdit(const Session& session, const EditRequest& request) const override {
    return PlanEditOf(static_cast<const SessionOnEngine&>(session), request);
  }

  void BeginEdit(Session& session, const EditPlan& plan) override { BeginEditOf(device(), Of(session), plan); }

  void AbandonEdit(Session& session) override { Of(session).AbandonEdit(); }

  void Rewind(Session& session, int32_t tokens) override {
    EBB_CHECK(session.CheckSettled().ok());
    EBB_CHECK(tokens >= 1);
    EBB_CHECK(tokens <= static_cast<int32_t>(session.log().size()));
    Of(session).Rewind(tokens);
  }

  uint64_t Digest(const Session& session) const override {
    return DigestOf(static_cast<const SessionOnEngine&>(session), *ops_);
  }

  absl::StatusOr<std::unique_ptr<SaveWork>> BeginSave(const Session& session) const override {
    EBB_TRY(session.CheckSettled());
    return BeginSaveOf(static_cast<const SessionOnEngine&>(session), image_limits());
  }

  ImageLimits image_limits() const override {
    return {.engine = limits(), .pages_total = pool_->pages_total(), .arithmetic = arithmetic()};
  }

  absl::StatusOr<std::unique_ptr<ReopenWork>> BeginReopen(SessionImage& image) override {
    EBB_ASSIGN(PageLease lease, pool_->Reserve(image.pages()));
    return BeginReopenOf(image, std::move(lease), ops_->host_threads());
  }

  absl::StatusOr<std::unique_ptr<PolicyWork>> BeginSetPolicy(Session& session, const ValidSpec& policy) override {
    return PolicyChange::Begin(device(), limits(), *pool_, Of(session), policy);
  }

  absl::StatusOr<std::unique_ptr<EvictWork>> BeginEvict(Session& session, const EvictRequest& request) override {
    return BeginEvictOf(request, device(), config_.calibration, Of(session));
  }

  absl::StatusOr<std::unique_ptr<DescribeWork>> BeginDescribe(const Session& session, std::optional<int32_t> layer,
                                                              std::optional<int32_t> head) const override {
    return BeginDescribeOf(device(), static_cast<const SessionOnEngine&>(session), layer, head);
  }

  absl::Status ShiftPositions(Session& session, int32_t from, int32_t delta) override {
    EBB_TRY(Of(session).CheckSettled());
    return Of(session).ShiftPositions(from, delta);
  }

  absl::StatusOr<int32_t> RemovePositions(Session& session, int32_t start, int32_t end) override {
    if (start < 0 || start > end) {
      return RefuseField("RANGE_EMPTY", "range", absl::StrFormat("[%d, %d) is no range of positions", start, end));
    }
    SessionOnEngine& of = Of(session);
    EBB_TRY(of.CheckSettled());
    int32_t most = 0;
    std::vector<int32_t> slots;
    for (SlotMap& map : of.cache().maps()) {
      slots.clear();
      for (int32_t slot = 0; slot < map.end(); ++slot) {
        const int32_t position = map.position()[slot];
        if (position >= 0 && position >= start && position < end) slots.push_back(slot);
      }
      map.Free(slots);
      most = std::max(most, static_cast<int32_t>(slots.size()));
    }
    of.CountEvicted(most);
    return most;
  }

 private:
  static SessionOnEngine& Of(Session& session) { return static_cast<SessionOnEngine&>(session); }

  std::string arithmetic() const {
    return absl::StrFormat("%s%s%s", ops_->fingerprint(), options_.beside.empty() ? "" : " ", options_.beside);
  }

  EngineLimits limits() const {
    return {.model = &config_, .page_bytes = pool_->page_bytes(), .step_tokens_max = options_.step_tokens_max};
  }

  // Appends every row's tokens to its session and lays out the step.
  void Seat(std::span<BatchRow> rows) {
    sequences_.clear();
    size_t tokens = 0;
    for (BatchRow& row : rows) {
      SessionOnEngine& session = Of(*row.session);
      const auto count = static_cast<int32_t>(row.tokens.size());
      EBB_CHECK(std::none_of(rows.data(), &row, [&](const BatchRow& other) { return other.session == row.session; }));
      EBB_CHECK(session.edit_left() > 0 || session.CanAppend(count).ok());
      for (const int32_t token : row.tokens) EBB_CHECK(token >= 0 && token < config_.vocab);
      tokens += row.tokens.size();
      if (row.draft) {
        EBB_CHECK(!row.prompt_ends);
        sequences_.push_back(SequenceOf(session, session.SeatDraft(row.tokens)));
      } else if (session.edit_left() > 0) {
        EBB_CHECK(!row.prompt_ends);
        session.SeatEdit(row.tokens);
        sequences_.push_back(SequenceOf(session, row.tokens));
      } else {
        session.Append(row.tokens);
        sequences_.push_back(SequenceOf(session, session.log().last(count)));
      }
      EBB_CHECK(session.cache().OwnsPlaced());
      sequences_.back().logits_from = row.want == Want::kAll ? 0 : row.want == Want::kLast ? count - 1 : count;
    }
    EBB_CHECK(tokens > 0);
    EBB_CHECK(static_cast<int64_t>(tokens) <= options_.step_tokens_max);
  }

  // Tokens of the session's log, seated.
  static Sequence SequenceOf(SessionOnEngine& session, std::span<const int32_t> tokens) {
    return {.cache = &session.cache(),
            .policy = &session.policy(),
            .tokens = tokens,
            .log_tokens = static_cast<int32_t>(session.log().size()),
            .queries_from = static_cast<int32_t>(tokens.size()) - 1,
            .queries = &session.last_queries()};
  }

  static Sequence SequenceOf(SessionOnEngine& session, Draft& draft) {
    return {.cache = &session.cache(),
            .policy = &session.policy(),
            .tokens = draft.tokens,
            .log_tokens = static_cast<int32_t>(session.log().size() + draft.tokens.size()),
            .queries = &draft.queries,
            .observed = false};
  }

  Device device() const { return {.ops = ops_.get(), .rope = &rope_, .rope_view = transformer_.rope()}; }

  EngineOptions options_;
  GgufFile file_;  // embedding and learned positions are read in place
  ModelConfig config_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<cpu::PackFile> pack_file_;
  PackReport packs_ = {};
  std::unique_ptr<Ops> ops_;
  Rope rope_;
  Transformer transformer_;
  std::unique_ptr<PagePool> pool_ = {};
  std::optional<PrefixCache> prefixes_ = {};
  std::string fingerprint_ = {};
  StepEvictions evictions_;
  std::vector<Sequence> sequences_ = {};
};

}  // namespace

absl::StatusOr<PolicySwap> Engine::SetPolicy(Session& session, const ValidSpec& policy) {
  EBB_ASSIGN(const auto work, BeginSetPolicy(session, policy));
  EBB_TRY(RunToEnd(*work));
  return work->Commit();
}

absl::StatusOr<PolicySwap> Engine::TryPolicy(Session& session, const ValidSpec& policy, int64_t spare) {
  EBB_ASSIGN(const auto work, BeginSetPolicy(session, policy));
  EBB_TRY(RunToEnd(*work));
  return work->Try(spare);
}

absl::StatusOr<EvictReport> Engine::Evict(Session& session, const EvictRequest& request) {
  EBB_ASSIGN(const auto work, BeginEvict(session, request));
  EBB_TRY(RunToEnd(*work));
  if (!request.dry_run) work->Commit();
  return work->report();
}

absl::Status Engine::Save(const Session& session, SnapshotWriter& to) const {
  EBB_ASSIGN(const auto work, BeginSave(session));
  EBB_TRY(RunToEnd(*work));
  to = work->Take();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Session>> Engine::Reopen(SessionImage& image) {
  EBB_ASSIGN(const auto work, BeginReopen(image));
  EBB_TRY(RunToEnd(*work));
  return work->Take();
}

absl::StatusOr<std::vector<LaneReport>> Engine::Describe(const Session& session, std::optional<int32_t> layer,
                                                         std::optional<int32_t> head) const {
  EBB_ASSIGN(const auto work, BeginDescribe(session, layer, head));
  EBB_TRY(RunToEnd(*work));
  return work->Take();
}

std::string PackPath(const std::string& pack_cache, const std::string& model_path) {
  if (pack_cache.empty()) return "";
  const std::filesystem::path beside = PathBeside(model_path, ".packed");
  return pack_cache == "beside" ? beside.string() : (pack_cache / beside.filename()).string();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options) {
  EBB_TRY(CheckOptions(options));
  EBB_ASSIGN(GgufFile file, OpenModel(options.model_path));
  EBB_ASSIGN(ModelConfig config, ReadConfig(file));
  EBB_ASSIGN(const Weights weights, FindWeights(file, config));
  EBB_TRY(CheckHasTokenizer(file));
  EBB_ASSIGN(std::unique_ptr<const Tokenizer> tokenizer, Tokenizer::FromGguf(file));
  EBB_TRY(CheckModel(file, config, *tokenizer));
  config.fingerprint = ModelFingerprint(file, config);
  config.calibration = ReadCalibration(
      options.calibration_path.empty() ? CalibrationPath(options.model_path) : options.calibration_path, config);
  if (absl::IsDataLoss(config.calibration.status())) return config.calibration.status();
  config.head_gates = ReadHeadGates(
      options.head_gates_path.empty() ? HeadGatesPath(options.model_path) : options.head_gates_path, config);
  if (absl::IsDataLoss(config.head_gates.status())) return config.head_gates.status();
  const int32_t threads = options.threads > 0 ? options.threads : UsableThreads();
  std::unique_ptr<cpu::PackFile> packs = FindPacks(options, file, config);
  EBB_ASSIGN(std::unique_ptr<Ops> ops,
             MakeCpuOps({.isa = options.isa, .accuracy = options.accuracy, .threads = threads, .packs = packs.get()}));
  if (options.between) ops = options.between(std::move(ops));
  auto engine = std::make_unique<EngineOnOps>(options, std::move(file), std::move(config), weights,
                                              std::move(tokenizer), std::move(packs), std::move(ops));
  EBB_TRY(engine->MakeArena());
  return engine;
}

}  // namespace ebb
