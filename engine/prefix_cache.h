// What sessions were after the first blocks of their prompt, for later sessions that begin alike.
//
// An entry is a session as it stood when a block of its first prompt had run: its slot maps with the scorer's states,
// and its pages, kept as they are (page_pool.h). A session that is still empty may begin there in the place of running
// the blocks: it then is, bit for bit, what running them would have made it, whatever its policy has evicted by then.
//
// So an entry is found by all that decides a session's bits: whose it is (the tenant), the engine's fingerprint, the
// policy with its cache format, the shape, how the prompt is cut into blocks, and the tokens. Hashes of blocks, each
// chained to the one before, lead to an entry; what it says is compared, so two prefixes are never taken for each
// other.
//
// Of a prompt's blocks the first 15 make an entry each, the next 16 every second one, the next 32 every fourth, and so
// on: at least 7/8 of what two prompts have in common is found, and entries cost memory by the logarithm.
//
// Entries are let go when they outgrow their share of the pages, and whenever anybody wants a page: the one used
// longest ago first. The engine's thread alone.

#ifndef EBB_ENGINE_PREFIX_CACHE_H_
#define EBB_ENGINE_PREFIX_CACHE_H_

#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/cache/page_pool.h"
#include "engine/cache/session_cache.h"
#include "engine/session_on_engine.h"
#include "policies/spec.h"

namespace ebb {

class PrefixCache {
 public:
  // Shorter blocks make no entry.
  static constexpr int32_t kBlockMin = 16;

  // Keeps at most `pages_max` of `pool`, or as much memory beside it; 0: nothing. `pool` outlives this.
  PrefixCache(PagePool& pool, int64_t pages_max, std::string_view fingerprint);
  ~PrefixCache() { pool_.SetLetGo({}); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // How a prompt is read, and by whom.
  struct Reading {
    std::string_view tenant = {};
    int32_t block_size = 0;
    const SpecLimits& limits;  // that the session's policy was resolved with
  };

  // Makes an empty session what it would be after the longest known prefix of `prompt` that is a number of blocks, and
  // not all of it. Answers how many tokens that are; 0: none is known.
  int32_t Take(SessionOnEngine& session, const Reading& reading, std::span<const int32_t> prompt);

  // Keeps a session as it is. REQUIRES: all that was ever done to it is to run its log in blocks of the reading.
  void Keep(const SessionOnEngine& session, const Reading& reading);

 private:
  struct Entry {
    uint64_t hash = 0;
    std::string owner = {};  // all that decides bits but the tokens
    std::vector<int32_t> log = {};
    SessionCache::Kept cache = {};
    std::vector<float> last_queries = {};
    int64_t evicted = 0;
    int64_t bytes = 0;  // beside the pages
  };
  using Entries = std::list<Entry>;

  std::string OwnerOf(const SessionOnEngine& session, const Reading& reading) const;
  Entry* Find(uint64_t hash, std::string_view owner, std::span<const int32_t> log);
  void LetGo();

  PagePool& pool_;
  const int64_t bytes_max_;
  const std::string fingerprint_;
  Entries entries_ = {};  // newest use first
  std::unordered_map<uint64_t, Entries::iterator> by_hash_ = {};
  int64_t bytes_ = 0;  // of all entries, beside the pages
};

}  // namespace ebb

#endif  // EBB_ENGINE_PREFIX_CACHE_H_
