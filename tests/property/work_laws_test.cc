// Laws of work in pieces: whatever the pieces, and whoever runs between them, it comes to what it comes to at once; and
// until it is over the session is, bit for bit, the one it was.

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache_work.h"
#include "engine/snapshot/session_image.h"
#include "policies/registry.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

const TinyModel kModel = {
    .layers = 2, .dim = 32, .heads = 4, .kv_heads = 2, .head_dim = 8, .ffn_dim = 32, .vocab = 261};
constexpr int32_t kWorkLanes = 4;

// Passes everything on to another scorer, and notes which lanes it is asked about.
class Noting final : public Scorer {
 public:
  explicit Noting(std::shared_ptr<const Scorer> of) : of_(std::move(of)) {}

  Needs needs() const override { return of_->needs(); }
  int64_t lane_floats(const LaneShape& shape) const override { return of_->lane_floats(shape); }
  void Observe(const LaneView& lane, const Observation& seen, const MutableScorerState& state) const override {
    of_->Observe(lane, seen, state);
  }
  void Score(const LaneView& lane, const ScorerState& state, std::span<float> keep) const override {
    lanes_.insert({lane.layer, lane.head});
    of_->Score(lane, state, keep);
  }
  bool Rebuild(const LaneView& lane, const MutableScorerState& state) const override {
    lanes_.insert({lane.layer, lane.head});
    return of_->Rebuild(lane, state);
  }

  void AppendProbes(const LaneView& lane, int32_t query_head, const ScorerState& state, std::vector<int32_t>& tokens,
                    std::vector<float>& queries) const override {
    of_->AppendProbes(lane, query_head, state, tokens, queries);
  }
  bool Seed(std::span<const float> keep, const MutableScorerState& state) const override {
    return of_->Seed(keep, state);
  }

  size_t TakeLanes() const { return std::exchange(lanes_, {}).size(); }

 private:
  std::shared_ptr<const Scorer> of_;
  mutable std::set<std::pair<int32_t, int32_t>> lanes_ = {};  // of one thread
};

class WorkLaws : public testing::Test {
 protected:
  // A session with more tokens than its budget.
  std::unique_ptr<Session> Warm(const PolicySpec& spec) {
    auto session = OpenTestSession(*engine_, spec, 16);
    const std::vector<float> logits = Feed(*engine_, *session, RandomTokens(3, 90, kModel.vocab), 16);
    logits_.assign(logits.end() - kModel.vocab, logits.end());
    Greedy(*engine_, *session, logits_, 6);
    return session;
  }

  ValidSpec Next(const ScorerRow& row) {
    PolicySpec spec = {.scorer = std::string(row.name), .budget = row.evicts ? 60 : 200};
    if (row.evicts) spec.schedule = Schedule::kEveryStep;
    return TestPolicy(spec);
  }

  // Pieces of one lane; before each, the session is what it was, and another session takes a step.
  template <typename Work>
  absl::Status Advance(Work& work, const Session& session) {
    const uint64_t before = engine_->Digest(session);
    auto other = OpenTestSession(*engine_, {.scorer = "h2o", .budget = 40}, 16);
    int32_t token = 0;
    for (bool more = true; more; ++pieces_) {
      EXPECT_EQ(engine_->Digest(session), before) << "piece " << pieces_;
      Step(*engine_, *other, {&(token = (token + 7) % kModel.vocab), 1});
      auto advanced = work.Advance(1);
      if (!advanced.ok()) return advanced.status();
      more = *advanced;
    }
    EXPECT_EQ(engine_->Digest(session), before);
    return absl::OkStatus();
  }

  TinyModelFile file_ = TinyModelFile(kModel);
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path(), {.threads = 1});
  std::vector<float> logits_ = {};
  int pieces_ = 0;
};

TEST_F(WorkLaws, APolicyPutInForceInPiecesIsThatPutInForceAtOnce) {
  for (const std::string from : {"streaming", "h2o", "lagkv"}) {
    for (const ScorerRow& row : ScorerRegistry()) {
      if (row.make == nullptr) continue;  // needs a calibration
      SCOPED_TRACE(from + " to " + std::string(row.name));
      const auto pieces = Warm({.scorer = from, .budget = 70});
      const auto at_once = Warm({.scorer = from, .budget = 70});
      ASSERT_EQ(engine_->Digest(*pieces), engine_->Digest(*at_once));
      const auto swap = engine_->SetPolicy(*at_once, Next(row));
      ASSERT_THAT(swap, IsOk());
      auto work = engine_->BeginSetPolicy(*pieces, Next(row));
      ASSERT_THAT(work, IsOk());
      ASSERT_THAT(Advance(**work, *pieces), IsOk());
      const auto tried = (*work)->Try(0);
      ASSERT_THAT(tried, IsOk());
      const auto committed = (*work)->Commit();
      ASSERT_THAT(committed, IsOk());
      for (const auto* ours : {&*tried, &*committed}) {
        EXPECT_EQ(ours->state, swap->state);
        EXPECT_EQ(ours->old_chose, swap->old_chose);
        EXPECT_EQ(ours->length_after, swap->length_after);
        EXPECT_EQ(ours->slots_evicted, swap->slots_evicted);
        EXPECT_EQ(ours->pages_after, swap->pages_after);
        EXPECT_EQ(ours->loss.mass, swap->loss.mass);
        EXPECT_EQ(ours->loss.error, swap->loss.error);
        ASSERT_EQ(ours->victims.size(), swap->victims.size());
        for (size_t i = 0; i < swap->victims.size(); ++i) {
          EXPECT_EQ(ours->victims[i].tokens, swap->victims[i].tokens);
        }
      }
      EXPECT_EQ(engine_->Digest(*pieces), engine_->Digest(*at_once));
      EXPECT_EQ(Greedy(*engine_, *pieces, logits_, 4), Greedy(*engine_, *at_once, logits_, 4));
    }
  }
}

TEST_F(WorkLaws, HeadsThatShareByScoresDoSoInPieces) {
  const PolicySpec spec = {
      .scorer = "h2o", .budget = 60, .schedule = Schedule::kOncePrompt, .allocation = Allocation::kAda};
  const auto pieces = Warm({.scorer = "h2o", .budget = 70});
  const auto at_once = Warm({.scorer = "h2o", .budget = 70});
  const auto next = Resolve(spec, LimitsOf(engine_->config()));
  ASSERT_THAT(next, IsOk());
  ASSERT_THAT(engine_->SetPolicy(*at_once, *next), IsOk());
  auto work = engine_->BeginSetPolicy(*pieces, *next);
  ASSERT_THAT(work, IsOk());
  ASSERT_THAT(Advance(**work, *pieces), IsOk());
  ASSERT_THAT((*work)->Commit(), IsOk());
  EXPECT_EQ(engine_->Digest(*pieces), engine_->Digest(*at_once));
}

TEST_F(WorkLaws, WorkThatIsDroppedChangesNothing) {
  const auto session = Warm({.scorer = "h2o", .budget = 70});
  const uint64_t before = engine_->Digest(*session);
  const int64_t pages = engine_->memory().pages_reserved;
  for (int32_t pieces = 0; pieces < 20; ++pieces) {
    auto work = engine_->BeginSetPolicy(*session, TestPolicy({.scorer = "lagkv", .budget = 60}));
    ASSERT_THAT(work, IsOk());
    for (int32_t i = 0; i < pieces; ++i) ASSERT_THAT((*work)->Advance(1), IsOk());
    work->reset();
    EXPECT_EQ(engine_->Digest(*session), before) << pieces;
    EXPECT_EQ(session->policy().scorer_name, "h2o");
    EXPECT_EQ(engine_->memory().pages_reserved, pages);
  }
}

// Of each stage that ranks or rebuilds, as many pieces as there are lanes.
TEST_F(WorkLaws, APieceLooksAtNoMoreLanesThanItIsGiven) {
  for (const ScorerRow& row : ScorerRegistry()) {
    if (row.make == nullptr || !row.evicts || row.lockstep) continue;
    for (const int32_t lanes : {1, 2}) {
      SCOPED_TRACE(row.name);
      const auto session = Warm({.scorer = "streaming", .budget = 70});
      ValidSpec next = Next(row);
      const auto noting = std::make_shared<Noting>(next.scorer);
      next.scorer = noting;
      auto work = engine_->BeginSetPolicy(*session, next);
      ASSERT_THAT(work, IsOk());
      size_t looks = 0;
      for (bool more = true; more;) {
        const auto advanced = (*work)->Advance(lanes);
        ASSERT_THAT(advanced, IsOk());
        more = *advanced;
        const size_t looked = noting->TakeLanes();
        EXPECT_LE(looked, static_cast<size_t>(lanes));
        looks += looked;
      }
      EXPECT_GE(looks, static_cast<size_t>(kWorkLanes)) << "each lane, once at least";
    }
  }
}

TEST_F(WorkLaws, AnEvictionInPiecesIsThatDoneAtOnce) {
  const EvictRequest requests[] = {
      {.range = EvictRequest::Range{.start = 30, .end = 40}}, {.keep = 50}, {.keep = 50, .scorer = "keydiff"}};
  for (const EvictRequest& request : requests) {
    const auto pieces = Warm({.scorer = "h2o", .budget = 70});
    const auto at_once = Warm({.scorer = "h2o", .budget = 70});
    const auto report = engine_->Evict(*at_once, request);
    ASSERT_THAT(report, IsOk());
    auto work = engine_->BeginEvict(*pieces, request);
    ASSERT_THAT(work, IsOk());
    ASSERT_THAT(Advance(**work, *pieces), IsOk());
    EXPECT_EQ((*work)->report().slots_evicted, report->slots_evicted);
    EXPECT_EQ((*work)->report().length_after, report->length_after);
    EXPECT_EQ((*work)->report().loss.error, report->loss.error);
    (*work)->Commit();
    EXPECT_EQ(engine_->Digest(*pieces), engine_->Digest(*at_once));
  }
}

TEST_F(WorkLaws, ASnapshotInPiecesIsThatMadeAtOnceAndOpensSo) {
  const auto session = Warm({.scorer = "h2o", .budget = 70});
  SnapshotWriter at_once;
  ASSERT_THAT(engine_->Save(*session, at_once), IsOk());
  auto work = engine_->BeginSave(*session);
  ASSERT_THAT(work, IsOk());
  ASSERT_THAT(Advance(**work, *session), IsOk());
  EXPECT_EQ(pieces_, kWorkLanes);
  std::string bytes = (*work)->Take().Finish();
  EXPECT_EQ(bytes, at_once.Finish());

  SealSnapshot(bytes);
  const auto records = ReadSnapshot(std::as_bytes(std::span(bytes)));
  ASSERT_THAT(records, IsOk());
  auto image = ReadSession(*records, engine_->image_limits());
  ASSERT_THAT(image, IsOk());
  const int64_t before = engine_->memory().pages_reserved;
  {
    const auto dropped = engine_->BeginReopen(*image);
    ASSERT_THAT(dropped, IsOk());
    EXPECT_EQ(engine_->memory().pages_reserved, before + image->pages());
  }
  EXPECT_EQ(engine_->memory().pages_reserved, before) << "pages of work that is dropped";
  image = ReadSession(*records, engine_->image_limits());
  auto opening = engine_->BeginReopen(*image);
  ASSERT_THAT(opening, IsOk());
  ASSERT_THAT(Advance(**opening, *session), IsOk());
  EXPECT_EQ(engine_->Digest(*(*opening)->Take()), engine_->Digest(*session));
}

TEST_F(WorkLaws, ADescriptionInPiecesIsThatMadeAtOnce) {
  const auto session = Warm({.scorer = "h2o", .budget = 70});
  const auto at_once = engine_->Describe(*session, {}, {});
  ASSERT_THAT(at_once, IsOk());
  auto work = engine_->BeginDescribe(*session, {}, {});
  ASSERT_THAT(work, IsOk());
  ASSERT_THAT(Advance(**work, *session), IsOk());
  EXPECT_EQ(pieces_, kWorkLanes);
  const std::vector<LaneReport> pieces = (*work)->Take();
  ASSERT_EQ(pieces.size(), at_once->size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].tokens, (*at_once)[i].tokens);
    EXPECT_EQ(pieces[i].scores, (*at_once)[i].scores);
  }
}

}  // namespace
}  // namespace ebb
