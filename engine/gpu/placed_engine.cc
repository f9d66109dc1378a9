#include "engine/gpu/placed_engine.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <list>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/cache_work.h"
#include "engine/gpu/blas_lt.h"
#include "engine/gpu/cache_mover.h"
#include "engine/gpu/done_to_session.h"
#include "engine/gpu/step_bound.h"
#include "engine/model/gguf.h"
#include "engine/model/hub_model.h"
#include "engine/session_on_engine.h"
#include "engine/snapshot/session_image.h"
#include "policies/check.h"
#include "policies/device_rule.h"
#include "policies/status.h"

namespace ebb {
namespace {

// A session's cache on the device, as new as the host's or newer.
class CacheOnDevice final : public CacheElsewhere {
 public:
  // `all` are those of an engine, which outlives this; `home` owns it.
  CacheOnDevice(std::unique_ptr<GpuSession> gpu, SessionOnEngine& home, std::set<CacheOnDevice*>& all)
      : gpu_(std::move(gpu)), home_(home), all_(all) {
    all_.insert(this);
  }
  ~CacheOnDevice() override { all_.erase(this); }

  bool is_newer() const override { return newer_; }
  int32_t live(int32_t lane) const override {
    const GpuSession::Shape& shape = gpu_->shape();
    return gpu_->live(shape.SightOf(shape.order[lane]));
  }
  bool is_lost() const override { return newer_ && gpu_->is_lost(); }

  GpuSession& gpu() const { return *gpu_; }
  SessionOnEngine& home() { return home_; }
  void set_newer(bool newer) { newer_ = newer; }
  int64_t used() const { return used_; }  // in which step, last
  void set_used(int64_t step) { used_ = step; }

 private:
  std::unique_ptr<GpuSession> gpu_;
  SessionOnEngine& home_;
  std::set<CacheOnDevice*>& all_;
  bool newer_ = false;
  int64_t used_ = 0;
};

class PlacedEngine final : public Engine {
 public:
  PlacedEngine(std::unique_ptr<GpuEngine> gpu, std::unique_ptr<Engine> host, std::string description, CacheMover mover)
      : gpu_(std::move(gpu)),
        host_(std::move(host)),
        description_(std::move(description)),
        mover_(std::move(mover)),
        worker_(absl::StrFormat("%s:%d", gpu_->gpu().table().name, gpu_->gpu().device())) {}

  const ModelConfig& config() const override { return host_->config(); }
  const Tokenizer& tokenizer() const override { return host_->tokenizer(); }
  std::string fingerprint() const override { return host_->fingerprint(); }
  ImageLimits image_limits() const override { return host_->image_limits(); }
  EngineMemory memory() const override { return host_->memory(); }
  const PackReport& packs() const override { return host_->packs(); }
  FreedPages FreedBy(std::span<const Session* const> sessions) const override { return host_->FreedBy(sessions); }
  Parallel& host_threads() const override { return host_->host_threads(); }
  int32_t step_tokens_max() const override { return host_->step_tokens_max(); }
  absl::StatusOr<int64_t> PagesFor(const SessionOptions& options) const override { return host_->PagesFor(options); }
  std::optional<DeviceUse> device_use() const override {
    DeviceUse use = use_;
    use.name = gpu_->gpu().table().name;
    use.description = description_;
    use.products = gpu_->products();
    use.failed = !failure_.ok();
    use.weight_bytes = gpu_->weight_bytes();
    use.page_bytes = gpu_->page_bytes();
    use.pages_total = gpu_->pages_total();
    use.pages_free = gpu_->pages_free();
    use.sessions = std::ssize(caches_);
    for (const CacheOnDevice* const cache : caches_) use.session_bytes += cache->gpu().bytes();
    use.working_bytes = gpu_->working_bytes();
    use.replays = gpu_->replays();
    use.short_steps.unpinned = gpu_->steps_unpinned();
    use.short_steps.unrecorded = gpu_->steps_unrecorded();
    use.shortage = shortage_;
    return use;
  }

  Placement PlacementOf(const Session& session) const override {
    const WhyHost why = failure_.ok() ? WhyHostOf(Of(session)) : WhyHost::kFailed;
    if (why == WhyHost::kNone) return {.worker = worker_};
    return {.why = why, .reason = InWords(why, Of(session))};
  }

  absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionOptions& options) override {
    return host_->OpenSession(options);
  }
  absl::StatusOr<Fork> ForkSession(Session& session, const ForkOptions& options) override {
    EBB_TRY(Fetch(session));
    return host_->ForkSession(session, options);
  }

  // What is kept are pages of the host, computed there: who began with them would yield other tokens than who did not.
  // Nor are those of a session that the device had some of before it failed, which may be older than its log.
  void KeepPrefix(const Session& session, std::string_view tenant, int32_t block_size) override {
    if (!SuitsDevice(Of(session))) host_->KeepPrefix(session, tenant, block_size);
  }
  int32_t BeginWithPrefix(Session& session, std::string_view tenant, std::span<const int32_t> prompt,
                          int32_t block_size) override {
    return IsForDevice(Of(session)) ? 0 : host_->BeginWithPrefix(session, tenant, prompt, block_size);
  }

  absl::Status OwnPages(const BatchRow& row) override {
    if (!GoesToDevice(row)) return host_->OwnPages(row);
    // When the cache comes home, any of its pages may be written.
    const EngineMemory memory = host_->memory();
    return memory.pages_shared + memory.pages_kept > 0 ? host_->OwnAllPages(*row.session) : absl::OkStatus();
  }
  absl::Status OwnAllPages(Session& session) override { return host_->OwnAllPages(session); }

  void Run(std::span<BatchRow> rows) override {
    kept_logits_.clear();
    kept_largest_.clear();
    Rows left;  // for the device
    Rows here;
    for (BatchRow& row : rows) (GoesToDevice(row) ? left : here).push_back(&row);
    Wave wave = StartWave(left, here);
    RunHere(here);
    Rows late;  // for the host, too
    while (!wave.rows.empty()) {
      FinishWave(wave, left);
      if (!left.empty()) KeepLogits(wave.rows);
      wave = StartWave(left, late);
    }
    late.insert(late.end(), left.begin(), left.end());  // the device failed
    if (!late.empty()) KeepLogits(here);
    RunHere(late);
  }

  absl::StatusOr<std::vector<float>> TakeLogits(Session& session) override {
    CacheOnDevice* const there = CacheOf(session);
    if (there == nullptr || !there->is_newer()) return host_->TakeLogits(session);
    if (there->is_lost()) return failure_;
    auto logits = there->gpu().Logits();
    if (!logits.ok()) {
      Fail(logits.status());
      return logits;
    }
    there->gpu().KeepLogits(false);
    ++use_.rows_fetched;
    return logits;
  }

  void Accept(BatchRow& row, int32_t count) override { host_->Accept(row, count); }  // the draft ran here

  absl::StatusOr<EditPlan> PlanEdit(const Session& session, const EditRequest& request) const override {
    EBB_TRY(Fetch(session));
    return host_->PlanEdit(session, request);
  }
  // The plan was made here. The next three refuse nothing: of a session that is lost they change what nobody will see.
  void BeginEdit(Session& session, const EditPlan& plan) override {
    TakeHome(session).IgnoreError();
    host_->BeginEdit(session, plan);
  }
  void AbandonEdit(Session& session) override { host_->AbandonEdit(session); }
  void Rewind(Session& session, int32_t tokens) override {
    TakeHome(session).IgnoreError();
    host_->Rewind(session, tokens);
  }
  uint64_t Digest(const Session& session) const override {
    Fetch(session).IgnoreError();
    return host_->Digest(session);
  }

  absl::StatusOr<std::unique_ptr<SaveWork>> BeginSave(const Session& session) const override {
    EBB_TRY(Fetch(session));
    return host_->BeginSave(session);
  }
  absl::StatusOr<std::unique_ptr<ReopenWork>> BeginReopen(SessionImage& image) override {
    return host_->BeginReopen(image);
  }
  absl::StatusOr<std::unique_ptr<PolicyWork>> BeginSetPolicy(Session& session, const ValidSpec& policy) override {
    EBB_TRY(TakeHome(session));
    return host_->BeginSetPolicy(session, policy);
  }
  absl::StatusOr<std::unique_ptr<EvictWork>> BeginEvict(Session& session, const EvictRequest& request) override {
    EBB_TRY(TakeHome(session));
    return host_->BeginEvict(session, request);
  }
  absl::StatusOr<std::unique_ptr<DescribeWork>> BeginDescribe(const Session& session, std::optional<int32_t> layer,
                                                              std::optional<int32_t> head) const override {
    EBB_TRY(Fetch(session));
    return host_->BeginDescribe(session, layer, head);
  }
  absl::Status ShiftPositions(Session& session, int32_t from, int32_t delta) override {
    EBB_TRY(TakeHome(session));
    return host_->ShiftPositions(session, from, delta);
  }
  absl::StatusOr<int32_t> RemovePositions(Session& session, int32_t start, int32_t end) override {
    EBB_TRY(TakeHome(session));
    return host_->RemovePositions(session, start, end);
  }

 private:
  using Rows = std::vector<BatchRow*>;
  // Rows that the device computes at a time.
  struct Wave {
    Rows rows = {};
    std::vector<GpuRow> gpu = {};             // of each
    std::vector<OfSight<int32_t>> live = {};  // tokens in its lanes, before
  };

  // Where a cache lies is no part of what its session is.
  static SessionOnEngine& Of(const Session& session) {
    return const_cast<SessionOnEngine&>(static_cast<const SessionOnEngine&>(session));
  }
  static CacheOnDevice* CacheOf(const Session& session) { return static_cast<CacheOnDevice*>(Of(session).elsewhere()); }

  bool GoesToDevice(const BatchRow& row) const {
    return !row.draft && row.session->edit_left() == 0 && IsForDevice(Of(*row.session));
  }

  bool IsForDevice(const SessionOnEngine& session) const { return failure_.ok() && SuitsDevice(session); }

  // What it has pending is the host's, wherever it is computed else.
  bool SuitsDevice(const SessionOnEngine& session) const {
    return session.elsewhere() != nullptr || (session.CheckSettled().ok() && WhyHostOf(session) == WhyHost::kNone);
  }

  // What changes any of this takes the cache home.
  WhyHost WhyHostOf(const SessionOnEngine& session) const {
    if (session.elsewhere() != nullptr) return WhyHost::kNone;
    if (session.policy().kv_type != gpu_->kv_type()) return WhyHost::kKvType;
    if (!DeviceRuleOf(session.policy()).ok()) return WhyHost::kPolicy;
    const GpuSession::Shape there = ShapeThere(session);
    if (there.pages() > gpu_->pages_total()) return WhyHost::kSize;
    return DoneTo(session, there).empty() ? WhyHost::kNone : WhyHost::kHistory;
  }

  std::string InWords(WhyHost why, const SessionOnEngine& session) const {
    switch (why) {
      case WhyHost::kNone:
        return {};
      case WhyHost::kPolicy:
        return std::string(DeviceRuleOf(session.policy()).status().message());
      case WhyHost::kKvType:
        return absl::StrFormat("policy.cache.kv_dtype: %s, and the GPU computes sessions of %s (model.gpu_kv_type)",
                               std::string(NameOf(session.policy().kv_type)), std::string(NameOf(gpu_->kv_type())));
      case WhyHost::kSize:
        return absl::StrFormat("its cache takes %d pages of the GPU, which has %d (model.gpu_arena)",
                               ShapeThere(session).pages(), gpu_->pages_total());
      case WhyHost::kHistory:
        return std::string(DoneTo(session, ShapeThere(session)));
      case WhyHost::kFailed:
        return std::string(failure_.message()) + "; the CPU computes all sessions until the next start";
    }
    return {};
  }

  GpuSession::Shape ShapeThere(const SessionOnEngine& session) const {
    return gpu_->ShapeOf(session.block_size_max(), SlotsOf(session));
  }
  // That a lane of each kind may need.
  OfSight<int32_t> SlotsOf(const SessionOnEngine& session) const {
    const CacheShape& shape = session.cache().shape();
    OfSight<int32_t> slots;
    for (int32_t lane = 0; lane < shape.lanes(); ++lane)
      slots[gpu_->SightOf(lane / shape.kv_heads)] = shape.slots(lane);
    return slots;
  }

  static bool IsFault(const absl::Status& status) { return GetRefusal(status).reason == "GPU_FAULT"; }

  // Of the caches there, the one longest unused; null where all are of the wave that is put together.
  CacheOnDevice* OldestBesideWave() const {
    const auto oldest = std::ranges::min_element(caches_, {}, [](const CacheOnDevice* c) { return c->used(); });
    return oldest == caches_.end() || (*oldest)->used() == wave_ ? nullptr : *oldest;
  }

  // The device's copy of a cache, made if there is none. RESOURCE_EXHAUSTED or UNAVAILABLE NO_PAGES where there is no
  // room beside those of the wave that is put together; UNAVAILABLE GPU_FAULT.
  absl::StatusOr<CacheOnDevice*> Bring(SessionOnEngine& session) {
    if (CacheOnDevice* const there = CacheOf(session)) return there;
    while (true) {
      auto gpu = gpu_->OpenSession(session.policy(), session.block_size_max(), SlotsOf(session));
      if (!gpu.ok()) {
        CacheOnDevice* const oldest = OldestBesideWave();
        if (IsFault(gpu.status()) || oldest == nullptr) return gpu.status();
        EBB_TRY(TakeHome(oldest->home()));
        continue;
      }
      EBB_TRY(mover_.Bring(session, **gpu));
      auto there = std::make_unique<CacheOnDevice>(*std::move(gpu), session, caches_);
      CacheOnDevice* const cache = there.get();
      session.SetElsewhere(std::move(there));
      ++use_.brought;
      return cache;
    }
  }

  // The host's copy is as new as the device's, which stays.
  absl::Status Fetch(const Session& session) const {
    CacheOnDevice* const there = CacheOf(session);
    if (there == nullptr || !there->is_newer()) return absl::OkStatus();
    if (there->is_lost()) return failure_;
    if (const absl::Status fetched = mover_.Fetch(there->gpu(), Of(session)); !fetched.ok()) {
      Fail(fetched);
      return fetched;
    }
    there->set_newer(false);
    ++use_.fetched;
    if (there->gpu().keeps_logits()) ++use_.rows_fetched;
    return absl::OkStatus();
  }

  // From now on the host's copy is the only one.
  absl::Status TakeHome(const Session& session) const {
    EBB_TRY(Fetch(session));
    Of(session).SetElsewhere(nullptr);
    return absl::OkStatus();
  }

  void Fail(const absl::Status& status) const {
    if (failure_.ok()) failure_ = status;
    for (CacheOnDevice* const cache : caches_) cache->gpu().Lose();
  }

  // Starts as many of `left` as there is room for, which then are no longer left: all that bound_ allows, half of them,
  // and so on down to one. A row that has no room alone, all other caches at home, goes over to `unfit`: that follows
  // from its session and the device's memory, as all of who is computed where. None, where the device has failed or
  // nobody is left.
  Wave StartWave(Rows& left, Rows& unfit) {
    bool was_halved = false;
    while (failure_.ok() && !left.empty()) {
      Wave wave;
      const size_t most = WithinBound(left);
      absl::Status status = Gather(std::span(left).first(most), wave);
      if (!IsFault(status) && !wave.rows.empty()) status = gpu_->Start(wave.gpu);
      if (status.ok()) {
        if (!gpu_->shortage().empty()) shortage_ = gpu_->shortage();
        if (most < left.size() && !was_halved) ++use_.short_steps.parted;
        bound_.CountStep();
        left.erase(left.begin(), left.begin() + std::ssize(wave.rows));
        return wave;
      }
      if (IsFault(status)) {
        Fail(status);
        break;
      }
      shortage_ = std::string(status.message());
      if (wave.rows.size() > 1) {
        bound_.Lower(TokensOf(wave.rows) / 2);  // of tokens, not rows: beside a long prompt, decodes stay together
        was_halved = true;
        ++use_.short_steps.halved;
      } else if (const absl::StatusOr<bool> more = MakeRoom(); !more.ok()) {
        Fail(more.status());
      } else if (!*more) {
        unfit.push_back(left.front());
        left.erase(left.begin());
        ++use_.short_steps.unfit;
      }
    }
    return {};
  }

  static int64_t TokensOf(std::span<BatchRow* const> rows) {
    int64_t tokens = 0;
    for (const BatchRow* const row : rows) tokens += std::ssize(row->tokens);
    return tokens;
  }

  // How many of `rows`, from the first on, may be tried together: at least one.
  size_t WithinBound(const Rows& rows) const {
    int64_t tokens = 0;
    size_t count = 0;
    while (count < rows.size() && (tokens += std::ssize(rows[count]->tokens)) <= bound_.tokens()) ++count;
    return std::max<size_t>(count, 1);
  }

  // For one session that has not room enough. Whether there was any to be made; UNAVAILABLE GPU_FAULT.
  absl::StatusOr<bool> MakeRoom() {
    CacheOnDevice* const oldest = OldestBesideWave();
    if (oldest == nullptr) return gpu_->LetGo();
    EBB_TRY(TakeHome(oldest->home()));
    return true;
  }

  // As many of `rows` as have room for their caches together, in their order; otherwise says why not all.
  absl::Status Gather(std::span<BatchRow* const> rows, Wave& wave) {
    ++wave_;
    for (BatchRow* const row : rows) {
      EBB_ASSIGN(CacheOnDevice* const cache, Bring(Of(*row->session)));
      cache->set_used(wave_);
      GpuSession& session = cache->gpu();
      const GpuWant last = row->enough.largest > 0 ? GpuWant::kFacts : GpuWant::kLast;
      const GpuWant want = row->want == Want::kAll ? GpuWant::kAll : row->want == Want::kLast ? last : GpuWant::kToken;
      wave.rows.push_back(row);
      wave.live.push_back({{session.live(GpuSight::kAll), session.live(GpuSight::kWindow)}});
      wave.gpu.push_back({.session = &session,
                          .tokens = row->tokens,
                          .prompt_ends = row->prompt_ends,
                          .want = want,
                          .needs = row->enough,
                          .tells = row->list_victims || row->measure,
                          .measures = row->measure});
    }
    return absl::OkStatus();
  }

  void FinishWave(Wave& wave, Rows& left) {
    // What ran here meanwhile may have asked for a cache, and learned of a fault that the device tells but once.
    const absl::Status finished = failure_.ok() ? gpu_->Finish() : failure_;
    if (!finished.ok()) {
      Fail(finished);
      left.insert(left.end(), wave.rows.begin(), wave.rows.end());
      wave.rows.clear();
      return;
    }
    const bool decodes = std::ranges::all_of(wave.rows, [](const BatchRow* row) { return row->tokens.size() == 1; });
    ++(decodes ? use_.decode_steps : use_.prefill_steps);
    (decodes ? use_.decode_seconds : use_.prefill_seconds) += gpu_->step_seconds();
    if (decodes) use_.decode_bytes += gpu_->multiplied_bytes(std::ssize(wave.rows));
    for (size_t i = 0; i < wave.rows.size(); ++i) Commit(wave, i, decodes);
  }

  void Commit(const Wave& wave, size_t i, bool decodes) {
    BatchRow& row = *wave.rows[i];
    const GpuRow& ran = wave.gpu[i];
    SessionOnEngine& session = Of(*row.session);
    const ModelConfig& c = config();
    const auto count = static_cast<int32_t>(row.tokens.size());
    row.length = row.evicted = 0;
    row.evicted_slots = 0;
    OfSight<int32_t> evicted;
    int64_t slots = 0;  // that were read
    for (const GpuSight sight : kGpuSights) {
      const int32_t lanes = ran.session->shape().kinds[sight].count;
      if (lanes == 0) continue;
      const int32_t length = wave.live[i][sight] + count;
      evicted[sight] = length - ran.session->live(sight);
      row.length = std::max(row.length, length);
      row.evicted = std::max(row.evicted, evicted[sight]);
      row.evicted_slots += int64_t{evicted[sight]} * lanes;
      slots += int64_t{sight == GpuSight::kAll ? length : std::min(length, std::ranges::max(c.windows))} * lanes;
    }
    row.nan_scores = 0;  // a device does not count them
    row.loss = {};
    for (const gpu::LaneLoss& lane : ran.loss) {
      row.loss.Add({.mass = lane.mass, .error = lane.error, .output = lane.output}, c.layers * c.kv_heads);
    }
    row.census = {};
    for (int32_t layer = 0; layer < c.layers; ++layer) {
      row.census.AddSlots(layer, c.layers, int64_t{evicted[gpu_->SightOf(layer)]} * c.kv_heads);
    }
    if (decodes) {
      use_.decode_bytes += slots * gpu_->page_bytes() / gpu::kPageSlots;
    }
    CacheOf(session)->set_newer(true);
    session.AppendElsewhere(row.tokens, row.evicted);
    row.status = row.prompt_ends ? session.EndPrompt() : absl::OkStatus();
    if (row.prompt_ends) session.PromptEvicted();
    row.logits = ran.logits;
    row.facts = ran.facts;
    if (ran.want == GpuWant::kFacts) ++use_.rows_kept;
    use_.rows_copied += std::ssize(ran.logits) / c.vocab;
    row.victims.clear();
    if (row.measure) {
      const auto length = static_cast<int64_t>(session.log().size());
      for (const int32_t token : ran.left) row.census.AddAge(length - token, 1);
    }
    if (row.list_victims) ListVictims(ran.left, *ran.session, evicted, row);
  }

  // `left`: `evicted` tokens of each lane, as they lie on the device.
  void ListVictims(std::span<const int32_t> left, const GpuSession& session, const OfSight<int32_t>& evicted,
                   BatchRow& row) const {
    if (left.empty()) return;
    const ModelConfig& c = config();
    const GpuSession::Shape& shape = session.shape();
    for (int32_t lane = 0; lane < c.layers * c.kv_heads; ++lane) {
      const int32_t there = shape.order[lane];
      const GpuSight sight = shape.SightOf(there);
      const int64_t before = sight == GpuSight::kAll ? 0 : int64_t{shape.kinds.of[0].count} * evicted.of[0];
      const auto each = static_cast<size_t>(evicted[sight]);
      if (each == 0) continue;
      const std::span<const int32_t> tokens = left.subspan(before + (there - shape.kinds[sight].first) * each, each);
      LaneVictims& victims = row.victims.emplace_back(
          LaneVictims{.layer = lane / c.kv_heads, .head = lane % c.kv_heads, .tokens = {tokens.begin(), tokens.end()}});
      std::ranges::sort(victims.tokens);
    }
  }

  // On the host's threads.
  void RunHere(std::span<BatchRow* const> rows) {
    here_.clear();
    Rows from;
    for (BatchRow* const row : rows) {
      row->fault = TakeHome(*row->session);
      if (!row->fault.ok()) continue;
      from.push_back(row);
      here_.push_back(std::move(*row));
    }
    if (here_.empty()) return;
    host_->Run(here_);
    for (size_t i = 0; i < from.size(); ++i) *from[i] = std::move(here_[i]);
  }

  // Another step follows in this one.
  void KeepLogits(std::span<BatchRow* const> rows) {
    for (BatchRow* const row : rows) {
      if (!row->logits.empty()) row->logits = kept_logits_.emplace_back(row->logits.begin(), row->logits.end());
      std::span<const gpu::TokenLogit>& largest = row->facts.largest;
      if (!largest.empty()) largest = kept_largest_.emplace_back(largest.begin(), largest.end());
    }
  }

  const std::unique_ptr<GpuEngine> gpu_;
  const std::unique_ptr<Engine> host_;
  const std::string description_;
  mutable CacheMover mover_;
  const std::string worker_;              // as Placement names it
  std::set<CacheOnDevice*> caches_ = {};  // all that are on the device
  mutable absl::Status failure_ = {};     // of the device, once and for all
  mutable DeviceUse use_ = {};            // what is counted here
  std::string shortage_ = {};             // DeviceUse.shortage
  StepBound bound_ = {};
  int64_t wave_ = 0;
  std::vector<BatchRow> here_ = {};
  std::list<std::vector<float>> kept_logits_ = {};
  std::list<std::vector<gpu::TokenLogit>> kept_largest_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> PlaceOn(std::unique_ptr<GpuEngine> gpu, std::unique_ptr<Engine> host) {
  EBB_ASSIGN(CacheMover mover, CacheMover::Make(*gpu, host->threads()));
  EBB_ASSIGN(std::string description, Gpu::Describe(gpu->gpu().table(), gpu->gpu().device()));
  return std::make_unique<PlacedEngine>(std::move(gpu), std::move(host), std::move(description), std::move(mover));
}

absl::StatusOr<std::unique_ptr<Engine>> OpenPlacedEngine(const EngineOptions& options, const DeviceOptions& device) {
  std::string folder = device.folder;
  if (folder.empty()) {
    std::error_code unknown;
    folder = std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path().string();
  }
  EBB_ASSIGN(const gpu::Table* const table, LoadGpuTable(device.kind, folder));
  EBB_ASSIGN(GgufFile file, OpenModel(options.model_path));
  EBB_ASSIGN(const ModelConfig config, ReadConfig(file));
  EBB_ASSIGN(const Weights weights, FindWeights(file, config));
  EBB_ASSIGN(std::unique_ptr<GpuEngine> gpu,
             GpuEngine::Open(*table, config, weights,
                             {.device = device.device,
                              .arena_bytes = device.arena_bytes,
                              .kv_type = device.kv_type,
                              .products = device.products == ProductsBy::kOwn ? NoProductLibrary : OpenBlasLt,
                              .own_where_unfit = device.products == ProductsBy::kAuto}));
  EngineOptions beside = options;
  EBB_ASSIGN(const std::string code, Gpu::Code(*table, device.device));
  beside.beside = NameOf(device, code, gpu->by_library());
  EBB_ASSIGN(std::unique_ptr<Engine> host, Engine::Open(beside));
  return PlaceOn(std::move(gpu), std::move(host));
}

}  // namespace ebb
