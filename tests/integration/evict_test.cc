// Evict over the wire: each form takes out whom it names, says so, and a dry run of it says the same.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/test_server.h"

namespace ebb {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

constexpr uint64_t kTokens = 86;  // of the prompt

class Evict : public testing::Test {
 protected:
  std::string Primed() {
    v1::PolicySpec policy;
    policy.mutable_h2o();
    policy.mutable_trigger()->set_budget(60);
    const std::string name = client_.Create(SessionWith(policy)).name();
    EXPECT_TRUE(client_.Prefill(PrefillText(name, kStormyNight)).ok());
    return name;
  }
  v1::EvictResponse Answer(const v1::EvictRequest& request) {
    v1::EvictResponse response;
    const grpc::Status status = client_.eviction().Evict(client_.Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << client::Describe(status);
    return response;
  }
  std::vector<v1::LaneDescription> LanesOf(const std::string& name) {
    v1::DescribeCacheRequest request;
    request.set_session(name);
    v1::DescribeCacheResponse response;
    EXPECT_TRUE(client_.eviction().DescribeCache(client_.Context().get(), request, &response).ok());
    return {response.lanes().begin(), response.lanes().end()};
  }

  TestServer server_;
  TestClient client_{server_.address()};
};

TEST_F(Evict, EveryFormTakesWhomItNamesAndADryRunSaysTheSame) {
  using Lanes = std::vector<v1::LaneDescription>;
  struct Case {
    std::string form;
    std::function<void(const Lanes&, v1::EvictRequest&)> name;
    std::function<bool(const v1::LaneDescription&, int)> leaves;  // the lane's n-th token; null: the scorer chooses
  };
  const auto third = [](int n) { return n % 3 == 1; };
  const std::vector<Case> cases = {
      {"range",
       [](const Lanes& /*lanes*/, v1::EvictRequest& request) {
         request.mutable_range()->set_start(10);
         request.mutable_range()->set_end(70);
       },
       [](const v1::LaneDescription& lane, int n) { return lane.tokens(n) >= 10 && lane.tokens(n) < 70; }},
      {"keep", [](const Lanes& /*lanes*/, v1::EvictRequest& request) { request.mutable_keep()->set_count(41); },
       nullptr},
      {"older_than", [](const Lanes& /*lanes*/, v1::EvictRequest& request) { request.set_older_than(20); },
       [](const v1::LaneDescription& lane, int n) { return lane.tokens(n) < kTokens - 20; }},
      {"slots",
       [third](const Lanes& lanes, v1::EvictRequest& request) {
         for (const v1::LaneDescription& lane : lanes) {
           v1::LaneSlots& slots = *request.mutable_slots()->add_lanes();
           slots.set_layer(lane.layer());
           slots.set_head(lane.head());
           for (int n = lane.slots_size(); n-- > 0;) {  // in any order
             if (third(n)) slots.add_slots(lane.slots(n));
           }
         }
       },
       [third](const v1::LaneDescription& /*lane*/, int n) { return third(n); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.form);
    const std::string name = Primed();
    const Lanes before = LanesOf(name);
    const v1::Session session = client_.Get(name);
    v1::EvictRequest request;
    request.set_session(name);
    c.name(before, request);
    request.set_dry_run(true);
    v1::EvictResponse trial = Answer(request);
    EXPECT_EQ(trial.generation(), session.generation());
    EXPECT_EQ(client_.Get(name).used_bytes(), session.used_bytes());
    request.set_dry_run(false);
    request.set_list_victims(true);
    v1::EvictResponse done = Answer(request);
    EXPECT_EQ(done.generation(), session.generation() + 1);
    for (v1::EvictResponse* answer : {&trial, &done}) answer->clear_generation();
    EXPECT_EQ(trial.SerializeAsString(), done.SerializeAsString());

    const Lanes after = LanesOf(name);
    ASSERT_EQ(after.size(), before.size());
    ASSERT_EQ(static_cast<size_t>(done.victims_size()), before.size());
    uint64_t slots = 0;
    for (size_t lane = 0; lane < before.size(); ++lane) {
      const v1::LaneVictims& victims = done.victims(static_cast<int>(lane));
      EXPECT_EQ(victims.layer(), before[lane].layer());
      EXPECT_EQ(victims.head(), before[lane].head());
      if (c.leaves) {
        std::vector<uint64_t> named;
        for (int n = 0; n < before[lane].tokens_size(); ++n) {
          if (c.leaves(before[lane], n)) named.push_back(before[lane].tokens(n));
        }
        std::ranges::sort(named);
        EXPECT_THAT(victims.tokens(), ElementsAreArray(named));
      } else {
        EXPECT_EQ(after[lane].tokens_size(), 41);
      }
      std::multiset<uint64_t> all(victims.tokens().begin(), victims.tokens().end());
      all.insert(after[lane].tokens().begin(), after[lane].tokens().end());
      EXPECT_THAT(all,
                  ElementsAreArray(std::set<uint64_t>(before[lane].tokens().begin(), before[lane].tokens().end())));
      slots += static_cast<uint64_t>(victims.tokens_size());
    }
    EXPECT_GT(slots, 0U);
    EXPECT_EQ(done.slots_evicted(), slots);
    EXPECT_EQ(done.bytes_evicted(), session.used_bytes() - client_.Get(name).used_bytes());
    EXPECT_GT(done.bytes_evicted(), 0U);
    EXPECT_GT(done.attention_mass(), 0);
    EXPECT_EQ(done.length_before(), session.cache_length());
    EXPECT_EQ(done.length_after(), client_.Get(name).cache_length());
  }
}

TEST_F(Evict, VictimsAreListedOnDemandAlone) {
  v1::EvictRequest request;
  request.set_session(Primed());
  request.set_older_than(40);
  const v1::EvictResponse done = Answer(request);
  EXPECT_GT(done.slots_evicted(), 0U);
  EXPECT_THAT(done.victims(), IsEmpty());
}

}  // namespace
}  // namespace ebb
