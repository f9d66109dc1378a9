// Laws of prefixes that sessions share: random histories of create, prompt, decode, fork, evict, edit, policy swap,
// draft and delete over sessions whose prompts begin alike, on an engine that keeps prefixes beside one of the same
// size that keeps none. Both answer alike: the same logits, the same digest of every session, the same refusals and the
// same pages reserved, however short of pages they are.

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/hash_random.h"
#include "policies/registry.h"
#include "policies/status.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

#if defined(EBB_SANITIZED)
constexpr uint64_t kHistories = 30;
#else
constexpr uint64_t kHistories = 400;
#endif
constexpr int32_t kCalls = 24;
constexpr size_t kSessions = 6;  // at once
constexpr int32_t kBlock = 16;
constexpr int32_t kVocab = 261;
constexpr int64_t kPage = 2048;
constexpr int64_t kPages = 220;
const TinyModel kModel = {
    .layers = 2, .dim = 32, .heads = 4, .kv_heads = 2, .head_dim = 8, .ffn_dim = 32, .vocab = kVocab};

PolicySpec RandomPolicy(HashRandom& random) {
  const std::span<const ScorerRow> rows = ScorerRegistry();
  const ScorerRow& row = rows[random.Uniform(0, static_cast<int32_t>(rows.size()) - 1)];
  PolicySpec spec = {.scorer = std::string(row.name),
                     .budget = row.evicts ? random.Uniform(40, 60) : random.Uniform(100, 160),
                     .positions = random.Uniform(0, 1) == 0 ? Positions::kOriginal : Positions::kCompacted,
                     .kv_type = static_cast<KvType>(random.Uniform(0, 2)),
                     .rope_cache = random.Uniform(0, 3) == 0 ? RopeCache::kRk : RopeCache::kFused};
  if (!row.evicts) return spec;
  if (random.Uniform(0, 3) == 0) spec.scope = Scope::kLayer;
  if (random.Uniform(0, 3) == 0) spec.modifier = Modifier::kCaote;
  if (random.Uniform(0, 5) == 0) spec.allocation = Allocation::kPyramid;
  if (random.Uniform(0, 2) == 0) spec.overflow = random.Uniform(1, 12);
  return spec;
}

// A session on each engine.
struct Twin {
  std::unique_ptr<Session> kept = {};
  std::unique_ptr<Session> plain = {};
  std::vector<float> logits = {};
  std::string tenant = {};
};

class PrefixLaws : public testing::Test {
 protected:
  static constexpr double kShare = 0.5;

  // Of both, which answer alike.
  template <typename Do>
  bool Both(Twin& twin, const Do& act) {
    const absl::Status kept = act(*keeping_, *twin.kept);
    const absl::Status plain = act(*plain_, *twin.plain);
    EXPECT_EQ(kept.code(), plain.code()) << kept << " and " << plain;
    EXPECT_EQ(GetRefusal(kept).reason, GetRefusal(plain).reason);
    if (GetRefusal(plain).reason == "NO_PAGES") ++no_pages_;
    return kept.ok() && plain.ok();
  }

  bool Create(Twin& twin, const ValidSpec& policy) {
    auto kept = keeping_->OpenSession({.policy = policy, .block_size_max = kBlock});
    auto plain = plain_->OpenSession({.policy = policy, .block_size_max = kBlock});
    EXPECT_EQ(kept.ok(), plain.ok());
    if (!kept.ok() || !plain.ok()) return false;
    twin.kept = *std::move(kept);
    twin.plain = *std::move(plain);
    return true;
  }

  // One row on both engines; false where it was refused.
  bool Run(Twin& twin, std::span<const int32_t> tokens, bool ends = false) {
    std::vector<float> logits[2];
    const bool ran = Both(twin, [&](Engine& engine, Session& session) -> absl::Status {
      EBB_TRY(session.CanAppend(static_cast<int32_t>(tokens.size())));
      BatchRow row = {.session = &session, .tokens = tokens, .want = Want::kLast, .prompt_ends = ends};
      EBB_TRY(engine.OwnPages(row));
      engine.Run({&row, 1});
      logits[&engine == plain_.get()].assign(row.logits.begin(), row.logits.end());
      return row.status;
    });
    EXPECT_EQ(logits[0], logits[1]);
    twin.logits = logits[1];
    return ran;
  }

  // A prompt in blocks, as the server reads it; the first one of a session may begin with a prefix.
  void Read(Twin& twin, std::span<const int32_t> prompt, int32_t block = kBlock) {
    size_t done = 0;
    const bool first = twin.kept->log().empty();
    if (first) {
      done = keeping_->BeginWithPrefix(*twin.kept, twin.tenant, prompt, block);
      reused_ += static_cast<int64_t>(done);
      for (size_t at = 0; at < done; at += block) Feed(*plain_, *twin.plain, prompt.subspan(at, block), block);
      evicted_prefixes_ += twin.kept->evicted() > 0 && done > 0 ? 1 : 0;
      ASSERT_EQ(keeping_->Digest(*twin.kept), plain_->Digest(*twin.plain));
      ASSERT_EQ(twin.kept->evicted(), twin.plain->evicted());
    }
    while (done < prompt.size()) {
      const size_t count = std::min<size_t>(block, prompt.size() - done);
      if (!Run(twin, prompt.subspan(done, count), first && done + count == prompt.size())) return;
      done += count;
      if (first && done < prompt.size()) keeping_->KeepPrefix(*twin.kept, twin.tenant, block);
    }
  }

  void Edit(Twin& twin, const EditRequest& request) {
    Both(twin, [&](Engine& engine, Session& session) -> absl::Status {
      EBB_ASSIGN(const EditPlan plan, engine.PlanEdit(session, request));
      EBB_TRY(engine.OwnAllPages(session));
      engine.BeginEdit(session, plan);
      const std::vector<int32_t> work = plan.WorkTokens();
      for (size_t done = 0; done < work.size(); done += kBlock) {
        const size_t count = std::min<size_t>(kBlock, work.size() - done);
        BatchRow row = {.session = &session, .tokens = std::span(work).subspan(done, count)};
        engine.Run({&row, 1});
      }
      return absl::OkStatus();
    });
  }

  void Draft(Twin& twin, std::span<const int32_t> draft, int32_t keep) {
    Both(twin, [&](Engine& engine, Session& session) -> absl::Status {
      EBB_TRY(session.CanAppend(static_cast<int32_t>(draft.size())));
      BatchRow row = {.session = &session, .tokens = draft, .want = Want::kAll, .draft = true};
      EBB_TRY(engine.OwnPages(row));
      engine.Run({&row, 1});
      BatchRow verdict = {.session = &session};
      engine.Accept(verdict, keep);
      return absl::OkStatus();
    });
  }

  void Fork(const Twin& of) {
    Twin branch = {.logits = of.logits, .tenant = of.tenant};
    auto kept = keeping_->ForkSession(*of.kept, {});
    auto plain = plain_->ForkSession(*of.plain, {});
    ASSERT_EQ(kept.ok(), plain.ok()) << kept.status() << " and " << plain.status();
    if (!kept.ok()) return;
    branch.kept = std::move(kept->session);
    branch.plain = std::move(plain->session);
    twins_.push_back(std::move(branch));
  }

  void CheckAlike() {
    for (const Twin& twin : twins_) {
      ASSERT_EQ(keeping_->Digest(*twin.kept), plain_->Digest(*twin.plain));
      ASSERT_TRUE(std::ranges::equal(twin.kept->log(), twin.plain->log()));
    }
    ASSERT_EQ(keeping_->memory().pages_reserved, plain_->memory().pages_reserved);
    ASSERT_EQ(keeping_->memory().pages_promised, plain_->memory().pages_promised);
    ASSERT_LE(keeping_->memory().pages_kept, kShare * kPages);
  }

  void Turn(HashRandom& random, std::span<const PolicySpec> policies) {
    const int32_t choice = random.Uniform(0, 11);
    if (twins_.empty() || (choice < 4 && twins_.size() < kSessions)) {
      const size_t which = random.Uniform(0, static_cast<int32_t>(policies.size()) - 1);
      const auto policy = Resolve(policies[which], LimitsOf(plain_->config()));
      Twin twin = {.tenant = random.Uniform(0, 3) == 0 ? "b" : "a"};
      if (!policy.ok() || !Create(twin, *policy)) return;
      // One of three texts as far as it goes, and then something else.
      std::vector<int32_t> prompt = RandomTokens(random.Uniform(0, 2), random.Uniform(10, 140), kVocab);
      const std::vector<int32_t> rest = RandomTokens(random.Next64(), random.Uniform(1, 30), kVocab);
      prompt.insert(prompt.end(), rest.begin(), rest.end());
      twins_.push_back(std::move(twin));
      return Read(twins_.back(), prompt);
    }
    const auto at = static_cast<size_t>(random.Uniform(0, static_cast<int32_t>(twins_.size()) - 1));
    Twin& twin = twins_[at];
    switch (choice) {
      case 4:
      case 5:
        for (int32_t i = random.Uniform(1, 20); i > 0 && !twin.logits.empty(); --i) {
          const int32_t token = BestToken(twin.logits);
          Run(twin, {&token, 1});
        }
        return;
      case 6:
        return Read(twin, RandomTokens(random.Next64(), random.Uniform(1, 40), kVocab));
      case 7:
        if (twins_.size() < kSessions) Fork(twin);
        return;
      case 8: {
        const EvictRequest evict = {.keep = random.Uniform(20, 50)};
        Both(twin, [&](Engine& engine, Session& session) { return engine.Evict(session, evict).status(); });
        return;
      }
      case 9: {
        const int32_t start = random.Uniform(0, 70);
        return Edit(twin, {.spans = {{.start = start,
                                      .end = start + random.Uniform(0, 5),
                                      .tokens = RandomTokens(random.Next64(), random.Uniform(0, 5), kVocab)}},
                           .mode = static_cast<EditMode>(random.Uniform(0, 2)),
                           .window = random.Uniform(0, 6)});
      }
      case 10: {
        PolicySpec spec = RandomPolicy(random);
        spec.kv_type = twin.plain->policy().kv_type;
        spec.rope_cache = twin.plain->policy().rope_cache;
        const auto policy = Resolve(spec, LimitsOf(plain_->config()));
        if (!policy.ok()) return;
        Both(twin, [&](Engine& engine, Session& session) { return engine.SetPolicy(session, *policy).status(); });
        return;
      }
      case 11: {
        const std::vector<int32_t> draft = RandomTokens(random.Next64(), random.Uniform(1, kBlock), kVocab);
        return Draft(twin, draft, random.Uniform(0, static_cast<int32_t>(draft.size())));
      }
      default:
        twins_.erase(twins_.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  TinyModelFile file_ = TinyModelFile(kModel);
  std::unique_ptr<Engine> keeping_ =
      OpenTestEngine(file_.path(), {.arena_bytes = kPages * kPage, .prefix_share = kShare});
  std::unique_ptr<Engine> plain_ = OpenTestEngine(file_.path(), {.arena_bytes = kPages * kPage});
  std::vector<Twin> twins_ = {};
  int64_t reused_ = 0, no_pages_ = 0, evicted_prefixes_ = 0;
};

TEST_F(PrefixLaws, SessionsThatBeginAlikeAreAsIfNothingWereShared) {
  for (uint64_t seed = 0; seed < kHistories; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HashRandom random(seed);
    const std::vector<PolicySpec> policies = {RandomPolicy(random), RandomPolicy(random)};
    for (int32_t call = 0; call < kCalls; ++call) {
      Turn(random, policies);
      if (HasFailure()) return;
      if (random.Uniform(0, 3) == 0) CheckAlike();
    }
    CheckAlike();
    if (HasFailure()) return;
    twins_.clear();
    ASSERT_EQ(keeping_->memory().pages_reserved, 0);
    ASSERT_EQ(keeping_->memory().pages_shared, 0);
  }
  // What the histories reached.
  EXPECT_GT(reused_, static_cast<int64_t>(kHistories) * kBlock);
  EXPECT_GT(evicted_prefixes_, static_cast<int64_t>(kHistories) / 20);
  EXPECT_GT(no_pages_, 0);
}

// Tokens that a session of these begins with, after another one has read the same prompt.
class PrefixFound : public PrefixLaws {
 protected:
  struct Reader {
    PolicySpec policy = {.scorer = "h2o", .budget = 60};
    std::string tenant = "a";
    int32_t block = kBlock;
  };

  int64_t Found(const Reader& reader, std::span<const int32_t> prompt) {
    Twin& twin = twins_.emplace_back(Twin{.tenant = reader.tenant});
    EXPECT_TRUE(Create(twin, TestPolicy(reader.policy)));
    const int64_t before = reused_;
    Read(twin, prompt, reader.block);
    CheckAlike();
    twins_.clear();
    return reused_ - before;
  }

  std::vector<int32_t> prompt_ = RandomTokens(1, 7 * kBlock, kVocab);
};

TEST_F(PrefixFound, ByTenantPolicyBlocksAndTokens) {
  EXPECT_EQ(Found({}, prompt_), 0);
  EXPECT_EQ(Found({}, prompt_), 6 * kBlock);  // never the last block: its logits are wanted
  std::vector<int32_t> other = prompt_;
  other[3 * kBlock] ^= 1;
  EXPECT_EQ(Found({}, other), 3 * kBlock);
  EXPECT_EQ(Found({}, std::span(prompt_).first(3 * kBlock)), 2 * kBlock);
  EXPECT_EQ(Found({.tenant = "b"}, prompt_), 0);
  EXPECT_EQ(Found({.policy = {.scorer = "h2o", .budget = 61}}, prompt_), 0);
  EXPECT_EQ(Found({.policy = {.scorer = "h2o", .budget = 60, .kv_type = KvType::kF32}}, prompt_), 0);
  EXPECT_EQ(Found({.block = kBlock - 1}, prompt_), 0);
}

TEST_F(PrefixFound, KeptPagesAreAnyonesWhoWantsThem) {
  Found({.policy = {.scorer = "full", .budget = 120}}, prompt_);
  EXPECT_GT(keeping_->memory().pages_kept, 0);
  EXPECT_EQ(keeping_->memory().pages_reserved, 0);
  const int64_t lanes = kModel.layers * kModel.kv_heads;
  const auto all =
      OpenTestSession(*keeping_, {.scorer = "full", .budget = static_cast<int32_t>(kPages / lanes * 64)}, kBlock);
  EXPECT_EQ(keeping_->memory().pages_kept, 0);
}

// Two sessions that live on after they began in the same place: neither sees what the other evicts.
TEST_F(PrefixFound, AnEvictionInOneSessionNeverShowsInAnother) {
  Found({}, prompt_);
  std::vector<std::unique_ptr<Session>> sessions;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(OpenTestSession(*keeping_, {.scorer = "h2o", .budget = 60}, kBlock));
    ASSERT_EQ(keeping_->BeginWithPrefix(*sessions.back(), "a", prompt_, kBlock), 6 * kBlock);
  }
  const uint64_t before = keeping_->Digest(*sessions[1]);
  Feed(*keeping_, *sessions[0], RandomTokens(2, 200, kVocab), kBlock);
  Feed(*keeping_, *sessions[2], RandomTokens(3, 200, kVocab), 1);
  EXPECT_EQ(keeping_->Digest(*sessions[1]), before);
  const auto fourth = OpenTestSession(*keeping_, {.scorer = "h2o", .budget = 60}, kBlock);
  ASSERT_EQ(keeping_->BeginWithPrefix(*fourth, "a", prompt_, kBlock), 6 * kBlock);
  EXPECT_EQ(keeping_->Digest(*fourth), before);
}

}  // namespace
}  // namespace ebb
