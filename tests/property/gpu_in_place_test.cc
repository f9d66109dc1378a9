// An engine on a device, emulated, against itself: a session whose newcomers took the slots of those who left, and one
// whose living tokens were laid anew in order and without holes, go on alike.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/gpu_world.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

// Both sides decode in float32 and add in orders of their own, as in eviction_oracle_test.cc.
constexpr double kInPlaceTolerance = 2.6e-5;
// Where both sides decode on the device, in float32, and K and V rest alike: only what comes later may rest as the next
// number, 2^-8 of itself away, in one element of one of 20 tokens and more. Some five times what that does to a logit.
constexpr double kNextNumberTolerance = 2e-3;

// What lies together for one slot of a page: `bytes` at `first` + slot * `bytes`.
struct SlotPart {
  int64_t first = 0, bytes = 0;
};

// As kernels.h draws a page: K, V, and with bytes the scales of both.
std::vector<SlotPart> PartsOfPage(const GpuEngine& engine) {
  const int64_t scale = IsScaled(engine.kv_type()) ? 4 : 0;
  const int64_t row = engine.page_bytes() / (2 * gpu::kPageSlots) - scale;
  std::vector<SlotPart> parts = {{0, row}, {gpu::kPageSlots * row, row}};
  const int64_t scales = 2 * gpu::kPageSlots * row;
  if (scale > 0) parts.insert(parts.end(), {{scales, scale}, {scales + gpu::kPageSlots * scale, scale}});
  return parts;
}

// Makes `to`, a fresh session, what `from` is, but with the living tokens of every lane by age in its first slots, and
// behind them bytes that are no numbers.
void LayByAge(GpuEngine& engine, const GpuSession& from, GpuSession& to) {
  const auto old = from.Seats();
  EBB_CHECK(old.ok());
  const auto [lanes, capacity] = std::pair(from.shape().lanes, from.shape().capacity);
  const int32_t tracks = from.tracks();
  const auto page_bytes = static_cast<size_t>(engine.page_bytes());
  const auto lane_pages = static_cast<size_t>(from.shape().pages_per_lane());
  GpuSeats seats = {.token = std::vector<int32_t>(old->token.size(), -1),
                    .position = std::vector<int32_t>(old->token.size(), -1),
                    .score = std::vector<float>(old->score.size(), 0),
                    .queries = old->queries};
  for (int32_t lane = 0; lane < lanes; ++lane) {
    const int64_t at = int64_t{lane} * capacity;
    std::vector<std::byte> lay(lane_pages * page_bytes), laid(lay.size(), std::byte{0xFF});
    const auto pages = [&](const GpuSession& session) {
      return session.pages().subspan(static_cast<size_t>(lane) * lane_pages, lane_pages);
    };
    for (size_t i = 0; i < lane_pages && pages(from)[i] >= 0; ++i) {
      const std::byte* const page = engine.page(pages(from)[i]);
      EBB_CHECK(engine.gpu().CopyOut(page, std::span(lay).subspan(i * page_bytes, page_bytes)).ok());
    }
    EBB_CHECK(engine.gpu().Wait().ok());
    std::vector<int32_t> order(static_cast<size_t>(capacity));
    std::iota(order.begin(), order.end(), 0);
    std::erase_if(order, [&](int32_t slot) { return old->token[at + slot] < 0; });
    std::ranges::sort(order, {}, [&](int32_t slot) { return old->token[at + slot]; });
    for (int32_t slot = 0; slot < std::ssize(order); ++slot) {
      seats.token[at + slot] = old->token[at + order[slot]];
      seats.position[at + slot] = old->position[at + order[slot]];
      for (int32_t track = 0; track < tracks; ++track) {
        const int64_t scores = at * tracks + int64_t{track} * capacity;
        seats.score[scores + slot] = old->score[scores + order[slot]];
      }
      for (const SlotPart& part : PartsOfPage(engine)) {
        const auto place = [&](int32_t of) {
          return of / gpu::kPageSlots * engine.page_bytes() + part.first + of % gpu::kPageSlots * part.bytes;
        };
        std::copy_n(lay.begin() + place(order[slot]), part.bytes, laid.begin() + place(slot));
      }
    }
    for (size_t i = 0; i < lane_pages && pages(to)[i] >= 0; ++i) {
      const auto page = std::span<const std::byte>(laid).subspan(i * page_bytes, page_bytes);
      EBB_CHECK(engine.gpu().CopyIn(page, engine.page(pages(to)[i])).ok());
    }
  }
  GpuProgress at = {.tokens = static_cast<int32_t>(from.live() + from.evicted())};
  for (const GpuSight sight : kGpuSights) at.live[sight] = at.slots[sight] = from.live(sight);
  EBB_CHECK(to.Seat(seats, at).ok());
  EBB_CHECK(engine.gpu().Wait().ok());
}

void ExpectInPlaceIsCompacted(const TinyModel& model, const PolicySpec& spec, int32_t warp, uint64_t seed) {
  SCOPED_TRACE(spec.scorer + ", type " + std::to_string(static_cast<int>(spec.kv_type)) + ", seed " +
               std::to_string(seed));
  const GpuWorld world(model);
  const auto engine = world.OpenOrDie(gpu::TableUnderTest(warp), spec.kv_type);
  const ValidSpec policy = world.Policy(spec);
  const auto in_place = OpenOrDie(*engine, policy), compacted = OpenOrDie(*engine, policy);
  const int32_t budget = *spec.budget, alone = budget + (kEmulationIsSlow ? 8 : 30),
                together = kEmulationIsSlow ? 4 : 16;
  const std::vector<int32_t> tokens = RandomTokens(seed, alone + together, model.vocab);
  for (int32_t first = 0; first < alone;) {
    const int32_t block = first < budget ? std::min(16, budget - first) : 1;
    GpuRow row = {.session = in_place.get(), .tokens = std::span(tokens).subspan(first, block)};
    ASSERT_THAT(engine->Run({&row, 1}), IsOk());
    first += block;
  }
  LayByAge(*engine, *in_place, *compacted);
  const int32_t lanes = in_place->shape().lanes;
  for (int32_t lane = 0; lane < lanes; ++lane) {
    ASSERT_FALSE(std::ranges::is_sorted(LiveTokensBySlot(*in_place, lane)))
        << "lane " << lane << " has no refilled hole";
    ASSERT_TRUE(std::ranges::is_sorted(LiveTokensBySlot(*compacted, lane))) << "lane " << lane;
  }
  const int64_t evicted = in_place->evicted();
  const double tolerance = spec.kv_type == KvType::kF32 ? kInPlaceTolerance : kNextNumberTolerance;
  for (int32_t t = alone; t < alone + together; ++t) {
    const std::span<const int32_t> token(&tokens[t], 1);
    std::vector<GpuRow> rows = {{.session = in_place.get(), .tokens = token},
                                {.session = compacted.get(), .tokens = token}};
    ASSERT_THAT(engine->Run(rows), IsOk());
    ASSERT_EQ(rows[1].logits.size(), model.vocab);
    for (int32_t i = 0; i < model.vocab; ++i) {
      ASSERT_NEAR(rows[0].logits[i], rows[1].logits[i], tolerance) << "after token " << t;
    }
    for (int32_t lane = 0; lane < lanes; ++lane) {
      ASSERT_EQ(LiveTokens(*in_place, lane), LiveTokens(*compacted, lane)) << "lane " << lane << " after token " << t;
    }
  }
  EXPECT_EQ(in_place->evicted(), evicted + together);
  EXPECT_EQ(compacted->evicted(), in_place->evicted());
}

TEST(GpuInPlace, EqualsFreshlyCompactedCache) {
  PolicySpec spec = {.scorer = "h2o", .budget = kEmulationIsSlow ? 20 : 70};  // of more than one page
  uint64_t seed = 61;
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kF16, KvType::kInt8, KvType::kFp8}) {
    spec.kv_type = type;
    ExpectInPlaceIsCompacted({}, spec, seed % 2 == 0 ? 32 : 64, seed);
    ++seed;
  }
  if (kEmulationIsSlow) return;
  ExpectInPlaceIsCompacted({}, F32({.scorer = "streaming", .budget = 20}), 32, 71);
  ExpectInPlaceIsCompacted({}, F32({.scorer = "tova", .budget = 20, .positions = Positions::kCompacted}), 32, 72);
  ExpectInPlaceIsCompacted({}, F32({.scorer = "h2o", .budget = 20, .reduction = Reduction::kUnion}), 64, 73);
  ExpectInPlaceIsCompacted({}, F32({.scorer = "h2o", .budget = 20, .modifier = Modifier::kCaote}), 32, 74);
  ExpectInPlaceIsCompacted({}, F32({.scorer = "keydiff", .budget = 20, .recent = 4}), 64, 75);
  ExpectInPlaceIsCompacted({.architecture = "gemma3", .layers = 3, .window = 15, .window_pattern = 3},
                           F32({.scorer = "h2o", .budget = 20}), 32, 76);
}

// Counts launches that move tokens.
struct Fills {
  static inline int64_t launches = 0;
  static inline const gpu::Table* sound = nullptr;

  static gpu::Table Of(const gpu::Table& table) {
    sound = &table;
    gpu::Table counted = table;
    counted.fill_holes = [](const gpu::FillHolesArgs& args, gpu::Stream stream) {
      ++launches;
      sound->fill_holes(args, stream);
    };
    return counted;
  }
};

// Blocks that come past the budget have slots of their own while they are read; what comes after them has not, for the
// price of one launch for each kind of lanes, and none where tokens come one by one.
TEST(GpuInPlace, APromptLeavesNoMoreSlotsThanWhatComesAfterItNeeds) {
  constexpr int32_t kBudget = 20, kBlock = 16, kMore = 4;
  struct Case {
    PolicySpec spec = {};
    int32_t slots = kBudget + 1;  // while a token comes and before one leaves; of lanes without a window
    TinyModel model = {};
  };
  PolicySpec every_n = F32({.scorer = "h2o", .budget = kBudget, .schedule = Schedule::kEveryN, .every_n = 3});
  PolicySpec sage = F32({.scorer = "sage", .budget = kBudget});
  PolicySpec grows = F32({.scorer = "tova", .budget = kBudget, .recent = 4, .schedule = Schedule::kOncePrompt});
  grows.then = Then::kGrow;
  for (const Case& c : {Case{F32({.scorer = "h2o", .budget = kBudget})},
                        Case{F32({.scorer = "streaming", .budget = kBudget, .positions = Positions::kCompacted})},
                        Case{F32({.scorer = "h2o", .budget = kBudget, .overflow = 5}), kBudget + 5},
                        Case{every_n, kBudget + 3}, Case{sage}, Case{grows, kBudget + kMore},
                        Case{F32({.scorer = "h2o", .budget = kBudget}),
                             kBudget + 1,
                             {.architecture = "gemma3", .layers = 3, .window = 9, .window_pattern = 3}}}) {
    SCOPED_TRACE(c.spec.scorer + ", " + std::to_string(c.slots) + " slots");
    const GpuWorld world(c.model);
    const gpu::Table table = Fills::Of(gpu::TableUnderTest(32));
    const auto engine = world.OpenOrDie(table);
    const auto session = OpenOrDie(*engine, world.Policy(c.spec), kBlock);
    Fills::launches = 0;
    const std::vector<int32_t> tokens = RandomTokens(5, 3 * kBlock + kMore, world.model().vocab);
    for (int32_t first = 0; first < std::ssize(tokens);) {
      const int32_t count = first < 3 * kBlock ? kBlock : 1;
      GpuRow row = {.session = session.get(),
                    .tokens = std::span(tokens).subspan(first, count),
                    .prompt_ends = first + count == 3 * kBlock};
      ASSERT_THAT(engine->Run({&row, 1}), IsOk());
      first += count;
      const int64_t kinds = c.model.window > 0 ? 2 : 1;
      EXPECT_EQ(Fills::launches, count > 1 ? 0 : kinds) << "after token " << first;
    }
    const GpuSession::Shape& shape = session->shape();
    const auto places = session->Tokens();
    ASSERT_THAT(places, IsOk());
    for (int32_t lane = 0; lane < shape.lanes; ++lane) {
      const GpuSight sight = shape.SightOf(lane);
      const int32_t slots = session->slots(sight);
      const int32_t needed = sight == GpuSight::kAll ? c.slots : c.model.window + 1;
      EXPECT_LE(slots, needed) << lane;
      EXPECT_GT(slots, needed - kMore) << lane;
      const std::span in_lane = std::span(*places).subspan(int64_t{lane} * shape.capacity, shape.capacity);
      EXPECT_EQ(std::ranges::count(in_lane.subspan(slots), -1), shape.capacity - slots) << lane;
      EXPECT_EQ(shape.capacity - std::ranges::count(in_lane, -1), session->live(sight)) << lane;
    }
  }
}

// Nor where some gather before they leave together: those that come fill their slots again.
TEST(GpuInPlace, TokensThatComeOneByOneMoveNobody) {
  const GpuWorld world({.layers = 1});
  const gpu::Table table = Fills::Of(gpu::TableUnderTest(64));
  const auto engine = world.OpenOrDie(table);
  for (const int32_t overflow : {1, 4}) {
    const auto session = OpenOrDie(*engine, world.Policy(F32({.scorer = "h2o", .budget = 20, .overflow = overflow})));
    Fills::launches = 0;
    for (const int32_t token : RandomTokens(6, 40, world.model().vocab)) {
      GpuRow row = {.session = session.get(), .tokens = {&token, 1}};
      ASSERT_THAT(engine->Run({&row, 1}), IsOk());
    }
    EXPECT_GT(session->evicted(), 10);
    EXPECT_EQ(Fills::launches, 0);
  }
}

}  // namespace
}  // namespace ebb
