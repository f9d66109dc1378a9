// Tokens that move into holes, with all that lies at their slots, against a plain loop.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policies/hash_random.h"
#include "tests/support/attend_case.h"
#include "tests/unit/engine/ops/gpu/each_target.h"
#include "tests/unit/engine/ops/gpu/resting_row.h"

namespace ebb::gpu {
namespace {

// Sessions of one arena: who sits where, and bytes that stand for K and V.
struct Held {
  int32_t lanes = 0, capacity = 0, tracks = 0;
  int32_t slots = 0, spread = 0;  // as the kernel is told
  std::vector<int32_t> token = {}, position = {}, page = {};
  std::vector<float> score = {};

  int32_t pages_per_lane() const { return (capacity + kPageSlots - 1) / kPageSlots; }
};

// `live` tokens of each lane, in random slots below spread.
Held RandomHeld(HashRandom& random, int32_t lanes, bool spreads, int32_t slots_max) {
  Held h = {.lanes = lanes, .tracks = random.Uniform(1, 3)};
  h.capacity = random.Uniform(3, slots_max);
  h.spread = random.Uniform(2, h.capacity);
  h.slots = spreads ? random.Uniform(1, h.spread - 1) : h.spread;
  const int32_t live = random.Uniform(0, h.slots);
  h.token.assign(static_cast<size_t>(lanes) * h.capacity, -1);
  h.position = h.token;
  for (int32_t lane = 0; lane < lanes; ++lane) {
    const std::vector<int32_t> order = RandomOrder(random, h.spread);
    for (int32_t i = 0; i < live; ++i) {
      const auto at = static_cast<size_t>(lane * h.capacity + order[i]);
      h.token[at] = random.Uniform(0, 100000);
      h.position[at] = random.Uniform(0, 100000);
    }
  }
  for (size_t i = 0; i < h.token.size() * h.tracks; ++i) h.score.push_back(random.UniformFloat());
  return h;
}

// What lies at a slot of a page, as kernels.h draws it: pieces of `bytes`, of slot s at first + s * bytes.
struct Piece {
  int64_t first = 0, bytes = 0;
};
std::vector<Piece> PiecesOf(Element type, int32_t head_dim) {
  const int64_t row = head_dim * KvBytes(type);
  std::vector<Piece> pieces = {{0, row}, {kPageSlots * row, row}};
  const int64_t scales = 2 * kPageSlots * row;
  if (IsScaled(type)) pieces.insert(pieces.end(), {{scales, 4}, {scales + kPageSlots * 4, 4}});
  return pieces;
}

void FillPlainly(Held& h, Element type, int32_t head_dim, std::vector<std::byte>& arena) {
  for (int32_t lane = 0; lane < h.lanes; ++lane) {
    const int32_t first = lane * h.capacity;
    int32_t to = 0;
    for (int32_t from = h.slots; from < h.spread; ++from) {
      if (h.token[first + from] < 0) continue;
      while (h.token[first + to] >= 0) ++to;
      h.token[first + to] = std::exchange(h.token[first + from], -1);
      h.position[first + to] = std::exchange(h.position[first + from], -1);
      for (int32_t track = 0; track < h.tracks; ++track) {
        const int32_t scores = first * h.tracks + track * h.capacity;
        h.score[scores + to] = h.score[scores + from];
      }
      const auto at = [&](const Piece& piece, int32_t slot) {
        const int32_t page = h.page[lane * h.pages_per_lane() + slot / kPageSlots];
        return arena.begin() + page * PageBytes(type, head_dim) + piece.first + slot % kPageSlots * piece.bytes;
      };
      for (const Piece& piece : PiecesOf(type, head_dim)) std::copy_n(at(piece, from), piece.bytes, at(piece, to));
    }
  }
}

template <typename T>
void Append(const std::vector<T>& from, std::vector<std::byte>& to) {
  const auto bytes = std::as_bytes(std::span(from));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

TEST(GpuFillHoles, WhoSitsPastTheSlotsTakesTheLowestHolesWithAllThatIsHis) {
  HashRandom random(1);
  int moving = 0;
  for (int i = 0; i < Cases(40); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const Element type = kCacheTypes[i % std::size(kCacheTypes)];
    const int32_t head_dim = 16 * random.Uniform(1, i % 4 == 0 ? 16 : 4);
    const int32_t lanes = random.Uniform(1, 3);
    std::vector<Held> before;
    int32_t pages = 0;
    for (const bool spreads : {true, false, true}) {
      before.push_back(RandomHeld(random, lanes, spreads, i % 3 == 0 ? 9 : 600));
      pages += lanes * before.back().pages_per_lane();
    }
    const std::vector<int32_t> order = RandomOrder(random, pages);
    auto page = order.begin();
    for (Held& h : before) {
      h.page.assign(page, page + lanes * h.pages_per_lane());
      page += lanes * h.pages_per_lane();
    }
    std::vector<std::byte> arena(pages * PageBytes(type, head_dim));
    for (std::byte& byte : arena) byte = static_cast<std::byte>(random.Uniform(0, 255));

    std::vector<Held> after = before;
    std::vector<std::byte> filled = arena, expected;
    for (Held& h : after) {
      FillPlainly(h, type, head_dim, filled);
      Append(h.token, expected);
      Append(h.position, expected);
      Append(h.score, expected);
    }
    Append(filled, expected);
    moving += filled == arena ? 0 : 1;

    const std::vector<std::byte> got = OnEachTarget([&](const Table& table) {
      Mirror mirror(table);
      std::vector<SessionView> views;
      for (const Held& h : before) {
        views.push_back({.token = mirror.In(h.token),
                         .position = mirror.In(h.position),
                         .score = mirror.In(h.score),
                         .scratch = mirror.In(std::vector<int32_t>(h.token.size(), -7)),
                         .page = mirror.In(h.page),
                         .capacity = h.capacity,
                         .pages_per_lane = h.pages_per_lane(),
                         .slots = h.slots,
                         .spread = h.spread,
                         .tracks = h.tracks});
      }
      std::byte* const there = mirror.In(arena);
      table.fill_holes({.cache = {.arena = {.base = there, .type = type, .head_dim = head_dim},
                                  .sessions = mirror.In(views),
                                  .session_count = static_cast<int32_t>(views.size()),
                                  .lanes = lanes}},
                       mirror.stream());
      std::vector<std::byte> all;
      for (size_t s = 0; s < views.size(); ++s) {
        Held h = before[s];
        mirror.Out(views[s].token, h.token);
        mirror.Out(views[s].position, h.position);
        mirror.Out(views[s].score, h.score);
        Append(h.token, all);
        Append(h.position, all);
        Append(h.score, all);
      }
      std::vector<std::byte> now = arena;
      mirror.Out(there, now);
      Append(now, all);
      return all;
    });
    EXPECT_TRUE(got == expected);
  }
  EXPECT_GT(moving, Cases(40) / 2);
}

}  // namespace
}  // namespace ebb::gpu
