// A small model on the device under test, for the tests of the GPU's engine.

#ifndef EBB_TESTS_SUPPORT_GPU_WORLD_H_
#define EBB_TESTS_SUPPORT_GPU_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/gpu/gpu_engine.h"
#include "engine/gpu/gpu_model.h"
#include "engine/model/gguf.h"
#include "policies/check.h"
#include "policies/status.h"
#include "tests/support/gpu_target.h"
#include "tests/support/test_engine.h"

namespace ebb {

// A sanitizer makes the emulation several times as slow.
#ifdef EBB_SANITIZED
inline constexpr bool kEmulationIsSlow = true;
#else
inline constexpr bool kEmulationIsSlow = false;
#endif

// A device with so much free memory, which counts what is allocated of it, bytes. One for all tests of a program.
struct ScarceMemory {
  static inline int64_t free = 0, allocated = 0;
  static inline int64_t least = 0;  // of free, since somebody set it
  static inline std::map<void*, int64_t> held = {};
  static inline const gpu::Table* sound = nullptr;

  static gpu::Table Of(const gpu::Table& table) {
    sound = &table;
    gpu::Table scarce = table;
    scarce.memory = [](int64_t* free_bytes, int64_t* total) -> gpu::Error {
      *free_bytes = free;
      *total = int64_t{1} << 30;
      return nullptr;
    };
    scarce.allocate = [](int64_t bytes, void** memory) -> gpu::Error {
      if (bytes > free) return "out of memory";
      if (const gpu::Error error = sound->allocate(bytes, memory)) return error;
      allocated += bytes;
      free -= bytes;
      least = std::min(least, free);
      held[*memory] = bytes;
      return nullptr;
    };
    scarce.release = [](void* memory) {
      free += held.extract(memory).mapped();
      sound->release(memory);
    };
    return scarce;
  }
};

inline PolicySpec F32(PolicySpec spec) {
  spec.kv_type = KvType::kF32;
  return spec;
}

// A model file, and engines on it.
class GpuWorld {
 public:
  explicit GpuWorld(const TinyModel& model)
      : model_(model), file_(model), gguf_(GgufFile::Open(file_.path())), config_(ReadConfig(*gguf_)) {
    EBB_CHECK(config_.ok());
  }

  absl::StatusOr<std::unique_ptr<GpuEngine>> Open(const gpu::Table& table, const GpuEngineOptions& options) const {
    EBB_ASSIGN(const Weights weights, FindWeights(*gguf_, *config_));
    return GpuEngine::Open(table, *config_, weights, options);
  }
  absl::StatusOr<GpuModel> Upload(const Gpu& gpu) const {
    EBB_ASSIGN(const Weights weights, FindWeights(*gguf_, *config_));
    return GpuModel::Upload(gpu, *config_, weights);
  }
  std::unique_ptr<GpuEngine> OpenOrDie(const gpu::Table& table, KvType type = KvType::kF32) const {
    auto engine = Open(table, {.arena_bytes = 16 << 20, .kv_type = type});
    EBB_CHECK(engine.ok());
    return *std::move(engine);
  }
  ValidSpec Policy(const PolicySpec& spec) const {
    auto policy = Resolve(spec, LimitsOf(*config_));
    EBB_CHECK(policy.ok());
    return *std::move(policy);
  }
  const std::string& path() const { return file_.path(); }
  const TinyModel& model() const { return model_; }
  const ModelConfig& config() const { return *config_; }

 private:
  TinyModel model_;
  TinyModelFile file_;
  absl::StatusOr<GgufFile> gguf_;
  absl::StatusOr<ModelConfig> config_;
};

inline std::unique_ptr<GpuSession> OpenOrDie(GpuEngine& engine, const ValidSpec& policy, int32_t block_max = 16) {
  auto session = engine.OpenSession(policy, block_max);
  EBB_CHECK(session.ok());
  return *std::move(session);
}

// Who lives in a lane, as the model counts them, by slot and by age.
inline std::vector<int32_t> LiveTokensBySlot(const GpuSession& session, int32_t lane) {
  const absl::StatusOr<std::vector<int32_t>> all = session.Tokens();
  EBB_CHECK(all.ok());
  const auto first = all->begin() + int64_t{session.shape().order[lane]} * session.shape().capacity;
  std::vector<int32_t> tokens(first, first + session.shape().capacity);
  std::erase(tokens, -1);
  return tokens;
}

inline std::vector<int32_t> LiveTokens(const GpuSession& session, int32_t lane) {
  std::vector<int32_t> tokens = LiveTokensBySlot(session, lane);
  std::ranges::sort(tokens);
  return tokens;
}

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_GPU_WORLD_H_
