// EQUIP's claim, below the engine's door: a cache whose slots were freed and taken again in any order computes what a
// freshly compacted copy of it computes, which holds the same keys and values in order of age from slot 0.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/cache/session_cache.h"
#include "engine/model/gguf.h"
#include "engine/ops/cpu/ops_cpu.h"
#include "engine/transformer.h"
#include "policies/hash_random.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

constexpr int32_t kCapacity = 90;
constexpr int64_t kPageBytes = 4096;

// A model and an arena without an engine around them. Every byte of the arena says "not a number", so that whoever
// reads a slot that nobody wrote is found out.
class Machinery {
 public:
  explicit Machinery(const std::string& path)
      : file_(GgufFile::Open(path).value()),
        config_(ReadConfig(file_).value()),
        ops_(MakeCpuOps({.threads = 1}).value()),
        transformer_(config_, FindWeights(file_, config_).value(), *ops_),
        pool_(PagePool::Create(1000 * kPageBytes, kPageBytes).value()) {
    const PageLease all = pool_->Reserve(pool_->pages_total()).value();
    for (int64_t page = 0; page < all.size(); ++page) std::memset(all.address(page), 0xFF, kPageBytes);
  }

  const ModelConfig& config() const { return config_; }

  SessionCache MakeCache(const ValidSpec& policy) {
    KvFormat format = {.type = policy.kv_type, .rope_cache = policy.rope_cache, .head_dim = config_.head_dim};
    format.page_tiles = static_cast<int32_t>(kPageBytes / format.tile_bytes());
    const CacheShape shape = {.layers = config_.layers,
                              .kv_heads = config_.kv_heads,
                              .query_heads = config_.group(),
                              .format = format,
                              .capacity = kCapacity,
                              .block_max = kCapacity};
    return SessionCache(shape, pool_->Reserve(shape.pages()).value(), policy);
  }

  // Appends tokens that are `first`, first + 1, ... in the session's log; logits of all.
  std::vector<float> Step(SessionCache& cache, const ValidSpec& policy, int32_t first,
                          std::span<const int32_t> tokens) {
    for (SlotMap& map : cache.maps()) map.Place(first, first, static_cast<int32_t>(tokens.size()));
    const Sequence sequence = {.cache = &cache, .policy = &policy, .tokens = tokens};
    const std::span<const float> logits = transformer_.Forward({&sequence, 1}, [](auto...) {});
    return {logits.begin(), logits.end()};
  }

 private:
  GgufFile file_;
  ModelConfig config_;
  std::unique_ptr<Ops> ops_;
  Transformer transformer_;
  std::unique_ptr<PagePool> pool_;
};

// Copies one slot's K, V and RK, as engine/ops.h lays them out.
void CopySlot(const LaneStorage& from, int32_t from_slot, const LaneStorage& to, int32_t to_slot) {
  const KvFormat& format = from.format;
  const auto tile = [&](const LaneStorage& lane, int32_t slot) {
    const int32_t index = slot / kTileSlots;
    return lane.pages[index / format.page_tiles] + index % format.page_tiles * format.tile_bytes();
  };
  const int64_t bytes = format.element_bytes();
  const int64_t columns = format.head_dim * (format.rope_cache == RopeCache::kRk ? 2 : 1);  // of K, then RK
  for (int64_t c = 0; c < columns; ++c) {
    std::memcpy(tile(to, to_slot) + (c * kTileSlots + to_slot % kTileSlots) * bytes,
                tile(from, from_slot) + (c * kTileSlots + from_slot % kTileSlots) * bytes, bytes);
  }
  const int64_t row = format.head_dim * bytes;  // of V
  std::memcpy(tile(to, to_slot) + columns * kTileSlots * bytes + to_slot % kTileSlots * row,
              tile(from, from_slot) + columns * kTileSlots * bytes + from_slot % kTileSlots * row, row);
  if (!IsScaled(format.type)) return;
  const int64_t scales = columns * kTileSlots * bytes + kTileSlots * row;  // [2][16]
  for (const int64_t part : {0, 1}) {
    std::memcpy(tile(to, to_slot) + scales + 4 * (part * kTileSlots + to_slot % kTileSlots),
                tile(from, from_slot) + scales + 4 * (part * kTileSlots + from_slot % kTileSlots), 4);
  }
}

std::vector<int32_t> SlotsByAge(const SlotMap& map) {
  std::vector<int32_t> slots;
  for (int32_t slot = 0; slot < map.end(); ++slot) {
    if (map.token()[slot] >= 0) slots.push_back(slot);
  }
  std::ranges::sort(slots, {}, [&](int32_t slot) { return map.token()[slot]; });
  return slots;
}

// Fills an empty cache with what `from` holds, in order of age.
void Compact(const SessionCache& from, SessionCache& to) {
  for (int32_t layer = 0; layer < from.shape().layers; ++layer) {
    for (int32_t head = 0; head < from.shape().kv_heads; ++head) {
      const SlotMap& source = from.map(layer, head);
      SlotMap& target = to.map(layer, head);
      for (const int32_t slot : SlotsByAge(source)) {
        target.Place(source.token()[slot], source.position()[slot], 1);
        const int32_t at = target.placed_slots()[0];
        ASSERT_EQ(target.position()[at], source.position()[slot]);
        target.state(0).slot[at] = source.state(0).slot[slot];
        CopySlot(from.storage(layer, head), slot, to.storage(layer, head), at);
      }
    }
  }
}

// Evicts up to half of each lane, other tokens from each; the same tokens of both caches.
void EvictAlike(HashRandom& random, SessionCache& lived, SessionCache* fresh) {
  for (size_t lane = 0; lane < lived.maps().size(); ++lane) {
    std::vector<int32_t> tokens;
    const int32_t one_in = random.Uniform(2, 12);
    for (const int32_t slot : SlotsByAge(lived.maps()[lane])) {
      if (random.Uniform(1, one_in) == 1) tokens.push_back(lived.maps()[lane].token()[slot]);
    }
    if (static_cast<int32_t>(tokens.size()) == lived.maps()[lane].live()) tokens.pop_back();
    for (SessionCache* const cache : {&lived, fresh}) {
      if (cache == nullptr) continue;
      SlotMap& map = cache->maps()[lane];
      std::vector<int32_t> slots;
      for (const int32_t slot : SlotsByAge(map)) {
        if (std::ranges::binary_search(tokens, map.token()[slot])) slots.push_back(slot);
      }
      std::ranges::sort(slots);
      map.Free(slots);
      map.CheckInvariants();
    }
  }
}

int32_t Longest(const SessionCache& cache) {
  int32_t longest = 0;
  for (const SlotMap& map : cache.maps()) longest = std::max(longest, map.live());
  return longest;
}

// Both caches go on side by side for a while; `tolerance` on logits, whose largest are about 8, and on column sums.
void ExpectTheyCannotBeToldApart(Machinery& machinery, const ValidSpec& policy, uint64_t seed, double tolerance) {
  HashRandom random(seed);
  SessionCache lived = machinery.MakeCache(policy);
  int32_t log = 0;
  const auto next = [&] {
    const int32_t room = kCapacity - Longest(lived);
    const int32_t count = std::min(room, random.Uniform(0, 1) == 0 ? 1 : random.Uniform(1, 30));
    return RandomTokens(random.Next64(), count, machinery.config().vocab);
  };
  for (int step = 0; step < 15; ++step) {
    const std::vector<int32_t> tokens = next();
    machinery.Step(lived, policy, log, tokens);
    log += static_cast<int32_t>(tokens.size());
    EvictAlike(random, lived, nullptr);
  }
  SessionCache fresh = machinery.MakeCache(policy);
  Compact(lived, fresh);
  for (int step = 0; step < 8; ++step) {
    const std::vector<int32_t> tokens = next();
    const std::vector<float> in_place = machinery.Step(lived, policy, log, tokens);
    const std::vector<float> compacted = machinery.Step(fresh, policy, log, tokens);
    ASSERT_LE(LargestDifference(in_place, compacted), tolerance) << "step " << step;
    log += static_cast<int32_t>(tokens.size());
    for (size_t lane = 0; lane < lived.maps().size(); ++lane) {
      const std::vector<int32_t> a = SlotsByAge(lived.maps()[lane]);
      const std::vector<int32_t> b = SlotsByAge(fresh.maps()[lane]);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_NEAR(lived.maps()[lane].state(0).slot[a[i]], fresh.maps()[lane].state(0).slot[b[i]], tolerance)
            << "lane " << lane;
      }
    }
    EvictAlike(random, lived, &fresh);
  }
}

TEST(InPlaceCache, EqualsAFreshlyCompactedOne) {
  const TinyModelFile file({.layers = 3, .heads = 6, .kv_heads = 3});
  Machinery machinery(file.path());
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kF16, KvType::kInt8, KvType::kFp8}) {
    // Both sum the same numbers in another order: in F32 that is a few units in 2^-24 of each sum, grown by three
    // layers. It may also tip a component of a new K or V to its neighbour, 2^-8 (BF16) or 2^-11 (F16) of it, or 1/127
    // of the head's largest (INT8), or 1/8 of it (FP8), which layers behind and later tokens see. Measured: 6e-6, 1e-3,
    // 3e-4 (F32, BF16, F16).
    const double tolerance = type == KvType::kF32    ? 3e-5
                             : type == KvType::kF16  ? 2e-3
                             : type == KvType::kBf16 ? 6e-3
                                                     : 2e-2;
    for (const RopeCache rope_cache : {RopeCache::kFused, RopeCache::kRk}) {
      for (const Positions positions : {Positions::kOriginal, Positions::kCompacted}) {
        const ValidSpec policy = TestPolicy(
            {.scorer = "h2o", .budget = kCapacity, .positions = positions, .kv_type = type, .rope_cache = rope_cache});
        for (uint64_t seed = 0; seed < 4; ++seed) {
          SCOPED_TRACE(testing::Message()
                       << "seed " << seed << ", type " << static_cast<int>(type) << ", rope cache "
                       << static_cast<int>(rope_cache) << ", positions " << static_cast<int>(positions));
          ExpectTheyCannotBeToldApart(machinery, policy, seed, tolerance);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ebb
