// The engine on a device, emulated, against itself, in company, and what it refuses (gpu_engine_run_test.cc: against
// the engine of the CPU; gpu_recording_test.cc: from a recording).

#include "engine/gpu/gpu_engine.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/ops/gpu/draw_weight.h"
#include "engine/ops/gpu/emulation.h"
#include "engine/sampler.h"
#include "policies/status.h"
#include "tests/support/gpu_target.h"
#include "tests/support/gpu_world.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

// What a session yields alone and beside others that come and go, bit for bit.
void ExpectTheSameBesideOthers(const TinyModel& model) {
  SCOPED_TRACE(model.architecture);
  const GpuWorld world(model);
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
TEST(GpuEngine, ASessionIsTheSameBesideOthers) {
  ExpectTheSameBesideOthers({.layers = 1});
  ExpectTheSameBesideOthers({.architecture = "gemma3", .layers = 1});
  ExpectTheSameBesideOthers({.architecture = "gemma3", .window = 9, .window_pattern = 2});
  for (const char* const architecture : {"opt", "gptj", "bloom"}) {
    ExpectTheSameBesideOthers({.architecture = architecture, .layers = 1, .kv_heads = 4});
  }
  ExpectTheSameBesideOthers({.architecture = "qwen3moe"});
  ExpectTheSameBesideOthers({.architecture = "qwen3moe", .layers = 1, .type = DType::kBf16});
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

// The mass of a row at a temperature, and a share's end, as the sampler's weights have them.
void ExpectMassOf(std::span<const float> row, const RowFacts& facts) {
  const float best = std::ranges::max(row);
  std::vector<double> ends;
  double mass = 0;
  for (const float logit : row) ends.push_back(mass += gpu::DrawWeight(logit, best, facts.asked.temperature));
  ASSERT_NEAR(facts.mass.mass, mass, 1e-13 * mass);
  if (facts.asked.share < 0 || facts.mass.margin < 1e-12) return;
  EXPECT_EQ(facts.mass.token, std::ranges::upper_bound(ends, facts.asked.share * mass) - ends.begin());
}

// What a device tells of a row that asks for facts: those of the row that it tells to another who asks for all, whoever
// else is in the step and whether it is replayed; and the sampler draws from them what it draws from the row. Options
// differ from row to row and from step to step, and the launches do not.
TEST(GpuEngine, TheFactsAreThoseOfTheRowAndDrawItsToken) {
  const GpuWorld world({.layers = 1});
  const int32_t vocab = world.model().vocab;
  const auto whole = world.OpenOrDie(gpu::TableUnderTest(32));
  const auto engine = world.OpenOrDie(gpu::TableUnderTest(64));
  const ValidSpec policy = world.Policy(F32({.scorer = "streaming", .budget = 20}));
  const std::vector<int32_t> tokens = RandomTokens(12, 64, vocab);
  const std::vector<SamplingOptions> sampling = {
      {.temperature = 0.8F, .top_k = 8, .top_p = 0.9F, .repetition_penalty = 1.2F, .penalty_window = 12},
      {.temperature = 0.6F, .top_p = 0.8F},
      {.temperature = 1.5F},
      {},
      {.temperature = 0.3F, .min_p = 0.2F},
      {.temperature = 0}};
  Sampler sampler(vocab);
  int decided = 0, asked = 0;
  constexpr size_t kSessions = 3;
  std::vector<std::unique_ptr<GpuSession>> sessions, others;
  for (size_t i = 0; i < kSessions; ++i) {
    sessions.push_back(OpenOrDie(*engine, policy));
    others.push_back(OpenOrDie(*whole, policy));
  }
  std::vector<size_t> at(kSessions, 0);
  for (int step = 0; step < (kEmulationIsSlow ? 8 : 24); ++step) {
    std::vector<GpuRow> rows, expected;
    std::vector<SamplingOptions> options;
    for (size_t i = 0; i < kSessions; ++i) {
      const size_t block = step == 0 || (step == 15 && i == 1) ? 5 + i : 1;
      const auto of_row = std::span(tokens).subspan(at[i], block);
      at[i] += block;
      // The first session wants all kinds, the last always facts.
      const GpuWant want = i == 0 && step % 3 == 1   ? GpuWant::kAll
                           : i == 0 && step % 3 == 2 ? GpuWant::kToken
                           : i == 1 && step % 2 == 0 ? GpuWant::kLast
                                                     : GpuWant::kFacts;
      options.push_back(sampling[(static_cast<size_t>(step) + i) % sampling.size()]);
      options.back().seed = static_cast<uint64_t>(step);
      gpu::DrawNeeds needs = NeedsOf(options.back(), vocab, static_cast<int64_t>(at[i]));
      if (step >= 12) needs.largest = std::min(needs.largest, 1 + static_cast<int32_t>(i));
      rows.push_back({.session = sessions[i].get(), .tokens = of_row, .want = want, .needs = needs});
      expected.push_back({.session = others[i].get(), .tokens = of_row, .want = GpuWant::kLast});
    }
    ASSERT_THAT(engine->Run(rows), IsOk());
    ASSERT_THAT(whole->Run(expected), IsOk());
    for (size_t i = 0; i < kSessions; ++i) {
      SCOPED_TRACE(testing::Message() << "step " << step << ", session " << i);
      const std::span<const float> row = expected[i].logits;
      EXPECT_EQ(rows[i].next, expected[i].next);
      if (rows[i].want != GpuWant::kFacts) {
        EXPECT_TRUE(rows[i].facts.empty());
        EXPECT_EQ(rows[i].logits.empty(), rows[i].want == GpuWant::kToken);
        continue;
      }
      EXPECT_TRUE(rows[i].logits.empty());
      const RowFacts& facts = rows[i].facts;
      ASSERT_EQ(facts.largest.size(), rows[i].needs.largest);
      ExpectLargestOf(row, facts.largest);
      if (facts.asked.temperature > 0) ExpectMassOf(row, facts);
      const std::span<const int32_t> log = std::span(tokens).first(at[i]);
      const std::optional<int32_t> token = sampler.DrawTokenFrom(options[i], facts, log);
      ++asked;
      if (!token) continue;
      ++decided;
      ASSERT_EQ(*token, sampler.DrawToken(options[i], row, log));
    }
  }
  EXPECT_GT(decided, asked / 2);
  EXPECT_GT(engine->replays(), kEmulationIsSlow ? 1 : 12);
}

TEST(GpuEngine, TheFactsOfAVocabularyOfSeveralParts) {
  const GpuWorld world({.layers = 1});
  ModelConfig config = world.config();
  config.vocab = gpu::kLargestPart + 100;
  const auto engine = GpuEngine::OpenRandom(gpu::TableUnderTest(32), config, {.arena_bytes = 16 << 20});
  ASSERT_THAT(engine, IsOk());
  const ValidSpec policy = world.Policy({.scorer = "full"});
  const auto session = OpenOrDie(**engine, policy);
  const auto other = OpenOrDie(**engine, policy);
  const std::vector<int32_t> tokens = {7};
  std::vector<GpuRow> rows = {{.session = session.get(),
                               .tokens = tokens,
                               .want = GpuWant::kFacts,
                               .needs = {.largest = gpu::kLargestMax, .temperature = 1.5F, .share = 0.99}},
                              {.session = other.get(), .tokens = tokens}};
  ASSERT_THAT((*engine)->Run(rows), IsOk());
  ASSERT_EQ(rows[0].facts.largest.size(), gpu::kLargestMax);
  ExpectLargestOf(rows[1].logits, rows[0].facts.largest);
  ExpectMassOf(rows[1].logits, rows[0].facts);
}

TEST(GpuEngine, PagesComeBackAndAreRefusedWhereNoneAreLeft) {
  const GpuWorld world({});
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
  const GpuWorld world({});
  const auto engine = world.OpenOrDie(gpu::TableUnderTest(32));
  const auto reason = [&](PolicySpec spec) {
    return GetRefusal(engine->OpenSession(world.Policy(spec), 16).status()).reason;
  };
  EXPECT_EQ(reason(F32({.scorer = "snapkv", .budget = 64})), "GPU_POLICY_UNSUPPORTED");
  EXPECT_EQ(reason(F32({.scorer = "tova", .budget = 64, .scope = Scope::kLayer})), "GPU_POLICY_UNSUPPORTED");
  EXPECT_EQ(reason({.scorer = "h2o", .budget = 64, .kv_type = KvType::kF16}), "GPU_POLICY_UNSUPPORTED");

  const GpuWorld windows({.window = 16});
  const auto near = windows.OpenOrDie(gpu::TableUnderTest(32));
  const PolicySpec once = F32({.scorer = "h2o", .budget = 64, .schedule = Schedule::kOncePrompt});
  EXPECT_EQ(GetRefusal(near->OpenSession(windows.Policy(once), 16).status()).reason, "GPU_POLICY_UNSUPPORTED");
  const GpuWorld narrow({.heads = 8, .kv_heads = 8, .head_dim = 8});
  EXPECT_EQ(GetRefusal(narrow.Open(gpu::TableUnderTest(32), {.arena_bytes = 1 << 20}).status()).reason,
            "UNSUPPORTED_MODEL_FEATURE");
  const GpuWorld many({.architecture = "qwen3moe", .ffn_dim = 32, .experts = 40, .experts_used = 33});
  EXPECT_THAT(many.Open(gpu::TableUnderTest(32), {.arena_bytes = 1 << 20}).status().message(),
              testing::HasSubstr("40 experts, 33 of them to a token (up to 1024, and 32)"));
  EXPECT_EQ(GetRefusal(world.Open(gpu::TableUnderTest(32), {.arena_bytes = 100}).status()).reason, "ARENA_TOO_SMALL");

  const auto session = OpenOrDie(*engine, world.Policy(F32({.scorer = "full"})));
  EXPECT_EQ(GetRefusal(session->CanAppend(17)).reason, "BLOCK_TOO_LARGE");
  EXPECT_EQ(GetRefusal(session->CanAppend(0)).reason, "BLOCK_TOO_LARGE");
}

TEST(GpuEngine, TokensPastTheLearnedPositionsAreRefused) {
  const GpuWorld world({.architecture = "opt", .layers = 1, .kv_heads = 4, .context = 20});
  const auto engine = world.OpenOrDie(gpu::TableUnderTest(32));
  const auto session = OpenOrDie(*engine, world.Policy(F32({.scorer = "streaming", .budget = 12})));
  const std::vector<int32_t> tokens = RandomTokens(9, 15, world.model().vocab);
  GpuRow row = {.session = session.get(), .tokens = tokens};
  ASSERT_THAT(engine->Run({&row, 1}), IsOk());
  EXPECT_LT(session->live(), 15);
  EXPECT_THAT(session->CanAppend(5), IsOk());
  const absl::Status status = session->CanAppend(6);
  EXPECT_EQ(GetRefusal(status).reason, "LENGTH_LIMIT");
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("the 20 positions that the model learned"));
}

TEST(GpuEngine, AStepDoesNotMultiplyWithLearnedPositions) {
  const GpuWorld world({.architecture = "opt", .layers = 1, .kv_heads = 4, .context = 20});
  const auto engine = world.OpenOrDie(gpu::TableUnderTest(32));
  const int64_t looked_up = engine->weight_bytes() - engine->multiplied_bytes(1);
  EXPECT_GE(looked_up, int64_t{20} * world.model().dim * 4);
}

TEST(GpuEngine, AStepMultipliesNoMoreExpertsThanItsRowsCanChoose) {
  const GpuWorld world({.architecture = "qwen3moe", .layers = 1});
  const auto engine = world.OpenOrDie(gpu::TableUnderTest(32));
  const TinyModel& m = world.model();
  const int64_t expert = int64_t{3} * m.ffn_dim * m.dim * 4;
  const int64_t all = engine->weight_bytes() - engine->embedding_bytes();
  EXPECT_EQ(engine->multiplied_bytes(1), all - 4 * expert);
  EXPECT_EQ(engine->multiplied_bytes(2), all - 2 * expert);
  EXPECT_EQ(engine->multiplied_bytes(3), all);
  EXPECT_EQ(engine->multiplied_bytes(100), all);
}

// Random weights, by which a shape is measured.
TEST(GpuEngine, AMixtureOfRandomWeightsMakesNumbers) {
  const GpuWorld world({.architecture = "qwen3moe", .layers = 1});
  const auto engine = GpuEngine::OpenRandom(gpu::TableUnderTest(32), world.config(), {.arena_bytes = 16 << 20});
  ASSERT_THAT(engine, IsOk());
  const auto session = OpenOrDie(**engine, world.Policy({.scorer = "full"}));
  const std::vector<int32_t> tokens = {1, 2, 3};
  GpuRow row = {.session = session.get(), .tokens = tokens};
  ASSERT_THAT((*engine)->Run({&row, 1}), IsOk());
  EXPECT_TRUE(std::ranges::all_of(row.logits, [](float logit) { return std::isfinite(logit); }));
}

TEST(GpuEngine, OutOfMemoryNamesWhatIsNeededAndWhatIsFree) {
  const GpuWorld world({});
  const gpu::Table& table = gpu::TableUnderTest(32);
  int64_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(table.memory(&free_bytes, &total_bytes), nullptr);
  const int64_t bytes = ((total_bytes >> 30) + 1) << 30;
  const absl::Status status = world.Open(table, {.arena_bytes = bytes}).status();
  EXPECT_EQ(GetRefusal(status).reason, "GPU_OUT_OF_MEMORY");
  EXPECT_GT(std::stoll(GetRefusal(status).metadata.at("bytes")), bytes);  // the model's are among them
  const std::string free = GetRefusal(status).metadata.at("free");
  EXPECT_GT(std::stoll(free), 0);
  EXPECT_LE(std::stoll(free), total_bytes);
}

// What is refused for is what would have been allocated, to the byte.
TEST(GpuEngine, AModelWithoutRoomIsRefusedBeforeAnyOfItIsCopied) {
  ScarceMemory::free = ScarceMemory::allocated = 0;
  const gpu::Table table = ScarceMemory::Of(gpu::TableUnderTest(32));
  const auto gpu = Gpu::Open(table, 0);
  ASSERT_THAT(gpu, IsOk());
  for (const TinyModel& model :
       {TinyModel{}, TinyModel{.type = DType::kBf16, .tied_head = true}, TinyModel{.type = DType::kQ8_0},
        TinyModel{.type = DType::kQ4_0}, TinyModel{.architecture = "gpt2", .kv_heads = 4},
        TinyModel{.architecture = "bloom", .kv_heads = 4}, TinyModel{.architecture = "qwen3moe"}}) {
    const GpuWorld world(model);
    ScarceMemory::free = int64_t{1} << 30;
    ScarceMemory::allocated = 0;
    ASSERT_THAT(world.Upload(**gpu), IsOk());
    const int64_t needed = ScarceMemory::allocated;

    ScarceMemory::free = needed - 1;
    ScarceMemory::allocated = 0;
    const absl::Status status = world.Upload(**gpu).status();
    EXPECT_EQ(GetRefusal(status).reason, "GPU_OUT_OF_MEMORY");
    EXPECT_EQ(GetRefusal(status).metadata.at("bytes"), std::to_string(needed));
    EXPECT_EQ(GetRefusal(status).metadata.at("free"), std::to_string(needed - 1));
    EXPECT_THAT(std::string(status.message()), testing::StartsWith("the model: needs "));
    EXPECT_EQ(ScarceMemory::allocated, 0);

    ScarceMemory::free = needed;
    EXPECT_THAT(world.Upload(**gpu), IsOk());
  }
}

// Each type of K and V, and of weights, has kernels of its own.
TEST(EmulationOfGpuEngine, AKernelThatWantsMoreSharedMemoryThanThereIsIsRefusedByName) {
  const GpuWorld world({.type = DType::kQ8_0});
  const gpu::Table& table = gpu::TableUnderTest(32);
  int32_t needed_most = 0;
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kInt8}) {
    const GpuEngineOptions options = {.arena_bytes = 1 << 20, .kv_type = type};
    // From nothing up, to what all kernels have enough of.
    int32_t there = 0, refused = 0;
    absl::Status status;
    for (;; ++refused) {
      gpu::emulation::SetSharedMax(there);
      status = world.Open(table, options).status();
      if (status.ok()) break;
      ASSERT_EQ(GetRefusal(status).reason, "GPU_SHARED_MEMORY") << status;
      EXPECT_THAT(std::string(status.message()),
                  testing::MatchesRegex("emulated on the host.* has " + std::to_string(there) +
                                        " bytes of .*, and the kernel (attend|attend_tensor|attend_block|observe_block|"
                                        "linear_rows_small) needs [0-9]+"));
      EXPECT_EQ(GetRefusal(status).metadata.at("there"), std::to_string(there));
      const int32_t needed = std::stoi(GetRefusal(status).metadata.at("bytes"));
      ASSERT_GT(needed, there);
      there = needed;
    }
    EXPECT_GE(refused, 2);  // of linear_rows_small and attention
    needed_most = std::max(needed_most, there);
  }
  EXPECT_LE(needed_most, 64 << 10);  // what AMD's devices have
  gpu::emulation::SetSharedMax(99 << 10);
}

// What was launched in a rehearsal did not run, and what is launched after it does.
TEST(EmulationOfGpuEngine, ARehearsalRunsNothing) {
  const gpu::Table& table = gpu::TableUnderTest(32);
  const auto gpu = Gpu::Open(table, 0);
  ASSERT_THAT(gpu, IsOk());
  const std::vector<float> before = {3};
  const auto memory = (*gpu)->Upload(std::span(before), "a number");
  ASSERT_THAT(memory, IsOk());
  const auto launch = [&] {
    table.random({.type = gpu::Element::kF32, .values = memory->as<void>(), .n = 1, .scale = 1, .seed = 1},
                 (*gpu)->stream());
  };
  const auto number = [&] {
    std::vector<float> now(1);
    EBB_CHECK((*gpu)->CopyOut(memory->as<float>(), std::span(now)).ok() && (*gpu)->Wait().ok());
    return now[0];
  };
  EXPECT_THAT((*gpu)->Rehearse(launch), IsOk());
  EXPECT_EQ(number(), 3);
  launch();
  EXPECT_NE(number(), 3);
}

TEST(GpuEngine, ADevicesFaultIsAStatus) {
  static bool is_broken = false;
  static const gpu::Table& sound = gpu::TableUnderTest(32);
  gpu::Table table = sound;
  table.wait = [](gpu::Stream stream) -> gpu::Error {
    return is_broken ? "an illegal memory access was encountered" : sound.wait(stream);
  };
  const GpuWorld world({});
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

TEST(GpuEngine, ADeviceThatThereIsNotIsRefusedWithBothNumbers) {
  const gpu::Table& table = gpu::TableUnderTest(32);
  int32_t devices = 0;
  ASSERT_EQ(table.devices(&devices), nullptr);
  for (const int32_t device : {-1, devices, devices + 2}) {
    const absl::Status status = GpuWorld({}).Open(table, {.device = device, .arena_bytes = 1 << 20}).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(GetRefusal(status).reason, "GPU_UNAVAILABLE");
    EXPECT_EQ(GetRefusal(status).field, "model.gpu_device");
    EXPECT_THAT(
        std::string(status.message()),
        testing::StartsWith(absl::StrFormat(
            "model.gpu_device: %d is not among the GPUs that the process sees: there are %d,", device, devices)));
  }
}

TEST(GpuEngine, ALibraryForOtherDevicesIsRefusedBeforeAnythingIsCopied) {
  gpu::Table table = ScarceMemory::Of(gpu::TableUnderTest(32));
  ScarceMemory::free = int64_t{1} << 30;
  ScarceMemory::allocated = 0;
  table.rehearsed = [](gpu::Shortage* shortage) -> gpu::Error {
    static_cast<void>(ScarceMemory::sound->rehearsed(shortage));
    return "no kernel image is available for execution on the device";
  };
  const absl::Status status = GpuWorld({}).Open(table, {.arena_bytes = 1 << 20}).status();
  EXPECT_EQ(GetRefusal(status).reason, "GPU_UNAVAILABLE");
  EXPECT_THAT(std::string(status.message()),
              testing::MatchesRegex("libebb_.*\\.so has no kernels for .*: no kernel image is available .*"));
  EXPECT_EQ(ScarceMemory::allocated, 0);
}

TEST(GpuEngine, AMissingLibraryIsNamed) {
  const absl::Status status = LoadGpuTable("cuda", "/nowhere").status();
  EXPECT_EQ(GetRefusal(status).reason, "GPU_UNAVAILABLE");
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/nowhere/libebb_cuda.so"));
}

}  // namespace
}  // namespace ebb
