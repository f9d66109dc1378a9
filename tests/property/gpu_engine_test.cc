// The engine on a device, emulated, against the engine of the CPU: the same tokens in the same blocks give the same
// logits, and in every lane the same tokens live, step by step. Then against itself, where tokens lie elsewhere, in
// company, and from a recording.

#include "engine/gpu/gpu_engine.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "engine/gpu/gpu_model.h"
#include "engine/model/gguf.h"
#include "engine/sampler.h"
#include "policies/hash_random.h"
#include "policies/status.h"
#include "tests/support/gpu_target.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

// Both sides compute in float32 and add in orders of their own; eviction_oracle_test.cc says what that comes to on
// models of this size.
constexpr double kTolerance = 2.6e-5;
// Where K and V are BF16 or bytes, a device rounds queries, keys and weights of prompts' blocks to BF16, by up to 2^-9
// of each (attend_block.cc), and a key that differs in its last bit may rest as the next number; the CPU attends in
// float32. Logits of these models are of size 2: a fiftieth of that.
constexpr double kRoundedTolerance = 4e-2;
// Where both sides decode on the device, in float32, and K and V rest alike: only what comes later may rest as the next
// number, 2^-8 of itself away, in one element of one of 20 tokens and more. Some five times what that does to a logit.
constexpr double kNextNumberTolerance = 2e-3;

// A sanitizer makes the emulation some fifty times as slow.
#ifdef EBB_SANITIZED
constexpr bool kIsSlow = true;
#else
constexpr bool kIsSlow = false;
#endif

PolicySpec F32(PolicySpec spec) {
  spec.kv_type = KvType::kF32;
  return spec;
}

// A model file, and engines on it.
class World {
 public:
  explicit World(const TinyModel& model)
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

std::unique_ptr<GpuSession> OpenOrDie(GpuEngine& engine, const ValidSpec& policy, int32_t block_max = 16) {
  auto session = engine.OpenSession(policy, block_max);
  EBB_CHECK(session.ok());
  return *std::move(session);
}

std::vector<int32_t> LiveTokensBySlot(const GpuSession& session, int32_t lane) {
  const absl::StatusOr<std::vector<int32_t>> all = session.Tokens();
  EBB_CHECK(all.ok());
  const auto first = all->begin() + int64_t{lane} * session.shape().capacity;
  std::vector<int32_t> tokens(first, first + session.shape().capacity);
  std::erase(tokens, -1);
  return tokens;
}

std::vector<int32_t> LiveTokens(const GpuSession& session, int32_t lane) {
  std::vector<int32_t> tokens = LiveTokensBySlot(session, lane);
  std::ranges::sort(tokens);
  return tokens;
}

void ExpectTheCpusRun(const TinyModel& model, const PolicySpec& spec, int32_t warp, int32_t count, uint64_t seed) {
  const double tolerance = spec.kv_type == KvType::kF32 ? kTolerance : kRoundedTolerance;
  SCOPED_TRACE(spec.scorer + ", warps of " + std::to_string(warp) + ", seed " + std::to_string(seed));
  const World world(model);
  const auto cpu = OpenTestEngine(world.path());
  const auto cpu_session = OpenTestSession(*cpu, spec, 16);
  const auto gpu = world.OpenOrDie(gpu::TableUnderTest(warp), spec.kv_type);
  const auto session = OpenOrDie(*gpu, world.Policy(spec));
  HashRandom random(seed);
  const std::vector<int32_t> tokens = RandomTokens(seed, count, model.vocab);
  constexpr size_t kPrompt = 26;  // it ends with the step that goes past
  for (size_t first = 0; first < tokens.size();) {
    const auto block = std::min<size_t>(random.Uniform(0, 2) == 0 ? random.Uniform(1, 16) : 1, tokens.size() - first);
    const std::span<const int32_t> step(tokens.data() + first, block);
    const bool prompt_ends = first <= kPrompt && first + block > kPrompt;
    BatchRow on_cpu = {.session = cpu_session.get(), .tokens = step, .want = Want::kAll, .prompt_ends = prompt_ends};
    ASSERT_THAT(cpu->OwnPages(on_cpu), IsOk());
    cpu->Run({&on_cpu, 1});
    const std::vector<float> expected(on_cpu.logits.begin(), on_cpu.logits.end());
    GpuRow row = {.session = session.get(), .tokens = step, .prompt_ends = prompt_ends, .want = GpuWant::kAll};
    ASSERT_THAT(gpu->Run({&row, 1}), IsOk());
    ASSERT_EQ(row.logits.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(row.logits[i], expected[i], tolerance) << "after token " << first;
    }
    EXPECT_EQ(row.next, BestToken(row.logits.last(static_cast<size_t>(model.vocab))));
    ASSERT_EQ(session->live(), cpu_session->cache_length());
    for (int32_t lane = 0; lane < model.layers * model.kv_heads; ++lane) {
      ASSERT_EQ(LiveTokens(*session, lane),
                LiveTokens(*cpu, *cpu_session, lane / model.kv_heads, lane % model.kv_heads))
          << "lane " << lane << " after token " << first;
    }
    first += block;
  }
  EXPECT_EQ(session->evicted(), cpu_session->evicted());
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusWithHeavyHitters) {
  const TinyModel model = {.layers = 2, .heads = 6, .kv_heads = 3};
  ExpectTheCpusRun(model, F32({.scorer = "h2o", .budget = 24}), 32, kIsSlow ? 35 : 90, 1);
  if (kIsSlow) return;
  ExpectTheCpusRun(model, F32({.scorer = "h2o", .budget = 20, .overflow = 5, .positions = Positions::kCompacted}), 64,
                   60, 2);
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusByAgeAndByTheLastQuery) {
  ExpectTheCpusRun({}, F32({.scorer = "streaming", .budget = 20}), 64, kIsSlow ? 30 : 60, 3);
  if (kIsSlow) return;
  ExpectTheCpusRun({.heads = 4, .kv_heads = 1}, F32({.scorer = "tova", .budget = 20}), 32, 60, 4);
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusByWhatTheOutputLoses) {
  ExpectTheCpusRun({}, F32({.scorer = "h2o", .budget = 20, .modifier = Modifier::kCaote}), 32, kIsSlow ? 30 : 60, 31);
  if (kIsSlow) return;
  ExpectTheCpusRun({.heads = 4, .kv_heads = 1},
                   F32({.scorer = "tova", .budget = 20, .overflow = 4, .modifier = Modifier::kFastCaote}), 64, 60, 32);
  const PolicySpec in_place = {.scorer = "tova", .budget = 20, .recent = 4, .modifier = Modifier::kCaote};
  ExpectTheCpusRun({.layers = 2}, F32(in_place), 32, 60, 33);
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusWithQueryHeadsApart) {
  const TinyModel model = {.layers = kIsSlow ? 1 : 2, .heads = kIsSlow ? 4 : 6, .kv_heads = 2};
  ExpectTheCpusRun(model, F32({.scorer = "sage", .budget = 16}), 32, kIsSlow ? 34 : 80, 41);
  if (kIsSlow) return;
  const TinyModel wide = {.heads = 4, .kv_heads = 1};
  ExpectTheCpusRun(wide, F32({.scorer = "sage", .budget = 20, .overflow = 3, .slack = 2, .max_drop = 4}), 64, 80, 42);
  ExpectTheCpusRun(wide, F32({.scorer = "h2o", .budget = 20, .reduction = Reduction::kUnion}), 64, 60, 43);
  ExpectTheCpusRun(model, F32({.scorer = "h2o", .budget = 20, .reduction = Reduction::kMax}), 32, 60, 44);
  ExpectTheCpusRun(model,
                   F32({.scorer = "tova", .budget = 20, .reduction = Reduction::kL2, .modifier = Modifier::kCaote}), 32,
                   60, 45);
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusOnEverySchedule) {
  ExpectTheCpusRun({}, F32({.scorer = "h2o", .budget = 16, .schedule = Schedule::kEveryN, .every_n = 3}), 32,
                   kIsSlow ? 30 : 60, 46);
  if (kIsSlow) return;
  PolicySpec once = {.scorer = "tova", .budget = 16, .recent = 4, .schedule = Schedule::kOncePrompt};
  once.modifier = Modifier::kCaote;
  for (const Then then : {Then::kSame, Then::kSlideRecent, Then::kGrow}) {
    once.then = then;
    ExpectTheCpusRun({.context = 128}, F32(once), 32, 60, 47 + static_cast<int>(then));
  }
}

TEST(GpuEngine, LogitsAndVictimsAreTheCpusByKeysAndByChance) {
  ExpectTheCpusRun({}, F32({.scorer = "keydiff", .budget = 20, .recent = 4}), 32, kIsSlow ? 30 : 60, 51);
  ExpectTheCpusRun({}, F32({.scorer = "knorm", .budget = 20, .recent = 4}), 64, kIsSlow ? 30 : 60, 52);
  if (kIsSlow) return;
  ExpectTheCpusRun({.layers = 2, .heads = 6, .kv_heads = 3},
                   F32({.scorer = "knorm", .parameters = {{"keep", 1}}, .budget = 20, .overflow = 3}), 32, 60, 53);
  for (const double mode : {0, 1}) {
    ExpectTheCpusRun({.layers = 2},
                     F32({.scorer = "random", .parameters = {{"seed", 7}, {"mode", mode}}, .budget = 20, .recent = 4}),
                     32, 60, 54);
  }
}

TEST(GpuEngine, LogitsAreTheCpusWhereNobodyLeavesPastASplitAndWithQuantisedWeights) {
  if (!kIsSlow) ExpectTheCpusRun({.layers = 1}, F32({.scorer = "full"}), 32, 150, 5);
  ExpectTheCpusRun({.layers = 1, .type = DType::kQ8_0}, F32({.scorer = "full"}), 32, kIsSlow ? 10 : 30, 6);
  ExpectTheCpusRun({.layers = 1, .type = DType::kQ4_0, .tied_head = true}, F32({.scorer = "full"}), 64,
                   kIsSlow ? 10 : 30, 7);
}

TEST(GpuEngine, LogitsAreNearTheCpusWithEveryTypeOfKAndV) {
  const PolicySpec spec = {.scorer = "streaming", .budget = 20, .positions = Positions::kCompacted};
  for (const KvType type : {KvType::kBf16, KvType::kF16, KvType::kInt8}) {
    PolicySpec of_type = spec;
    of_type.kv_type = type;
    ExpectTheCpusRun({.layers = 1}, of_type, 64, kIsSlow ? 20 : 60, 10);
  }
}

// What lies together for one slot of a page: `bytes` at `first` + slot * `bytes`.
struct SlotPart {
  int64_t first = 0, bytes = 0;
};

// As kernels.h draws a page: K, V, and with bytes the scales of both.
std::vector<SlotPart> PartsOfPage(const GpuEngine& engine) {
  const int64_t scale = engine.kv_type() == KvType::kInt8 ? 4 : 0;
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
    for (size_t i = 0; i < lane_pages; ++i) {
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
    for (size_t i = 0; i < lane_pages; ++i) {
      const auto page = std::span<const std::byte>(laid).subspan(i * page_bytes, page_bytes);
      EBB_CHECK(engine.gpu().CopyIn(page, engine.page(pages(to)[i])).ok());
    }
  }
  const auto tokens = static_cast<int32_t>(from.live() + from.evicted());
  EBB_CHECK(to.Seat(seats, {.tokens = tokens, .live = from.live(), .slots = from.live()}).ok());
  EBB_CHECK(engine.gpu().Wait().ok());
}

// A session whose newcomers took the slots of those who left, against one in which the same tokens were laid in order
// and without holes, as they go on together.
void ExpectInPlaceIsCompacted(const TinyModel& model, const PolicySpec& spec, int32_t warp, uint64_t seed) {
  SCOPED_TRACE(spec.scorer + ", type " + std::to_string(static_cast<int>(spec.kv_type)) + ", seed " +
               std::to_string(seed));
  const World world(model);
  const auto engine = world.OpenOrDie(gpu::TableUnderTest(warp), spec.kv_type);
  const ValidSpec policy = world.Policy(spec);
  const auto in_place = OpenOrDie(*engine, policy), compacted = OpenOrDie(*engine, policy);
  const int32_t budget = *spec.budget, alone = budget + (kIsSlow ? 8 : 30), together = kIsSlow ? 4 : 16;
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
  const double tolerance = spec.kv_type == KvType::kF32 ? kTolerance : kNextNumberTolerance;
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

TEST(GpuEngine, InPlaceEqualsFreshlyCompactedCache) {
  PolicySpec spec = {.scorer = "h2o", .budget = kIsSlow ? 20 : 70};  // of more than one page
  uint64_t seed = 61;
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kF16, KvType::kInt8}) {
    spec.kv_type = type;
    ExpectInPlaceIsCompacted({}, spec, seed % 2 == 0 ? 32 : 64, seed);
    ++seed;
  }
  if (kIsSlow) return;
  ExpectInPlaceIsCompacted({}, F32({.scorer = "streaming", .budget = 20}), 32, 71);
  ExpectInPlaceIsCompacted({}, F32({.scorer = "tova", .budget = 20, .positions = Positions::kCompacted}), 32, 72);
  ExpectInPlaceIsCompacted({}, F32({.scorer = "h2o", .budget = 20, .reduction = Reduction::kUnion}), 64, 73);
  ExpectInPlaceIsCompacted({}, F32({.scorer = "h2o", .budget = 20, .modifier = Modifier::kCaote}), 32, 74);
  ExpectInPlaceIsCompacted({}, F32({.scorer = "keydiff", .budget = 20, .recent = 4}), 64, 75);
}

// What a session yields alone and beside others that come and go, bit for bit.
TEST(GpuEngine, ASessionIsTheSameBesideOthers) {
  const World world({.layers = 1});
  const auto engine = world.OpenOrDie(gpu::TableUnderTest(32), KvType::kBf16);
  const ValidSpec policy = world.Policy({.scorer = "h2o", .budget = 20});
  const std::vector<int32_t> tokens = RandomTokens(8, 50, world.model().vocab);
  const auto run = [&](bool company) {
    const auto session = OpenOrDie(*engine, policy);
    std::vector<std::unique_ptr<GpuSession>> others;
    std::vector<float> logits;
    size_t first = 0;
    for (const size_t block : {size_t{16}, size_t{1}, size_t{1}, size_t{9}, size_t{1}, size_t{1}}) {
      std::vector<GpuRow> rows;
      if (company) {
        others.push_back(OpenOrDie(*engine, policy));
        if (others.size() > 3) others.erase(others.begin());
        for (size_t i = 0; i < others.size(); ++i) {
          rows.push_back({.session = others[i].get(), .tokens = std::span(tokens).subspan(7 * i, i % 2 == 0 ? 1 : 12)});
        }
      }
      rows.insert(rows.begin() + static_cast<int64_t>(rows.size() / 2),
                  {.session = session.get(), .tokens = std::span(tokens).subspan(first, block), .want = GpuWant::kAll});
      EXPECT_THAT(engine->Run(rows), IsOk());
      const GpuRow& own = *std::ranges::find(rows, session.get(), &GpuRow::session);
      logits.insert(logits.end(), own.logits.begin(), own.logits.end());
      first += block;
    }
    return logits;
  };
  EXPECT_EQ(run(false), run(true));
}

// Launches that are replayed are those that would have been made: of sessions that grow past splits, evict, and come
// and go.
TEST(GpuEngine, AStepFromARecordingIsTheStepItself) {
  const World world({.layers = 1});
  const std::vector<int32_t> tokens = RandomTokens(9, 40, world.model().vocab);
  int64_t replays = 0;
  const auto run = [&](bool records) {
    auto engine = world.Open(gpu::TableUnderTest(32), {.arena_bytes = 16 << 20, .records = records});
    EBB_CHECK(engine.ok());
    std::vector<std::unique_ptr<GpuSession>> sessions;
    std::vector<float> logits;
    for (size_t t = 0; t < tokens.size(); ++t) {
      const Modifier modifier = t == 12 ? Modifier::kCaote : Modifier::kNone;
      if (t % 12 == 0) {
        sessions.push_back(OpenOrDie(**engine, world.Policy({.scorer = "h2o", .budget = 20, .modifier = modifier})));
      }
      if (t == 30) sessions.erase(sessions.begin());
      std::vector<GpuRow> rows;
      for (const auto& session : sessions) rows.push_back({.session = session.get(), .tokens = {&tokens[t], 1}});
      rows[0].want = t % 2 == 0 ? GpuWant::kToken : GpuWant::kLast;
      EXPECT_THAT((*engine)->Run(rows), IsOk());
      for (const GpuRow& row : rows) {
        logits.insert(logits.end(), row.logits.begin(), row.logits.end());
        logits.push_back(static_cast<float>(row.next));
      }
    }
    replays = (*engine)->replays();
    return logits;
  };
  const std::vector<float> launched = run(false);
  EXPECT_EQ(replays, 0);
  EXPECT_EQ(run(true), launched);
  EXPECT_GT(replays, 25);
}

void ExpectLargestOf(std::span<const float> row, std::span<const gpu::TokenLogit> largest) {
  std::vector<int32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int32_t token) { return row[token]; });
  for (size_t place = 0; place < largest.size(); ++place) {
    ASSERT_EQ(largest[place].token, order[place]) << place;
    ASSERT_EQ(largest[place].logit, row[order[place]]) << place;
  }
}

// What a device tells of a row that asks for its largest logits: those of the row that it tells to another who asks for
// all, whoever else is in the step and whether it is replayed; and the sampler draws from them what it draws from the
// row.
TEST(GpuEngine, TheLargestLogitsAreThoseOfTheRowAndDrawItsToken) {
  const World world({.layers = 1});
  const int32_t vocab = world.model().vocab;
  const auto whole = world.OpenOrDie(gpu::TableUnderTest(32));
  const auto engine = world.OpenOrDie(gpu::TableUnderTest(64));
  const ValidSpec policy = world.Policy(F32({.scorer = "streaming", .budget = 20}));
  const std::vector<int32_t> tokens = RandomTokens(12, 64, vocab);
  const SamplingOptions options = {
      .temperature = 0.8F, .top_k = 8, .top_p = 0.9F, .repetition_penalty = 1.2F, .penalty_window = 12};
  Sampler sampler(vocab);
  constexpr size_t kSessions = 3;
  std::vector<std::unique_ptr<GpuSession>> sessions, others;
  for (size_t i = 0; i < kSessions; ++i) {
    sessions.push_back(OpenOrDie(*engine, policy));
    others.push_back(OpenOrDie(*whole, policy));
  }
  std::vector<size_t> at(kSessions, 0);
  for (int step = 0; step < (kIsSlow ? 8 : 24); ++step) {
    std::vector<GpuRow> rows, expected;
    for (size_t i = 0; i < kSessions; ++i) {
      const size_t block = step == 0 || (step == 15 && i == 1) ? 5 + i : 1;
      const auto of_row = std::span(tokens).subspan(at[i], block);
      at[i] += block;
      // The first session wants all kinds, the last always its largest.
      const GpuWant want = i == 0 && step % 3 == 1   ? GpuWant::kAll
                           : i == 0 && step % 3 == 2 ? GpuWant::kToken
                           : i == 1 && step % 2 == 0 ? GpuWant::kLast
                                                     : GpuWant::kLargest;
      const int32_t count = std::min(vocab, step < 12 ? 40 : 1 + static_cast<int32_t>(i));
      rows.push_back({.session = sessions[i].get(), .tokens = of_row, .want = want, .count = count});
      expected.push_back({.session = others[i].get(), .tokens = of_row, .want = GpuWant::kLast});
    }
    ASSERT_THAT(engine->Run(rows), IsOk());
    ASSERT_THAT(whole->Run(expected), IsOk());
    for (size_t i = 0; i < kSessions; ++i) {
      SCOPED_TRACE(testing::Message() << "step " << step << ", session " << i);
      const std::span<const float> row = expected[i].logits;
      EXPECT_EQ(rows[i].next, expected[i].next);
      if (rows[i].want != GpuWant::kLargest) {
        EXPECT_TRUE(rows[i].largest.empty());
        EXPECT_EQ(rows[i].logits.empty(), rows[i].want == GpuWant::kToken);
        continue;
      }
      EXPECT_TRUE(rows[i].logits.empty());
      ASSERT_EQ(rows[i].largest.size(), rows[i].count);
      ExpectLargestOf(row, rows[i].largest);
      const std::span<const int32_t> log = std::span(tokens).first(at[i]);
      if (rows[i].count < LargestThatDecide(options, vocab)) continue;
      ASSERT_EQ(sampler.DrawTokenFrom(options, rows[i].largest, log), sampler.DrawToken(options, row, log));
    }
  }
  EXPECT_GT(engine->replays(), kIsSlow ? 2 : 12);
}

TEST(GpuEngine, TheLargestLogitsOfAVocabularyOfSeveralParts) {
  const World world({.layers = 1});
  ModelConfig config = world.config();
  config.vocab = gpu::kLargestPart + 100;
  const auto engine = GpuEngine::OpenRandom(gpu::TableUnderTest(32), config, {.arena_bytes = 16 << 20});
  ASSERT_THAT(engine, IsOk());
  const ValidSpec policy = world.Policy({.scorer = "full"});
  const auto session = OpenOrDie(**engine, policy);
  const auto other = OpenOrDie(**engine, policy);
  const std::vector<int32_t> tokens = {7};
  std::vector<GpuRow> rows = {
      {.session = session.get(), .tokens = tokens, .want = GpuWant::kLargest, .count = gpu::kLargestMax},
      {.session = other.get(), .tokens = tokens}};
  ASSERT_THAT((*engine)->Run(rows), IsOk());
  ASSERT_EQ(rows[0].largest.size(), gpu::kLargestMax);
  ExpectLargestOf(rows[1].logits, rows[0].largest);
}

TEST(GpuEngine, PagesComeBackAndAreRefusedWhereNoneAreLeft) {
  const World world({});
  const auto engine = world.Open(gpu::TableUnderTest(32), {.arena_bytes = 300 << 10, .kv_type = KvType::kF32});
  ASSERT_THAT(engine, IsOk());
  const ValidSpec policy = world.Policy(F32({.scorer = "h2o", .budget = 100}));
  const int64_t before = (*engine)->pages_free();
  {
    const auto session = OpenOrDie(**engine, policy);
    EXPECT_LT((*engine)->pages_free(), before);
    std::vector<std::unique_ptr<GpuSession>> more;
    absl::Status status = absl::OkStatus();
    while (status.ok()) {
      auto next = (*engine)->OpenSession(policy, 16);
      status = next.status();
      if (next.ok()) more.push_back(*std::move(next));
    }
    EXPECT_EQ(GetRefusal(status).reason, "NO_PAGES");
  }
  EXPECT_EQ((*engine)->pages_free(), before);
}

TEST(GpuEngine, RefusesWhatTheDeviceDoesNotDo) {
  const World world({});
  const auto engine = world.OpenOrDie(gpu::TableUnderTest(32));
  const auto reason = [&](PolicySpec spec) {
    return GetRefusal(engine->OpenSession(world.Policy(spec), 16).status()).reason;
  };
  EXPECT_EQ(reason(F32({.scorer = "snapkv", .budget = 64})), "GPU_POLICY_UNSUPPORTED");
  EXPECT_EQ(reason(F32({.scorer = "tova", .budget = 64, .scope = Scope::kLayer})), "GPU_POLICY_UNSUPPORTED");
  EXPECT_EQ(reason({.scorer = "h2o", .budget = 64, .kv_type = KvType::kF16}), "GPU_POLICY_UNSUPPORTED");

  const World windows({.window = 16});
  EXPECT_EQ(GetRefusal(windows.Open(gpu::TableUnderTest(32), {.arena_bytes = 1 << 20}).status()).reason,
            "UNSUPPORTED_MODEL_FEATURE");
  const World narrow({.heads = 8, .kv_heads = 8, .head_dim = 8});
  EXPECT_EQ(GetRefusal(narrow.Open(gpu::TableUnderTest(32), {.arena_bytes = 1 << 20}).status()).reason,
            "UNSUPPORTED_MODEL_FEATURE");
  EXPECT_EQ(GetRefusal(world.Open(gpu::TableUnderTest(32), {.arena_bytes = 100}).status()).reason, "ARENA_TOO_SMALL");

  const auto session = OpenOrDie(*engine, world.Policy(F32({.scorer = "full"})));
  EXPECT_EQ(GetRefusal(session->CanAppend(17)).reason, "BLOCK_TOO_LARGE");
  EXPECT_EQ(GetRefusal(session->CanAppend(0)).reason, "BLOCK_TOO_LARGE");
}

TEST(GpuEngine, OutOfMemoryNamesWhatIsNeededAndWhatIsFree) {
  const World world({});
  const gpu::Table& table = gpu::TableUnderTest(32);
  int64_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(table.memory(&free_bytes, &total_bytes), nullptr);
  const int64_t bytes = ((total_bytes >> 30) + 1) << 30;
  const absl::Status status = world.Open(table, {.arena_bytes = bytes}).status();
  EXPECT_EQ(GetRefusal(status).reason, "GPU_OUT_OF_MEMORY");
  EXPECT_EQ(GetRefusal(status).metadata.at("bytes"), std::to_string(bytes));
  const std::string free = GetRefusal(status).metadata.at("free");
  EXPECT_GT(std::stoll(free), 0);
  EXPECT_LE(std::stoll(free), total_bytes);
}

// What is refused for is what would have been allocated, to the byte.
TEST(GpuEngine, AModelWithoutRoomIsRefusedBeforeAnyOfItIsCopied) {
  static int64_t free_bytes = 0, allocated = 0;
  static const gpu::Table& sound = gpu::TableUnderTest(32);
  gpu::Table table = sound;
  table.memory = [](int64_t* free, int64_t* total) -> gpu::Error {
    *free = free_bytes;
    *total = int64_t{1} << 30;
    return nullptr;
  };
  table.allocate = [](int64_t bytes, void** memory) -> gpu::Error {
    allocated += bytes;
    return sound.allocate(bytes, memory);
  };
  const auto gpu = Gpu::Open(table, 0);
  ASSERT_THAT(gpu, IsOk());
  for (const TinyModel& model : {TinyModel{}, TinyModel{.type = DType::kBf16, .tied_head = true},
                                 TinyModel{.type = DType::kQ8_0}, TinyModel{.type = DType::kQ4_0}}) {
    const World world(model);
    free_bytes = int64_t{1} << 30;
    allocated = 0;
    ASSERT_THAT(world.Upload(**gpu), IsOk());
    const int64_t needed = allocated;

    free_bytes = needed - 1;
    allocated = 0;
    const absl::Status status = world.Upload(**gpu).status();
    EXPECT_EQ(GetRefusal(status).reason, "GPU_OUT_OF_MEMORY");
    EXPECT_EQ(GetRefusal(status).metadata.at("bytes"), std::to_string(needed));
    EXPECT_EQ(GetRefusal(status).metadata.at("free"), std::to_string(needed - 1));
    EXPECT_THAT(std::string(status.message()), testing::StartsWith("the model: needs "));
    EXPECT_EQ(allocated, 0);

    free_bytes = needed;
    EXPECT_THAT(world.Upload(**gpu), IsOk());
  }
}

TEST(GpuEngine, ADevicesFaultIsAStatus) {
  static bool is_broken = false;
  static const gpu::Table& sound = gpu::TableUnderTest(32);
  gpu::Table table = sound;
  table.wait = [](gpu::Stream stream) -> gpu::Error {
    return is_broken ? "an illegal memory access was encountered" : sound.wait(stream);
  };
  const World world({});
  const auto engine = world.OpenOrDie(table);
  const auto session = OpenOrDie(*engine, world.Policy(F32({.scorer = "full"})));
  const std::vector<int32_t> tokens = {1, 2, 3};
  GpuRow row = {.session = session.get(), .tokens = tokens};
  is_broken = true;
  const absl::Status status = engine->Run({&row, 1});
  is_broken = false;
  EXPECT_EQ(GetRefusal(status).reason, "GPU_FAULT");
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("illegal memory access"));
  EXPECT_EQ(GetRefusal(session->CanAppend(1)).reason, "GPU_FAULT");

  const auto another = OpenOrDie(*engine, world.Policy(F32({.scorer = "full"})));
  row.session = another.get();
  EXPECT_THAT(engine->Run({&row, 1}), IsOk());
}

TEST(GpuEngine, AMissingLibraryIsNamed) {
  const absl::Status status = LoadGpuTable("cuda", "/nowhere").status();
  EXPECT_EQ(GetRefusal(status).reason, "GPU_UNAVAILABLE");
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/nowhere/libebb_cuda.so"));
}

}  // namespace
}  // namespace ebb
