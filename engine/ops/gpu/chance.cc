// Who leaves by chance (kernels.h, ChanceArgs): policies/random.cc on the device. Block (l, i): lane l of session i. A
// draw is a hash, so it does not depend on the slot, on who else is there or on what was drawn before.
//
//   token [lanes, capacity]          | slot 0   | slot 1   | ... |  slot s: thread s % 128
//   keep  [lanes, capacity] floats   | in [0,1) | in [0,1) | ... |  a free slot's is left alone

#include <cstdint>

#include "engine/ops/gpu/device.h"
#include "engine/ops/gpu/kernels.h"
#include "engine/ops/gpu/lane.h"

namespace ebb::gpu::EBB_GPU_TARGET {
namespace {

constexpr int32_t kThreads = 128;
constexpr uint64_t kLane = 0x72616E646F6D;  // "random", what the seed is used for

// HashBits of policies/hash_random.h.
EBB_DEVICE uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}
EBB_DEVICE uint64_t Hash(uint64_t seed, uint64_t purpose, uint64_t index) {
  constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;
  const uint64_t bits = Mix(Mix(seed + kGamma) + (purpose + 1) * kGamma);
  return Mix(bits + (index + 1) * kGamma);
}

EBB_KERNEL(kThreads) DrawLane(ChanceArgs a) {
  const SessionView& session = a.cache.sessions[BlockY()];
  if (session.rule != ScoreRule::kChance || !HasChoice(session)) return;
  const int64_t first = int64_t{BlockX()} * session.capacity;
  const auto layer = static_cast<uint64_t>(BlockX() / a.cache.kv_heads);
  const auto head = static_cast<uint64_t>(BlockX() % a.cache.kv_heads);
  const uint64_t seed = Hash(session.seed, kLane, layer << 32 | head);
  const uint64_t draw = session.fresh != 0 ? 1 + static_cast<uint64_t>(session.first_token + session.tokens) : 0;
  for (int32_t slot = ThreadIndex(); slot < session.slots; slot += kThreads) {
    const int32_t token = session.token[first + slot];
    if (token < 0) continue;
    session.keep[first + slot] =
        static_cast<float>(static_cast<int32_t>(Hash(seed, draw, static_cast<uint64_t>(token)) >> 40)) * 0x1p-24F;
  }
}

}  // namespace

void LaunchChance(const ChanceArgs& args, Stream stream) {
  Launch(DrawLane, {args.cache.lanes, args.cache.session_count}, kThreads, args, stream);
}

}  // namespace ebb::gpu::EBB_GPU_TARGET
