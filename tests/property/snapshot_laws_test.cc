// Laws of snapshots, under every policy of the registry: a restored session is the one that was never saved, and what
// is no whole snapshot of this model is refused by name.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/model/head_gates_file.h"
#include "engine/snapshot/session_image.h"
#include "policies/hash_random.h"
#include "policies/registry.h"
#include "policies/status.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

constexpr int32_t kBlock = 12;
constexpr int32_t kPrompt = 90;
constexpr int32_t kBudget = 44;

struct NamedPolicy {
  std::string name = {};
  PolicySpec spec = {};
};

std::span<const std::byte> BytesOf(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string Saved(const Engine& engine, const Session& session) {
  SnapshotWriter writer;
  EXPECT_TRUE(engine.Save(session, writer).ok());
  std::string bytes = writer.Finish();
  SealSnapshot(bytes);
  return bytes;
}

absl::StatusOr<std::unique_ptr<Session>> Restored(Engine& engine, const std::string& bytes) {
  EBB_ASSIGN(const std::vector<SnapshotRecord> records, ReadSnapshot(BytesOf(bytes)));
  EBB_ASSIGN(SessionImage image, ReadSession(records, engine.image_limits()));
  return engine.Reopen(image);
}

std::string ReasonOf(const absl::Status& status) { return GetRefusal(status).reason; }

class SnapshotLaws : public testing::Test {
 protected:
  SnapshotLaws() {
    const auto engine = OpenTestEngine(file_.path());
    const HeadGates gates = {0, 1, 1, 0};  // of two layers with two heads
    EXPECT_TRUE(WriteHeadGates(HeadGatesPath(file_.path()), engine->config(), "a test", gates).ok());
    engine_ = OpenTestEngine(file_.path(), {.threads = 2});
    other_ = OpenTestEngine(file_.path(), {.threads = 1});
  }
  ~SnapshotLaws() override { std::filesystem::remove(HeadGatesPath(file_.path())); }

  // Every scorer with every choice that goes with it.
  std::vector<NamedPolicy> Policies() const {
    std::vector<NamedPolicy> policies;
    for (const ScorerRow& row : ScorerRegistry()) {
      const PolicySpec plain = {
          .scorer = std::string(row.name), .budget = row.evicts ? kBudget : 400, .schedule = Schedule::kEveryStep};
      const auto add = [&](const char* choice, const PolicySpec& spec) {
        if (!Resolve(spec, LimitsOf(engine_->config())).ok()) return;  // does not go with this scorer
        policies.push_back({absl::StrFormat("%s %s", row.name, choice), spec});
      };
      const auto with = [&](auto member, auto value) {
        PolicySpec spec = plain;
        spec.*member = value;
        return spec;
      };
      add("original", with(&PolicySpec::positions, Positions::kOriginal));
      add("compacted", with(&PolicySpec::positions, Positions::kCompacted));
      add("rk", with(&PolicySpec::rope_cache, RopeCache::kRk));
      add("f32", with(&PolicySpec::kv_type, KvType::kF32));
      add("f16", with(&PolicySpec::kv_type, KvType::kF16));
      add("int8", with(&PolicySpec::kv_type, KvType::kInt8));
      add("fp8", with(&PolicySpec::kv_type, KvType::kFp8));
      add("duo", with(&PolicySpec::allocation, Allocation::kDuo));
      if (!row.evicts) continue;
      add("caote", with(&PolicySpec::modifier, Modifier::kCaote));
      add("fast_caote", with(&PolicySpec::modifier, Modifier::kFastCaote));
      add("layer", with(&PolicySpec::scope, Scope::kLayer));
      add("max", with(&PolicySpec::reduction, Reduction::kMax));
      add("union", with(&PolicySpec::reduction, Reduction::kUnion));
      add("pyramid", with(&PolicySpec::allocation, Allocation::kPyramid));
      PolicySpec every_n = with(&PolicySpec::schedule, Schedule::kEveryN);
      every_n.every_n = 5;
      add("every 5", every_n);
      PolicySpec lazy = with(&PolicySpec::overflow, 9);
      lazy.slack = 3;
      lazy.max_drop = 7;
      add("lazy", lazy);
      PolicySpec ratio = with(&PolicySpec::budget_ratio, 0.6);
      ratio.budget.reset();
      add("ratio", ratio);
      PolicySpec once = with(&PolicySpec::schedule, Schedule::kOncePrompt);
      for (const auto& [then, name] :
           {std::pair(Then::kSame, "once, then the same"), std::pair(Then::kSlideRecent, "once, then slides"),
            std::pair(Then::kGrow, "once, then grows")}) {
        once.then = then;
        once.recent = then == Then::kSlideRecent ? std::optional(8) : std::nullopt;
        add(name, once);
      }
      once.then = Then::kSame;
      for (const auto& [allocation, name] :
           {std::pair(Allocation::kAda, "ada"), std::pair(Allocation::kPyramid, "once pyramid")}) {
        once.allocation = allocation;
        add(name, once);
      }
    }
    EXPECT_GT(policies.size(), 8 * ScorerRegistry().size());
    return policies;
  }

  // One step on both; the bits of what they say are the same.
  void StepBoth(Session& one, Session& other, std::span<const int32_t> tokens, bool prompt_ends = false) {
    ASSERT_EQ(one.room(), other.room());
    ASSERT_TRUE(one.CanAppend(static_cast<int32_t>(tokens.size())).ok());
    BatchRow row = {.session = &one, .tokens = tokens, .want = Want::kAll, .prompt_ends = prompt_ends};
    BatchRow twin = {.session = &other, .tokens = tokens, .want = Want::kAll, .prompt_ends = prompt_ends};
    engine_->Run({&row, 1});
    other_->Run({&twin, 1});
    ASSERT_EQ(row.status.code(), twin.status.code());
    ASSERT_EQ(LargestDifference(row.logits, twin.logits), 0);
    ASSERT_EQ(row.evicted_slots, twin.evicted_slots);
  }

  // Saves on one engine and restores on the other: nothing there shows that it was not always there.
  std::unique_ptr<Session> MoveOver(const Session& session) {
    const uint64_t before = engine_->Digest(session);
    const std::string bytes = Saved(*engine_, session);
    EXPECT_EQ(engine_->Digest(session), before) << "saving changed it";
    auto restored = Restored(*other_, bytes);
    EXPECT_TRUE(restored.ok()) << restored.status();
    if (!restored.ok()) return nullptr;
    EXPECT_EQ(other_->Digest(**restored), before);
    EXPECT_EQ((*restored)->capacity(), session.capacity());
    EXPECT_EQ((*restored)->pages(), session.pages());
    EXPECT_EQ((*restored)->steps_to_eviction(), session.steps_to_eviction());
    EXPECT_EQ(Saved(*other_, **restored), bytes) << "saved again it is another";
    return *std::move(restored);
  }

  TinyModelFile file_ = TinyModelFile({});
  std::unique_ptr<Engine> engine_ = {};
  std::unique_ptr<Engine> other_ = {};
};

// In the midst of the prompt, behind it, and in the answer; each time the rest is run on both sides.
TEST_F(SnapshotLaws, ARestoredSessionGoesOnBitForBitAsTheUndisturbedOneUnderEveryPolicy) {
  for (const NamedPolicy& policy : Policies()) {
    SCOPED_TRACE(policy.name);
    for (const int32_t saved_at : {0, 36, kPrompt, kPrompt + 7}) {
      SCOPED_TRACE(saved_at);
      const std::vector<int32_t> tokens = RandomTokens(1, kPrompt + 60, engine_->config().vocab);
      const auto session = OpenTestSession(*engine_, policy.spec, kBlock);
      std::unique_ptr<Session> twin;
      for (int32_t at = 0; at < static_cast<int32_t>(tokens.size());) {
        if (at == saved_at) {
          twin = MoveOver(*session);
          ASSERT_NE(twin, nullptr);
        }
        const bool in_prompt = at < kPrompt;
        const int32_t count = in_prompt ? std::min(kBlock, kPrompt - at) : 1;
        const std::span<const int32_t> step = std::span(tokens).subspan(at, count);
        at += count;
        if (session->room() < count) break;
        if (twin == nullptr) {
          BatchRow row = {.session = session.get(), .tokens = step, .prompt_ends = at == kPrompt};
          engine_->Run({&row, 1});
        } else {
          ASSERT_NO_FATAL_FAILURE(StepBoth(*session, *twin, step, at == kPrompt));
        }
      }
      ASSERT_NE(twin, nullptr);
      ASSERT_EQ(engine_->Digest(*session), other_->Digest(*twin));
    }
  }
}

// What a caller did to the session by hand is in it, too: lanes that lost different tokens, another policy, moved
// positions.
TEST_F(SnapshotLaws, ARestoredSessionRemembersEvictionsSwapsAndShifts) {
  const int32_t vocab = engine_->config().vocab;
  for (const char* to : {"h2o", "streaming", "snapkv", "full"}) {
    SCOPED_TRACE(to);
    const auto session = OpenTestSession(*engine_, {.scorer = "tova", .budget = kBudget}, kBlock);
    Feed(*engine_, *session, RandomTokens(2, kPrompt, vocab), kBlock);
    ASSERT_TRUE(engine_->ShiftPositions(*session, 20, 5).ok());
    EvictRequest request;
    for (int32_t lane = 0; lane < 4; ++lane) {
      request.slots.push_back({.layer = lane / 2, .head = lane % 2, .slots = {lane, lane + 9}});
    }
    ASSERT_TRUE(engine_->Evict(*session, request).ok());
    auto twin = MoveOver(*session);
    ASSERT_NE(twin, nullptr);
    const bool is_full = std::string(to) == "full";
    const PolicySpec spec = {.scorer = to,
                             .budget = is_full ? 300 : 36,
                             .positions = Positions::kOriginal,
                             .schedule = Schedule::kEveryStep};
    const ValidSpec next = *Resolve(spec, LimitsOf(engine_->config()));
    ASSERT_TRUE(engine_->SetPolicy(*session, next).ok());
    ASSERT_TRUE(other_->SetPolicy(*twin, next).ok());
    ASSERT_EQ(engine_->Digest(*session), other_->Digest(*twin));
    twin = MoveOver(*session);
    ASSERT_NE(twin, nullptr);
    for (const int32_t token : RandomTokens(3, 40, vocab)) {
      ASSERT_NO_FATAL_FAILURE(StepBoth(*session, *twin, {&token, 1}));
    }
    ASSERT_EQ(engine_->Digest(*session), other_->Digest(*twin));
  }
}

// What free slots hold was another session's once, and goes on no disk.
TEST_F(SnapshotLaws, ASnapshotHoldsNothingOfWhoWasThereBefore) {
  const int32_t vocab = engine_->config().vocab;
  const std::vector<int32_t> tokens = RandomTokens(4, 60, vocab);
  const PolicySpec spec = {.scorer = "h2o", .budget = kBudget};
  const auto fresh = OpenTestSession(*engine_, spec, kBlock);
  Feed(*engine_, *fresh, tokens, kBlock);
  {
    const auto before = OpenTestSession(*other_, spec, kBlock);
    Feed(*other_, *before, RandomTokens(5, 200, vocab), kBlock);
  }
  const auto after = OpenTestSession(*other_, spec, kBlock);  // in the same pages
  Feed(*other_, *after, tokens, kBlock);
  EXPECT_EQ(Saved(*engine_, *fresh), Saved(*other_, *after));
}

TEST_F(SnapshotLaws, AFlippedBitInAnyByteIsFound) {
  const auto session = OpenTestSession(*engine_, {.scorer = "h2o", .budget = kBudget}, kBlock);
  Feed(*engine_, *session, RandomTokens(6, kPrompt, engine_->config().vocab), kBlock);
  const std::string whole = Saved(*engine_, *session);
  ASSERT_TRUE(Restored(*other_, whole).ok());
  std::string bytes = whole;
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << HashBits(7, 0, at) % 8));
    const std::string reason = ReasonOf(ReadSnapshot(BytesOf(bytes)).status());
    const bool in_version = at >= 8 && at < 12;
    ASSERT_EQ(reason, in_version ? "SNAPSHOT_VERSION" : "SNAPSHOT_DAMAGED") << "byte " << at;
    bytes[at] = whole[at];
  }
}

TEST_F(SnapshotLaws, ACutAtAnyLengthIsFoundAndSoIsWhatFollows) {
  const auto session = OpenTestSession(*engine_, {.scorer = "streaming", .budget = 8}, kBlock);
  Feed(*engine_, *session, RandomTokens(8, 20, engine_->config().vocab), kBlock);
  std::string whole = Saved(*engine_, *session);
  for (size_t length = 0; length < whole.size(); ++length) {
    ASSERT_EQ(ReasonOf(ReadSnapshot(BytesOf(whole).first(length)).status()), "SNAPSHOT_DAMAGED") << length;
  }
  EXPECT_TRUE(ReadSnapshot(BytesOf(whole)).ok());
  whole += '\0';
  EXPECT_EQ(ReasonOf(ReadSnapshot(BytesOf(whole)).status()), "SNAPSHOT_DAMAGED");
}

TEST_F(SnapshotLaws, WhatIsNotOfThisModelOrThisServerIsRefusedByName) {
  const auto session = OpenTestSession(*engine_, {.scorer = "calibrated", .budget = kBudget}, kBlock);
  Feed(*engine_, *session, RandomTokens(9, kPrompt, engine_->config().vocab), kBlock);
  const std::string bytes = Saved(*engine_, *session);

  const TinyModelFile stranger({.seed = 2});
  const auto of_stranger = OpenTestEngine(stranger.path());
  absl::Status status = Restored(*of_stranger, bytes).status();
  EXPECT_EQ(ReasonOf(status), "SNAPSHOT_FOREIGN");
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(engine_->config().fingerprint));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(of_stranger->config().fingerprint));

  const auto rounded = OpenTestEngine(file_.path(), {.accuracy = Accuracy::kFast});
  EXPECT_EQ(ReasonOf(Restored(*rounded, bytes).status()), "SNAPSHOT_FOREIGN") << "another arithmetic";
  const auto narrow = OpenTestEngine(file_.path(), {.step_tokens_max = kBlock - 1});
  EXPECT_EQ(ReasonOf(Restored(*narrow, bytes).status()), "SNAPSHOT_FOREIGN") << "blocks that are too large";
  const auto small = OpenTestEngine(file_.path(), {.arena_bytes = 12 << 10});
  EXPECT_EQ(ReasonOf(Restored(*small, bytes).status()), "SESSION_TOO_LARGE");

  const TinyModelFile uncalibrated({.calibrated = false});  // the same model
  const auto no_weights = OpenTestEngine(uncalibrated.path());
  EXPECT_EQ(ReasonOf(Restored(*no_weights, bytes).status()), "CALIBRATION_MISSING");

  std::string newer = bytes;
  newer[8] = 2;
  SealSnapshot(newer);
  status = ReadSnapshot(BytesOf(newer)).status();
  EXPECT_EQ(ReasonOf(status), "SNAPSHOT_VERSION");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SnapshotLaws, ADraftThatWaitsIsNotSaved) {
  const auto session = OpenTestSession(*engine_, {.scorer = "h2o", .budget = kBudget}, kBlock);
  Feed(*engine_, *session, RandomTokens(10, kPrompt, engine_->config().vocab), kBlock);
  const std::vector<int32_t> draft = {1, 2, 3};
  BatchRow row = {.session = session.get(), .tokens = draft, .want = Want::kAll, .draft = true};
  engine_->Run({&row, 1});
  SnapshotWriter writer;
  EXPECT_EQ(ReasonOf(engine_->Save(*session, writer)), "DRAFT_PENDING");
}

// Checksums are right and what they cover is not, as if by a faulty writer: refused, or a session whose parts fit.
TEST_F(SnapshotLaws, WrongContentsUnderRightChecksumsBreakNothing) {
  int32_t refused = 0, opened = 0;
  for (const char* scorer : {"h2o", "streaming", "full"}) {
    const auto session = OpenTestSession(*engine_, {.scorer = scorer, .budget = kBudget + 60}, kBlock);
    Feed(*engine_, *session, RandomTokens(11, kPrompt, engine_->config().vocab), kBlock);
    const std::string whole = Saved(*engine_, *session);
    size_t head = 0;  // all but K and V, which may be anything
    const auto records = *ReadSnapshot(BytesOf(whole));
    for (const SnapshotRecord& record : records) head += record.kind == RecordKind::kLane ? 0 : record.payload.size();
    HashRandom random(12);
    for (int32_t round = 0; round < 3000; ++round) {
      std::string bytes = whole;
      for (int32_t i = random.Uniform(1, 3); i > 0; --i) {
        const auto at = static_cast<size_t>(random.Uniform(12, static_cast<int32_t>(head)));
        bytes[at] = static_cast<char>(random.Uniform(0, 255));
      }
      SealSnapshot(bytes);
      const auto restored = Restored(*other_, bytes);
      if (restored.ok()) {
        ++opened;
        other_->Digest(**restored);
        EXPECT_GE((*restored)->room(), 0);
      } else {
        ++refused;
        EXPECT_NE(ReasonOf(restored.status()), "");
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(opened, 100);
}

TEST_F(SnapshotLaws, PiecesAreCheckedAsTheWholeIs) {
  const auto session = OpenTestSession(*engine_, {.scorer = "streaming", .budget = 8}, kBlock);
  Feed(*engine_, *session, RandomTokens(8, 20, engine_->config().vocab), kBlock);
  std::string whole = Saved(*engine_, *session);
  const size_t records = ReadSnapshot(BytesOf(whole)).value().size();
  for (const size_t step : {size_t{1}, size_t{3}, size_t{17}, size_t{1000}}) {
    const auto check = [&] {
      SnapshotCheck pieces;
      for (size_t size = 0; size < whole.size(); size += step) pieces.More(BytesOf(whole).first(size));
      return pieces.Finish(BytesOf(whole));
    };
    const auto found = check();
    ASSERT_TRUE(found.ok()) << step;
    ASSERT_EQ(found->size(), records) << step;
    whole[whole.size() / 2] = static_cast<char>(whole[whole.size() / 2] ^ 1);
    ASSERT_EQ(ReasonOf(check().status()), "SNAPSHOT_DAMAGED") << step;
    whole[whole.size() / 2] = static_cast<char>(whole[whole.size() / 2] ^ 1);
  }
}

}  // namespace
}  // namespace ebb
