// How GpuEngine comes to be: what it needs of the device is asked for, and named where it is not there, before the
// model is copied.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/gpu/gpu_engine.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int64_t kRestShare = 10;  // one part of so many of the free memory is for activations

// What model.gpu_products decides about; memory and faults are not.
bool IsAboutProducts(const absl::Status& status) {
  const std::string reason = GetRefusal(status).reason;
  return reason == "GPU_PRODUCTS_UNAVAILABLE" || reason == "GPU_PRODUCTS_UNFIT";
}

// Of all that stays on the device; steps work in what is left.
absl::Status CheckRoomForAll(const Gpu& gpu, int64_t model, const ProductLibrary* library, int64_t arena) {
  const int64_t workspace = library == nullptr ? 0 : library->workspace_bytes();
  std::string what = absl::StrFormat("the model (%d bytes)", model);
  if (workspace > 0) absl::StrAppendFormat(&what, ", %s's workspace (%d)", library->name(), workspace);
  if (arena > 0) absl::StrAppendFormat(&what, ", the cache's arena (%d)", arena);
  return gpu.CheckRoom(model + workspace + arena, what);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuEngine>> GpuEngine::Open(const gpu::Table& table, const ModelConfig& config,
                                                           const Weights& weights, const GpuEngineOptions& options) {
  EBB_ASSIGN(std::unique_ptr<Gpu> gpu, Gpu::Open(table, options.device));
  EBB_ASSIGN(Multiplier multiplier, FindMultiplier(*gpu, options));
  EBB_ASSIGN(const int64_t bytes, GpuModel::Bytes(config, weights));
  EBB_TRY(CheckRoomForAll(*gpu, bytes, multiplier.library.get(), options.arena_bytes));
  EBB_ASSIGN(GpuModel model, GpuModel::Upload(*gpu, config, weights));
  return Make(std::move(gpu), std::move(multiplier), std::move(model), options);
}

absl::StatusOr<std::unique_ptr<GpuEngine>> GpuEngine::OpenRandom(const gpu::Table& table, const ModelConfig& config,
                                                                 const GpuEngineOptions& options) {
  EBB_ASSIGN(std::unique_ptr<Gpu> gpu, Gpu::Open(table, options.device));
  EBB_ASSIGN(Multiplier multiplier, FindMultiplier(*gpu, options));
  EBB_ASSIGN(GpuModel model, GpuModel::Random(*gpu, config));
  EBB_ASSIGN(std::unique_ptr<GpuEngine> engine, Make(std::move(gpu), std::move(multiplier), std::move(model), options));
  // Zeros, as fresh memory may be, are cheaper to move than numbers.
  const gpu::Element type = ElementOf(options.kv_type);
  if (!gpu::IsScaled(type)) {
    table.random({.type = type,
                  .values = engine->arena_.as<void>(),
                  .n = engine->arena_.bytes() / gpu::KvBytes(type),
                  .seed = 1},
                 engine->gpu().stream());
  }
  return engine;
}

absl::StatusOr<GpuEngine::Multiplier> GpuEngine::FindMultiplier(const Gpu& gpu, const GpuEngineOptions& options) {
  Multiplier multiplier;
  absl::StatusOr<std::unique_ptr<ProductLibrary>> library = options.products(gpu);
  if (library.ok()) {
    multiplier.library = *std::move(library);
    return multiplier;
  }
  if (!options.own_where_unfit || !IsAboutProducts(library.status())) return library.status();
  multiplier.why_own = std::string(library.status().message());
  return multiplier;
}

absl::StatusOr<GpuEngine::Multiplier> GpuEngine::TryMultiplier(const Gpu& gpu, const GpuModel& model,
                                                               const GpuEngineOptions& options, Multiplier multiplier) {
  if (multiplier.library == nullptr) return multiplier;
  absl::StatusOr<BlockProducts> products = BlockProducts::Make(gpu, std::move(multiplier.library), model.Products());
  if (!products.ok()) {
    if (!options.own_where_unfit || !IsAboutProducts(products.status())) return products.status();
    multiplier.why_own = std::string(products.status().message());
  } else if (products->empty()) {
    multiplier.why_own = "no weights of the model's are BF16 without a bias";
  } else {
    multiplier.products = *std::move(products);
  }
  return multiplier;
}

absl::StatusOr<std::unique_ptr<GpuEngine>> GpuEngine::Make(std::unique_ptr<Gpu> gpu, Multiplier multiplier,
                                                           GpuModel model, const GpuEngineOptions& options) {
  EBB_ASSIGN(Multiplier tried, TryMultiplier(*gpu, model, options, std::move(multiplier)));
  const int64_t page_bytes = gpu::PageBytes(ElementOf(options.kv_type), model.config.head_dim);
  int64_t arena_bytes = options.arena_bytes;
  if (arena_bytes == 0) {
    EBB_ASSIGN(arena_bytes, gpu->FreeBytes());
    arena_bytes -= arena_bytes / kRestShare;
  }
  const int64_t pages = std::min<int64_t>(arena_bytes / page_bytes, INT32_MAX);
  if (pages < 1) {
    return RefuseField("ARENA_TOO_SMALL", "model.gpu_arena",
                       absl::StrFormat("%d is below one page of %d", arena_bytes, page_bytes));
  }
  EBB_ASSIGN(GpuMemory arena, gpu->Allocate(pages * page_bytes, "the cache's arena"));
  EBB_ASSIGN(GpuMoment begun, gpu->MakeMoment());
  EBB_ASSIGN(GpuMoment done, gpu->MakeMoment());
  auto engine = std::unique_ptr<GpuEngine>(new GpuEngine(std::move(gpu), std::move(model), std::move(tried),
                                                         std::move(arena), static_cast<int32_t>(pages),
                                                         std::move(begun), std::move(done), options));
  EBB_TRY(engine->Rehearse());
  return engine;
}

// Steps of every shape that decides which kernels are launched, and with how much shared memory.
absl::Status GpuEngine::Rehearse() {
  // Somewhere to reckon rows' addresses from; nothing goes there.
  for (Buffer* const buffer : {&x_, &normed_, &qkv_, &attended_, &gate_, &up_, &partial_sums_, &partial_stats_,
                               &linear_partial_, &router_scores_, &largest_, &largest_scratch_, &mass_parts_}) {
    EBB_TRY(Grow(*buffer, 4));
  }
  std::optional<BlockProducts> products = std::exchange(products_, std::nullopt);  // a library launches by itself
  absl::Status fits = gpu_->Rehearse([&] {
    constexpr int32_t kSlots = 1 << 16;  // what short lanes want, and long ones
    constexpr int32_t kBlock = 64;
    for (const int32_t single : {1, 9, 17}) {  // of rows up to 8, 16 and 32
      Step step;
      step.rows = single + kBlock;
      step.single = single;
      for (auto& sessions : step.sessions.of) sessions.resize(static_cast<size_t>(single) + 1);
      for (int32_t row = 0; row < single; ++row) step.wanted.push_back(row);
      step.slots_max.of = step.block_slots_max.of = {kSlots, kSlots};
      step.block_tokens_max = kBlock;
      step.largest = std::min(gpu::kLargestMax, model_.config.vocab);
      step.tracks_modified = model_.config.group();
      step.observes = step.blocks_observe = step.weighs = step.reduces = step.likens = step.draws = step.measures =
          true;
      for (const GpuSight sight : kGpuSights) {
        if (lanes_[sight].count > 0) gpu_->table().fill_holes({.cache = CacheOf(step, sight)}, gpu_->stream());
      }
      Launch(step);
    }
  });
  products_ = std::move(products);
  EBB_TRY(LetGo().status());
  return fits;
}

}  // namespace ebb
