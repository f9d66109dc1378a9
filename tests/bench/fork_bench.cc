// What a branch of a session of 4 K tokens costs: to open it, and to write its first token, which copies the page that
// the token goes to in every lane; beside a copy of the session's K and V, which is what sharing spares.
//
//   build/release/tests/bench/fork_bench

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/cache/session_cache.h"
#include "policies/check.h"
#include "tests/bench/bandwidth.h"
#include "tests/bench/rounds.h"

namespace ebb {
namespace {

constexpr int32_t kTokens = 4090;  // the last page of a lane is begun
constexpr int32_t kBlock = 128;
const int kRounds = Rounds(51);

struct Shape {
  std::string name = {};
  int32_t layers = 0, kv_heads = 0, query_heads = 0, head_dim = 0;
};

double Milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

void Bench(const Shape& model, const std::string& scorer) {
  const ValidSpec policy =
      Resolve({.scorer = scorer, .budget = kTokens}, {.trained_context = 8192, .query_heads = model.query_heads})
          .value();
  KvFormat format = {.head_dim = model.head_dim};
  const int64_t page_bytes = 4 * format.tile_bytes();  // as the engine's: one tile of the largest format
  format.page_tiles = 4;
  const CacheShape shape = {.layers = model.layers,
                            .kv_heads = model.kv_heads,
                            .query_heads = model.query_heads,
                            .format = format,
                            .capacity = kTokens + kBlock,
                            .block_max = kBlock};
  const auto pool = PagePool::Create(4 * shape.pages() * page_bytes, page_bytes).value();
  SessionCache trunk(shape, *pool->Reserve(shape.pages()), policy);
  for (SlotMap& map : trunk.maps()) {
    for (int32_t token = 0; token < kTokens; token += static_cast<int32_t>(map.placed_slots().size())) {
      map.Place(token, token, std::min(kBlock, kTokens - token));
    }
  }
  // Every page is touched once, as a prompt touches it.
  std::vector<std::byte*> pages;
  for (int32_t lane = 0; lane < shape.lanes(); ++lane) {
    const LaneStorage storage = trunk.storage(lane / shape.kv_heads, lane % shape.kv_heads);
    for (int64_t page = 0; page < shape.pages_of(lane); ++page) pages.push_back(storage.pages[page]);
  }
  for (std::byte* const page : pages) std::memset(page, 1, static_cast<size_t>(page_bytes));
  std::vector<std::byte> copy(pages.size() * static_cast<size_t>(page_bytes));

  std::vector<double> opening, first_token, copying;
  int64_t taken = 0, copied = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t free = pool->pages_free();
    const auto start = std::chrono::steady_clock::now();
    SessionCache branch = trunk.Fork();
    EBB_CHECK(branch.ReserveShared(*pool, false).ok());
    const auto opened = std::chrono::steady_clock::now();
    taken = free - pool->pages_free();
    const int64_t before = pool->pages_copied();
    const auto writes = std::chrono::steady_clock::now();
    EBB_CHECK(branch.OwnNext(*pool, 1, 0).ok());
    const auto written = std::chrono::steady_clock::now();
    copied = pool->pages_copied() - before;
    for (size_t page = 0; page < pages.size(); ++page) {
      std::memcpy(copy.data() + page * static_cast<size_t>(page_bytes), pages[page], static_cast<size_t>(page_bytes));
    }
    const auto done = std::chrono::steady_clock::now();
    opening.push_back(Milliseconds(opened - start));
    first_token.push_back(Milliseconds(written - writes));
    copying.push_back(Milliseconds(done - written));
  }
  const double open = Median(opening), whole = Median(copying);
  std::printf(
      "%-10s %-10s %6lld pages of %3lld KiB: opened in %7.3f ms, first token's %4lld copies %7.3f ms, all of K and V"
      " %8.3f ms; opening / copying %.4f, pages taken %.3f of all\n",
      model.name.c_str(), scorer.c_str(), static_cast<long long>(shape.pages()),
      static_cast<long long>(page_bytes / 1024), open, static_cast<long long>(copied), Median(first_token), whole,
      open / whole, static_cast<double>(taken) / static_cast<double>(shape.pages()));
}

}  // namespace
}  // namespace ebb

int main() {
  const std::vector<ebb::Shape> shapes = {
      {.name = "perf-0.5b", .layers = 24, .kv_heads = 4, .query_heads = 4, .head_dim = 64},
      {.name = "perf-1b", .layers = 16, .kv_heads = 8, .query_heads = 4, .head_dim = 64},
  };
  for (const ebb::Shape& shape : shapes) {
    for (const char* scorer : {"full", "streaming", "h2o", "tova"}) ebb::Bench(shape, scorer);
  }
}
