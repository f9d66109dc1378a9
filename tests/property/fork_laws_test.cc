// Laws of branches: 10,000 random histories of fork, prompt, decode, evict, edit, policy swap, draft, verdict, delete,
// and leaving memory for a file and coming back from it. Each branch is, bit for bit, a session that was never forked
// and went through the same; what happens to one shows in no other; a call that finds no page for its copies changes
// nothing; every page comes back.

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/session_on_engine.h"
#include "engine/snapshot/session_image.h"
#include "policies/hash_random.h"
#include "policies/registry.h"
#include "policies/status.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;

#if defined(EBB_SANITIZED)
constexpr uint64_t kHistories = 400;
#else
constexpr uint64_t kHistories = 10000;
#endif
constexpr int32_t kCalls = 18;
constexpr size_t kBranches = 4;  // at once
constexpr int32_t kBlock = 12;
constexpr int32_t kVocab = 261;
constexpr int64_t kPage = 2048;  // of the model below: 16, 32 or 64 slots, by the format
const TinyModel kModel = {
    .layers = 2, .dim = 32, .heads = 4, .kv_heads = 2, .head_dim = 8, .ffn_dim = 32, .vocab = kVocab};

// A policy for sessions of this format.
PolicySpec RandomPolicy(HashRandom& random, KvType type, RopeCache rope_cache) {
  const std::span<const ScorerRow> rows = ScorerRegistry();
  const ScorerRow& row = rows[random.Uniform(0, static_cast<int32_t>(rows.size()) - 1)];
  PolicySpec spec = {.scorer = std::string(row.name),
                     .budget = row.evicts ? random.Uniform(40, 60) : random.Uniform(60, 120),
                     .positions = random.Uniform(0, 1) == 0 ? Positions::kOriginal : Positions::kCompacted,
                     .kv_type = type,
                     .rope_cache = rope_cache};
  if (!row.evicts) return spec;
  spec.schedule = random.Uniform(0, 3) == 0 ? Schedule::kEveryN : Schedule::kEveryStep;
  if (spec.schedule == Schedule::kEveryN) spec.every_n = random.Uniform(1, 9);
  if (random.Uniform(0, 3) == 0) spec.modifier = Modifier::kCaote;
  if (random.Uniform(0, 3) == 0) spec.scope = Scope::kLayer;
  if (random.Uniform(0, 5) == 0) spec.allocation = Allocation::kPyramid;
  if (random.Uniform(0, 2) == 0) spec.overflow = random.Uniform(1, 12);
  return spec;
}

// What one call does to one branch. It follows from the branch alone, so that a replay does the same.
struct Call {
  std::vector<int32_t> tokens = {};        // a block of a prompt
  int32_t decode = 0;                      // or greedy tokens
  std::optional<EvictRequest> evict = {};  // or an eviction by hand
  std::optional<PolicySpec> policy = {};   // or a policy to put in force
  std::optional<EditRequest> edit = {};    // or an edit of the log
  std::vector<int32_t> draft = {};         // or a draft
  std::optional<uint32_t> verdict = {};    // or how many tokens of the draft are kept, modulo one more than it has
};

Call RandomCall(HashRandom& random, KvType type, RopeCache rope_cache, bool draft_waits) {
  if (draft_waits && random.Uniform(0, 3) > 0) return {.verdict = static_cast<uint32_t>(random.Uniform(0, 1000))};
  switch (random.Uniform(0, 10)) {
    case 10: {
      const int32_t start = random.Uniform(0, 70);
      EditRequest edit = {.mode = static_cast<EditMode>(random.Uniform(0, 2)), .window = random.Uniform(0, 6)};
      edit.restore = edit.mode == EditMode::kRecomputeTail && random.Uniform(0, 3) == 0;
      edit.spans.push_back({.start = start,
                            .end = start + random.Uniform(0, 5),
                            .tokens = RandomTokens(random.Next64(), random.Uniform(0, 5), kVocab)});
      return {.edit = edit};
    }
    case 0:
    case 1:
      return {.tokens = RandomTokens(random.Next64(), random.Uniform(1, kBlock), kVocab)};
    case 2:
    case 3:
    case 4:
      return {.decode = random.Uniform(1, 6)};
    case 5: {
      const int32_t start = random.Uniform(0, 60);
      return {.evict = EvictRequest{.range = {{start, start + random.Uniform(1, 30)}}}};
    }
    case 6:
      return {.evict = EvictRequest{.keep = random.Uniform(20, 50)}};
    case 7:
      return {.policy = RandomPolicy(random, type, rope_cache)};
    default:
      return {.draft = RandomTokens(random.Next64(), random.Uniform(1, kBlock), kVocab)};
  }
}

uint64_t HashOf(std::span<const float> values) {
  uint64_t hash = values.size();
  for (const float value : values) hash = HashBits(hash, 0, std::bit_cast<uint32_t>(value));
  return hash;
}

// A session, what it was asked, and what it answered.
struct Branch {
  std::unique_ptr<Session> session = {};
  std::vector<Call> calls = {};
  std::vector<uint64_t> answers = {};
  std::vector<float> logits = {};        // of the log's last token
  std::vector<float> draft_logits = {};  // of the draft that waits
};

enum class Went { kOn, kNoPages };

uint64_t AnswerOf(const absl::Status& status) {
  uint64_t hash = static_cast<uint64_t>(status.code());
  for (const char c : GetRefusal(status).reason) hash = HashBits(hash, 1, static_cast<uint64_t>(c));
  return hash;
}

class Player {
 public:
  explicit Player(Engine& engine) : engine_(engine) {}

  // Does the call and remembers it, unless it found no pages: then nothing has happened. Tokens are decoded one by one,
  // each by a call of its own: what was decoded before pages were lacking stays.
  Went Play(Branch& branch, const Call& call) {
    for (int32_t i = 1; i < call.decode; ++i) {
      if (Play(branch, {.decode = 1}) == Went::kNoPages) return Went::kNoPages;
    }
    if (call.decode > 1) return Play(branch, {.decode = 1});
    const absl::StatusOr<uint64_t> answer = Answer(branch, call);
    if (GetRefusal(answer.status()).reason == "NO_PAGES") return Went::kNoPages;
    branch.calls.push_back(call);
    branch.answers.push_back(answer.ok() ? *answer : AnswerOf(answer.status()));
    return Went::kOn;
  }

 private:
  absl::StatusOr<uint64_t> Answer(Branch& branch, const Call& call) {
    Session& session = *branch.session;
    if (call.evict) {
      EBB_ASSIGN(const EvictReport report, engine_.Evict(session, *call.evict));
      return static_cast<uint64_t>(report.slots_evicted);
    }
    if (call.policy) {
      EBB_ASSIGN(const ValidSpec policy, Resolve(*call.policy, LimitsOf(engine_.config())));
      EBB_ASSIGN(const PolicySwap swap, engine_.SetPolicy(session, policy));
      return static_cast<uint64_t>(swap.slots_evicted);
    }
    if (call.edit) return Edit(branch, *call.edit);
    if (call.verdict) return Settle(branch, *call.verdict);
    if (!call.draft.empty()) {
      EBB_ASSIGN(branch.draft_logits, Run(session, call.draft, true));
      return HashOf(branch.draft_logits);
    }
    if (!call.tokens.empty()) {
      EBB_ASSIGN(branch.logits, Run(session, call.tokens, false));
      return HashOf(branch.logits);
    }
    if (branch.logits.empty()) return 0;
    const int32_t token = BestToken(branch.logits);
    EBB_ASSIGN(branch.logits, Run(session, {&token, 1}, false));
    return HashOf(branch.logits);
  }

  absl::StatusOr<std::vector<float>> Run(Session& session, std::span<const int32_t> tokens, bool draft) {
    EBB_TRY(session.CanAppend(static_cast<int32_t>(tokens.size())));
    BatchRow row = {.session = &session, .tokens = tokens, .want = draft ? Want::kAll : Want::kLast, .draft = draft};
    EBB_TRY(engine_.OwnPages(row));
    engine_.Run({&row, 1});
    return std::vector<float>(row.logits.begin(), row.logits.end());
  }

  absl::StatusOr<uint64_t> Edit(Branch& branch, const EditRequest& request) {
    Session& session = *branch.session;
    EBB_ASSIGN(const EditPlan plan, engine_.PlanEdit(session, request));
    EBB_TRY(engine_.OwnAllPages(session));
    engine_.BeginEdit(session, plan);
    const std::vector<int32_t> work = plan.WorkTokens();
    for (size_t done = 0; done < work.size(); done += kBlock) {
      const size_t count = std::min<size_t>(kBlock, work.size() - done);
      BatchRow row = {.session = &session, .tokens = std::span(work).subspan(done, count), .want = Want::kLast};
      EBB_TRY(engine_.OwnPages(row));
      engine_.Run({&row, 1});
      branch.logits.assign(row.logits.begin(), row.logits.end());
    }
    return HashOf(branch.logits);
  }

  absl::StatusOr<uint64_t> Settle(Branch& branch, uint32_t verdict) {
    const int32_t waiting = branch.session->draft_tokens();
    if (waiting == 0) return 0;
    const auto keep = static_cast<int32_t>(verdict % static_cast<uint32_t>(waiting + 1));
    BatchRow row = {.session = branch.session.get()};
    engine_.Accept(row, keep);
    const auto at = branch.draft_logits.begin() + int64_t{keep - 1} * kVocab;
    if (keep > 0) branch.logits.assign(at, at + kVocab);
    return static_cast<uint64_t>(row.evicted_slots);
  }

  Engine& engine_;
};

const SessionCache& CacheOf(const Branch& branch) {
  return static_cast<const SessionOnEngine&>(*branch.session).cache();
}

// What the pool has lent, counted from the sessions' side: every page once, whoever holds it.
int64_t PagesHeld(const Engine& engine, const std::vector<Branch>& branches) {
  std::multiset<const std::byte*> pages;
  int64_t set_aside = 0, shared = 0;
  for (const Branch& branch : branches) {
    const SessionCache& cache = CacheOf(branch);
    for (int32_t lane = 0; lane < cache.shape().lanes(); ++lane) {
      const LaneStorage storage = cache.storage(lane / kModel.kv_heads, lane % kModel.kv_heads);
      for (int64_t page = 0; page < cache.shape().pages_of(lane); ++page) pages.insert(storage.pages[page]);
    }
    set_aside += cache.pages() - cache.shape().pages();
  }
  int64_t held = 0;
  for (auto page = pages.begin(); page != pages.end(); page = pages.upper_bound(*page)) {
    ++held;
    shared += pages.count(*page) > 1 ? 1 : 0;
  }
  EXPECT_EQ(engine.memory().pages_shared, shared);
  return held + set_aside + engine.memory().pages_promised;
}

class ForkLaws : public testing::Test {
 protected:
  // A session that leaves at most `pages` of the arena free.
  std::unique_ptr<Session> LeaveFree(int64_t pages) {
    const EngineMemory memory = engine_->memory();
    const int64_t lanes = kModel.layers * kModel.kv_heads;
    const int64_t taken = (memory.pages_total - memory.pages_reserved - pages) / lanes;
    return OpenTestSession(*engine_, {.scorer = "full", .budget = static_cast<int32_t>(taken * 64)}, kBlock);
  }

  TinyModelFile file_ = TinyModelFile(kModel);
  std::unique_ptr<Engine> engine_ = OpenTestEngine(file_.path(), {.arena_bytes = 400 * kPage});
  std::unique_ptr<Engine> unshared_ = OpenTestEngine(file_.path());  // with room for all
};

struct Counts {
  int64_t forks = 0, forks_with_policy = 0, refused_forks = 0, no_pages = 0, copies = 0, verdicts = 0;
  int64_t left = 0, left_sharing = 0, stayed_away = 0;
};

class History {
 public:
  History(uint64_t seed, Engine& engine, Counts& counts)
      : random_(seed), engine_(engine), player_(engine), counts_(counts) {}

  void Run() {
    Branch& root = branches_.emplace_back();
    policy_ = RandomPolicy(random_, type_, rope_cache_);
    auto policy = Resolve(policy_, LimitsOf(engine_.config()));
    if (!policy.ok()) return branches_.clear();  // choices that do not go together
    auto session = engine_.OpenSession({.policy = *policy, .block_size_max = kBlock});
    if (!session.ok()) return branches_.clear();
    root.session = *std::move(session);
    const int32_t blocks = random_.Uniform(1, 6);
    for (int32_t block = 0; block < blocks; ++block) {
      player_.Play(root, {.tokens = RandomTokens(random_.Next64(), kBlock, kVocab)});
    }
    for (int32_t call = 0; call < kCalls && !branches_.empty(); ++call) {
      const auto at = static_cast<size_t>(random_.Uniform(0, static_cast<int32_t>(branches_.size()) - 1));
      Turn(at);
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  void Turn(size_t at) {
    const int32_t choice = random_.Uniform(0, 9);
    // Every call is compared by the replay; that nobody else saw it is looked at now and then, which takes longer.
    const std::vector<uint64_t> before = random_.Uniform(0, 3) == 0 ? Digests() : std::vector<uint64_t>();
    if (choice < 3 && branches_.size() < kBranches) return Fork(at);
    if (choice == 3 && branches_.size() > 1) {
      branches_.erase(branches_.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (choice == 4 && branches_[at].session->CheckSettled().ok()) {
      return LeaveAndComeBack(at);
    } else {
      const int64_t shared = engine_.memory().pages_shared;
      const Call call = RandomCall(random_, type_, rope_cache_, branches_[at].session->draft_tokens() > 0);
      const size_t called = branches_[at].calls.size();
      if (player_.Play(branches_[at], call) == Went::kNoPages) {
        ++counts_.no_pages;
        const bool went_on = branches_[at].calls.size() > called;  // some tokens were decoded before
        ASSERT_TRUE(went_on || before.empty() || engine_.Digest(*branches_[at].session) == before[at]);
      }
      counts_.copies += shared - engine_.memory().pages_shared;
      counts_.verdicts += call.verdict ? 1 : 0;
    }
    if (before.empty()) return;
    const std::vector<uint64_t> after = Digests();
    for (size_t i = 0; after.size() == before.size() && i < after.size(); ++i) {
      ASSERT_TRUE(i == at || after[i] == before[i]) << "branch " << i;
    }
  }

  // As a server swaps it: its pages come free but for those that others share, others go on, and it comes back to pages
  // of its own, or stays away where there are too few.
  void LeaveAndComeBack(size_t at) {
    ++counts_.left;
    counts_.left_sharing += branches_[at].session->shared_pages() > 0 ? 1 : 0;
    const uint64_t digest = engine_.Digest(*branches_[at].session);
    SnapshotWriter writer;
    ASSERT_THAT(engine_.Save(*branches_[at].session, writer), IsOk());
    std::string file = writer.Finish();
    SealSnapshot(file);
    const Session* const leaving = branches_[at].session.get();
    const FreedPages freed = engine_.FreedBy({&leaving, 1});
    ASSERT_EQ(freed.by.at(0), freed.pages > 0);
    const int64_t reserved = engine_.memory().pages_reserved;
    Branch away = std::move(branches_[at]);
    away.session.reset();
    branches_.erase(branches_.begin() + static_cast<std::ptrdiff_t>(at));
    ASSERT_EQ(reserved - engine_.memory().pages_reserved, freed.pages);
    if (!branches_.empty()) {
      const auto other = static_cast<size_t>(random_.Uniform(0, static_cast<int32_t>(branches_.size()) - 1));
      player_.Play(branches_[other],
                   RandomCall(random_, type_, rope_cache_, branches_[other].session->draft_tokens() > 0));
    }
    const auto records = ReadSnapshot(std::as_bytes(std::span(file)));
    ASSERT_THAT(records, IsOk());
    auto image = ReadSession(*records, engine_.image_limits());
    ASSERT_THAT(image, IsOk());
    auto back = engine_.Reopen(*image);
    if (GetRefusal(back.status()).reason == "NO_PAGES") {
      ++counts_.stayed_away;
      return;
    }
    ASSERT_THAT(back, IsOk());
    away.session = *std::move(back);
    ASSERT_EQ(engine_.Digest(*away.session), digest);
    ASSERT_EQ(away.session->shared_pages(), 0);
    branches_.push_back(std::move(away));
  }

  // What comes free with all branches, by the engine's word.
  FreedPages FreedByAll() const {
    std::vector<const Session*> sessions;
    for (const Branch& branch : branches_) sessions.push_back(branch.session.get());
    return engine_.FreedBy(sessions);
  }

  void Fork(size_t at) {
    Branch& from = branches_[at];
    const uint64_t before = engine_.Digest(*from.session);
    ForkOptions options = {.reserve_copies = random_.Uniform(0, 3) == 0};
    std::optional<PolicySpec> spec;
    if (random_.Uniform(0, 2) == 0) spec = RandomPolicy(random_, type_, rope_cache_);
    if (spec) {
      auto policy = Resolve(*spec, LimitsOf(engine_.config()));
      if (!policy.ok()) return;
      options.policy = *std::move(policy);
    }
    auto fork = engine_.ForkSession(*from.session, options);
    ASSERT_EQ(engine_.Digest(*from.session), before);
    if (!fork.ok()) {
      ++counts_.refused_forks;
      return;
    }
    ++counts_.forks;
    Branch branch = {
        .session = std::move(fork->session), .calls = from.calls, .answers = from.answers, .logits = from.logits};
    if (spec) {
      ++counts_.forks_with_policy;
      branch.calls.push_back({.policy = spec});
      branch.answers.push_back(static_cast<uint64_t>(fork->swap->slots_evicted));
    } else {
      ASSERT_EQ(engine_.Digest(*branch.session), before);
    }
    branches_.push_back(std::move(branch));
  }

  // The same calls on a session that shares with nobody.
  void Replay(Engine& unshared) {
    for (const Branch& branch : branches_) {
      Branch alone = {.session = OpenTestSession(unshared, policy_, kBlock)};
      Player player(unshared);
      for (const Call& call : branch.calls) ASSERT_EQ(player.Play(alone, call), Went::kOn);
      ASSERT_EQ(alone.answers, branch.answers);
      ASSERT_TRUE(std::ranges::equal(alone.session->log(), branch.session->log()));
      ASSERT_EQ(unshared.Digest(*alone.session), engine_.Digest(*branch.session));
    }
  }

  std::vector<Branch>& branches() { return branches_; }

 private:
  std::vector<uint64_t> Digests() const {
    std::vector<uint64_t> digests;
    for (const Branch& branch : branches_) digests.push_back(engine_.Digest(*branch.session));
    return digests;
  }

  HashRandom random_;
  Engine& engine_;
  Player player_;
  Counts& counts_;
  KvType type_ = static_cast<KvType>(random_.Uniform(0, 2));
  RopeCache rope_cache_ = random_.Uniform(0, 3) == 0 ? RopeCache::kRk : RopeCache::kFused;
  PolicySpec policy_ = {};
  std::vector<Branch> branches_ = {};
};

TEST_F(ForkLaws, BranchesAreSessionsThatWereNeverForked) {
  Counts counts;
  for (uint64_t seed = 0; seed < kHistories; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    // Every other history runs short of pages.
    const std::unique_ptr<Session> others = seed % 2 == 0 ? nullptr : LeaveFree(20 + static_cast<int64_t>(seed % 23));
    const int64_t held = engine_->memory().pages_reserved;
    History history(seed, *engine_, counts);
    history.Run();
    ASSERT_EQ(engine_->memory().pages_reserved - held, PagesHeld(*engine_, history.branches()));
    ASSERT_EQ(engine_->memory().pages_reserved - held, history.FreedByAll().pages);
    history.Replay(*unshared_);
    if (HasFatalFailure()) return;
    history.branches().clear();
    ASSERT_EQ(engine_->memory().pages_reserved, held);
    ASSERT_EQ(engine_->memory().pages_shared, 0);
    ASSERT_EQ(engine_->memory().pages_promised, 0);
  }
  // What the histories reached.
  const auto histories = static_cast<int64_t>(kHistories);
  EXPECT_GT(counts.forks, histories);
  EXPECT_GT(counts.forks_with_policy, histories / 10);
  EXPECT_GT(counts.refused_forks, histories / 100);
  EXPECT_GT(counts.no_pages, histories / 100);
  EXPECT_GT(counts.copies, histories);
  EXPECT_GT(counts.verdicts, histories / 10);
  EXPECT_GT(counts.left, histories / 2);
  EXPECT_GT(counts.left_sharing, histories / 10);
  EXPECT_GT(counts.stayed_away, 0);
}

// What a session that evicts nobody was admitted for it gets, and so does its branch: nobody else can take it.
TEST_F(ForkLaws, BranchesOfAFullSessionGoOnToTheirLimitWithNoPageFree) {
  const auto one = OpenTestSession(*engine_, {.scorer = "full", .budget = 100, .kv_type = KvType::kF32}, kBlock);
  Feed(*engine_, *one, RandomTokens(1, 40, kVocab), kBlock);
  const int64_t before = engine_->memory().pages_reserved;
  auto fork = engine_->ForkSession(*one, {});
  ASSERT_THAT(fork, IsOk());
  const auto other = std::move(fork->session);
  // In each of four lanes: a full page of 32 is shared, the next begun one, too, and its copy is promised.
  EXPECT_EQ(one->pages(), 16);
  EXPECT_EQ(one->shared_pages(), 8);
  EXPECT_EQ(engine_->memory().pages_promised, 4);
  EXPECT_EQ(engine_->memory().pages_reserved - before, 12);
  const auto rest = LeaveFree(0);
  ASSERT_LT(engine_->memory().pages_total - engine_->memory().pages_reserved, 4);
  Feed(*engine_, *one, RandomTokens(2, 60, kVocab), kBlock);
  Feed(*engine_, *other, RandomTokens(3, 60, kVocab), kBlock);
  EXPECT_EQ(one->room(), 0);
  EXPECT_EQ(other->room(), 0);
  EXPECT_EQ(engine_->memory().pages_promised, 0);
  EXPECT_EQ(engine_->memory().pages_shared, 4);
}

TEST_F(ForkLaws, WithCopiesReservedBranchesThatEvictGoOnWithNoPageFree) {
  const auto one = OpenTestSession(*engine_, {.scorer = "streaming", .budget = 60, .kv_type = KvType::kF32}, kBlock);
  Feed(*engine_, *one, RandomTokens(4, 90, kVocab), kBlock);
  const auto other = std::move(engine_->ForkSession(*one, {.reserve_copies = true})->session);
  const auto third = std::move(engine_->ForkSession(*other, {})->session);  // what was promised stays so
  const auto rest = LeaveFree(0);
  for (Session* const session : {third.get(), one.get(), other.get()}) {
    Feed(*engine_, *session, RandomTokens(5, 150, kVocab), 5);
  }
  EXPECT_EQ(engine_->memory().pages_shared, 0);
  EXPECT_EQ(engine_->Digest(*one), engine_->Digest(*third));
}

// A session that evicts writes into pages it shares; without a page for the copy the step is refused, and nothing else.
TEST_F(ForkLaws, WithoutAPageForACopyTheStepWaitsAndNothingIsLost) {
  const auto one = OpenTestSession(*engine_, {.scorer = "streaming", .budget = 60, .kv_type = KvType::kF32}, 1);
  Feed(*engine_, *one, RandomTokens(6, 60, kVocab), 1);
  auto other = std::move(engine_->ForkSession(*one, {})->session);
  auto rest = LeaveFree(0);
  const std::vector<int32_t> tokens = RandomTokens(7, 100, kVocab);
  size_t done = 0;
  absl::Status refused;
  while (done < tokens.size()) {
    BatchRow row = {.session = other.get(), .tokens = std::span(tokens).subspan(done, 1)};
    refused = engine_->OwnPages(row);
    if (!refused.ok()) break;
    engine_->Run({&row, 1});
    ++done;
  }
  EXPECT_THAT(refused, IsRefusal(absl::StatusCode::kUnavailable, "NO_PAGES", ""));
  ASSERT_LT(done, tokens.size());
  EXPECT_EQ(other->log().size(), 60 + done);
  const uint64_t before = engine_->Digest(*one);
  rest.reset();
  Feed(*engine_, *other, std::span(tokens).subspan(done), 1);
  EXPECT_EQ(engine_->Digest(*one), before);
  Feed(*engine_, *one, tokens, 1);
  EXPECT_EQ(engine_->Digest(*one), engine_->Digest(*other));
}

// A page comes free with the last of those that share it, a promised copy with the last but one.
TEST_F(ForkLaws, WhatComesFreeIsWhatNobodyElseShares) {
  const auto one = OpenTestSession(*engine_, {.scorer = "full", .budget = 100, .kv_type = KvType::kF32}, kBlock);
  Feed(*engine_, *one, RandomTokens(1, 40, kVocab), kBlock);
  const auto alone = OpenTestSession(*engine_, {.scorer = "full", .budget = 32, .kv_type = KvType::kF32}, kBlock);
  const auto other = std::move(engine_->ForkSession(*one, {})->session);
  const auto freed = [&](const std::vector<const Session*>& sessions) { return engine_->FreedBy(sessions); };
  // In each of four lanes: a full page is shared, the next one, too, and its copy is promised; two are its own.
  EXPECT_EQ(freed({one.get()}).pages, 12);
  EXPECT_EQ(freed({one.get(), other.get()}).pages, engine_->memory().pages_reserved - alone->pages());
  EXPECT_EQ(freed({alone.get()}).pages, alone->pages());
  const auto full = OpenTestSession(*engine_, {.scorer = "full", .budget = 32, .kv_type = KvType::kF32}, 32);
  Feed(*engine_, *full, RandomTokens(1, 32, kVocab), 32);
  const auto branch = std::move(engine_->ForkSession(*full, {})->session);
  EXPECT_EQ(freed({full.get()}).pages, 0) << "all of it is shared, and no copy is promised";
  EXPECT_THAT(freed({full.get(), alone.get()}).by, ElementsAre(false, true));
  EXPECT_THAT(freed({full.get(), branch.get()}).by, ElementsAre(true, true));
}

TEST_F(ForkLaws, ABranchCostsNoPageBeforeItWrites) {
  const auto one = OpenTestSession(*engine_, {.scorer = "full", .budget = 128, .kv_type = KvType::kF32}, 32);
  Feed(*engine_, *one, RandomTokens(8, 128, kVocab), 32);
  const int64_t before = engine_->memory().pages_reserved;
  std::vector<std::unique_ptr<Session>> branches;
  for (int i = 0; i < 50; ++i) branches.push_back(std::move(engine_->ForkSession(*one, {})->session));
  EXPECT_EQ(engine_->memory().pages_reserved, before);
  EXPECT_EQ(engine_->memory().pages_shared, 16);
  for (const auto& branch : branches) EXPECT_EQ(engine_->Digest(*branch), engine_->Digest(*one));
}

TEST_F(ForkLaws, ARefusedForkLeavesTheSessionAndThePagesAsTheyWere) {
  const auto one = OpenTestSession(*engine_, {.scorer = "full", .budget = 128}, kBlock);
  Feed(*engine_, *one, RandomTokens(9, 30, kVocab), kBlock);
  const uint64_t before = engine_->Digest(*one);
  const auto policy = [&](const PolicySpec& spec) { return *Resolve(spec, LimitsOf(engine_->config())); };
  const auto refuses = [&](const ForkOptions& options, absl::StatusCode code, const char* reason) {
    const int64_t reserved = engine_->memory().pages_reserved;
    EXPECT_THAT(engine_->ForkSession(*one, options).status(), IsRefusal(code, reason, ""));
    EXPECT_EQ(engine_->memory().pages_reserved, reserved);
    EXPECT_EQ(engine_->memory().pages_shared, 0);
    EXPECT_EQ(engine_->memory().pages_promised, 0);
    EXPECT_EQ(engine_->Digest(*one), before);
  };
  refuses({.policy = policy({.scorer = "full", .budget = 20})}, absl::StatusCode::kFailedPrecondition,
          "CACHE_TOO_LONG");
  refuses({.policy = policy({.scorer = "full", .budget = 100, .kv_type = KvType::kF32})},
          absl::StatusCode::kFailedPrecondition, "CACHE_FORMAT_FIXED");
  const auto rest = LeaveFree(0);
  refuses({}, absl::StatusCode::kUnavailable, "NO_PAGES");
  const std::vector<int32_t> draft = {1, 2};
  BatchRow row = {.session = one.get(), .tokens = draft, .draft = true};
  engine_->Run({&row, 1});
  refuses({}, absl::StatusCode::kFailedPrecondition, "DRAFT_PENDING");
}

}  // namespace
}  // namespace ebb
