#include "engine/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/snapshot/policy_record.h"
#include "engine/snapshot/snapshot_file.h"
#include "policies/check.h"
#include "policies/hash_random.h"

namespace ebb {
namespace {

uint64_t Chain(uint64_t hash, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) hash = HashBits(hash, 0, static_cast<uint64_t>(token));
  return hash;
}

uint64_t HashOf(std::string_view owner) {
  uint64_t hash = owner.size();
  for (const char c : owner) hash = HashBits(hash, 1, static_cast<uint8_t>(c));
  return hash;
}

bool MakesAnEntry(size_t blocks) { return blocks % std::max<size_t>(1, std::bit_floor(blocks) / 8) == 0; }

int64_t BytesOf(const SlotMap& map) {
  const StateShape& state = map.state_shape();
  const int64_t floats = state.tracks * (int64_t{map.capacity()} * state.slot_floats + state.lane_floats);
  return 4 * (2 * int64_t{map.capacity()} + floats);
}

}  // namespace

PrefixCache::PrefixCache(PagePool& pool, int64_t pages_max, std::string_view fingerprint)
    : pool_(pool), bytes_max_(pages_max * pool.page_bytes()), fingerprint_(fingerprint) {
  pool_.SetLetGo([this] { LetGo(); });
}

std::string PrefixCache::OwnerOf(const SessionOnEngine& session, const Reading& reading) const {
  SnapshotWriter writer;
  writer.Begin(RecordKind::kPolicy);
  WritePolicy(session.policy(), reading.limits, writer);
  writer.AddText(reading.tenant);
  writer.AddText(fingerprint_);
  writer.Add(reading.block_size);
  const CacheShape& shape = session.cache().shape();
  writer.Add(shape.capacity);
  writer.Add(shape.block_max);
  writer.AddAll(std::span(shape.slots_of));
  return writer.Finish();
}

PrefixCache::Entry* PrefixCache::Find(uint64_t hash, std::string_view owner, std::span<const int32_t> log) {
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end()) return nullptr;
  Entry& entry = *found->second;
  if (entry.owner != owner || !std::ranges::equal(entry.log, log)) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return &entry;
}

int32_t PrefixCache::Take(SessionOnEngine& session, const Reading& reading, std::span<const int32_t> prompt) {
  EBB_CHECK(session.log().empty());
  if (entries_.empty() || reading.block_size < kBlockMin || prompt.empty()) return 0;
  const auto block = static_cast<size_t>(reading.block_size);
  const std::string owner = OwnerOf(session, reading);
  std::vector<uint64_t> hashes = {HashOf(owner)};  // after so many blocks
  for (size_t end = block; end < prompt.size(); end += block) {
    hashes.push_back(Chain(hashes.back(), prompt.subspan(end - block, block)));
  }
  for (size_t blocks = hashes.size() - 1; blocks > 0; --blocks) {
    if (!MakesAnEntry(blocks)) continue;
    const Entry* const entry = Find(hashes[blocks], owner, prompt.first(blocks * block));
    if (entry == nullptr) continue;
    session.BeginAt(entry->log, entry->cache, entry->last_queries, entry->evicted);
    return static_cast<int32_t>(entry->log.size());
  }
  return 0;
}

void PrefixCache::Keep(const SessionOnEngine& session, const Reading& reading) {
  const std::span<const int32_t> log = session.log();
  if (bytes_max_ == 0 || reading.block_size < kBlockMin) return;
  EBB_CHECK(log.size() % reading.block_size == 0);
  if (!MakesAnEntry(log.size() / reading.block_size)) return;
  std::string owner = OwnerOf(session, reading);
  const uint64_t hash = Chain(HashOf(owner), log);
  if (Find(hash, owner, log) != nullptr) return;
  int64_t bytes = 4 * static_cast<int64_t>(log.size() + session.last_queries().size());
  for (const SlotMap& map : session.cache().maps()) bytes += BytesOf(map);
  if (bytes + session.cache().live_pages() * pool_.page_bytes() > bytes_max_) return;
  if (by_hash_.contains(hash)) return;  // another's: there is one entry to a hash
  entries_.push_front({.hash = hash,
                       .owner = std::move(owner),
                       .log = {log.begin(), log.end()},
                       .cache = session.cache().Keep(),
                       .last_queries = session.last_queries(),
                       .evicted = session.evicted(),
                       .bytes = bytes});
  by_hash_[hash] = entries_.begin();
  bytes_ += bytes;
  while (bytes_ + pool_.pages_kept() * pool_.page_bytes() > bytes_max_) LetGo();
}

// The entry used longest ago.
void PrefixCache::LetGo() {
  EBB_CHECK(!entries_.empty());
  bytes_ -= entries_.back().bytes;
  by_hash_.erase(entries_.back().hash);
  entries_.pop_back();
}

}  // namespace ebb
