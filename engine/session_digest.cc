#include "engine/session_digest.h"

#include <bit>
#include <span>
#include <vector>

#include "policies/hash_random.h"

namespace ebb {
namespace {

class Hash {
 public:
  void Add(int64_t value) { bits_ = HashBits(bits_, 0, static_cast<uint64_t>(value)); }
  void Add(std::span<const int32_t> values) {
    Add(static_cast<int64_t>(values.size()));
    for (const int32_t value : values) Add(value);
  }
  // Bits, so that two zeros or two kinds of NaN differ.
  void Add(std::span<const float> values) {
    Add(static_cast<int64_t>(values.size()));
    for (const float value : values) Add(int64_t{std::bit_cast<uint32_t>(value)});
  }
  uint64_t bits() const { return bits_; }

 private:
  uint64_t bits_ = 0;
};

void AddMap(const SlotMap& map, Hash& hash) {
  hash.Add(map.token());
  hash.Add(map.position());
  const int64_t floats = map.state_shape().slot_floats;
  for (int32_t track = 0; track < map.state_shape().tracks; ++track) {
    const ScorerState state = map.state(track);
    hash.Add(state.lane);
    for (int32_t slot = 0; slot < map.end(); ++slot) {
      if (map.token()[slot] >= 0) hash.Add(state.slot.subspan(slot * floats, floats));
    }
  }
}

}  // namespace

uint64_t DigestOf(const SessionOnEngine& session, const Ops& ops) {
  Hash hash;
  hash.Add(session.log());
  hash.Add(session.position_max());
  hash.Add(session.evicted());
  hash.Add(session.steps_since_policy());
  hash.Add(session.last_queries());
  for (const SlotMap& map : session.cache().maps()) AddMap(map, hash);
  const CacheShape& shape = session.cache().shape();
  std::vector<float> row(shape.format.head_dim);
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    const LaneStorage storage = session.cache().storage(lane / shape.kv_heads, lane % shape.kv_heads);
    const SlotMap& map = session.cache().map_of(lane);
    for (int32_t slot = 0; slot < map.end(); ++slot) {
      if (map.token()[slot] < 0) continue;
      for (const Ops::Part part : {Ops::Part::kKeys, Ops::Part::kValues}) {
        ops.Read(storage, part, slot, 1, row.data());
        hash.Add(row);
      }
    }
  }
  return hash.bits();
}

}  // namespace ebb
