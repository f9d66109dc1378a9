// Watching evictions: what is told adds up, what is lost is counted, and nobody waits for a watcher.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using client::ReadDetails;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

constexpr int kLanes = 4;                                             // two layers of two KV heads
constexpr std::chrono::seconds kPatience = std::chrono::seconds(40);  // with a stream that has nothing more to tell
constexpr uint64_t kDecodedMax = 20000;                               // until a watch that nobody reads loses events

v1::WatchEvictionsRequest Of(const std::string& session, uint32_t every = 1) {
  v1::WatchEvictionsRequest request;
  request.set_session(session);
  request.set_every(every);
  return request;
}

// A watch that is in force once the constructor returns, unless it was refused.
class Watch {
 public:
  Watch(TestClient& client, const v1::WatchEvictionsRequest& request)
      : context_(ContextOf(client)), reader_(client.eviction().WatchEvictions(context_.get(), request)) {
    reader_->WaitForInitialMetadata();
  }

  // False at the end of the stream.
  bool Read() {
    v1::WatchEvictionsResponse message;
    if (!reader_->Read(&message)) return false;
    EXPECT_EQ(message.sequence(), messages_++);
    lost_ += message.events_lost();
    if (message.has_eviction()) events_.push_back(message.eviction());
    return true;
  }
  void ReadUntil(size_t events) {
    while (events_.size() < events) ASSERT_TRUE(Read());
  }
  grpc::Status ReadToEnd() {
    while (Read()) continue;
    return reader_->Finish();
  }
  grpc::Status Cancel() {
    context_->TryCancel();
    return ReadToEnd();
  }

  const std::vector<v1::Eviction>& events() const { return events_; }
  uint64_t lost() const { return lost_; }

 private:
  // With an end: who waits in vain for an event fails, and does not hang.
  static std::unique_ptr<grpc::ClientContext> ContextOf(TestClient& client) {
    auto context = client.Context();
    context->set_deadline(std::chrono::system_clock::now() + kPatience);
    return context;
  }

  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchEvictionsResponse>> reader_;
  std::vector<v1::Eviction> events_ = {};
  uint64_t messages_ = 0;
  uint64_t lost_ = 0;
};

class WatchEvictions : public testing::Test {
 protected:
  WatchEvictions() : WatchEvictions([](ServerOptions& /*options*/) {}) {}
  explicit WatchEvictions(const std::function<void(ServerOptions&)>& change)
      : server_([&change](ServerOptions& options) {
          options.http_listen = {.host = "127.0.0.1", .port = 0};
          change(options);
        }),
        client_(server_.address()) {}

  std::string Open(const v1::PolicySpec& policy) { return client_.Create(SessionWith(policy)).name(); }
  std::string Primed(const v1::PolicySpec& policy) {
    const std::string name = Open(policy);
    EXPECT_TRUE(client_.Prefill(PrefillText(name, kStormyNight)).ok());
    return name;
  }
  double OfPolicy(const std::string& metric, const std::string& policy) const {
    return server_.Metric(metric + "{policy=\"" + policy + "\"}");
  }
  double OfDefault(const std::string& metric) const { return server_.Metric(metric + "{tenant=\"default\"}"); }

  TestServer server_;
  TestClient client_;
};

TEST_F(WatchEvictions, WhatIsToldAddsUpToTheCounters) {
  v1::WatchEvictionsRequest request;
  request.set_list_victims(true);
  Watch watch(client_, request);
  const std::string h2o = Primed(PolicyOf("h2o", 40));
  const std::string streaming = Primed(PolicyOf("streaming", 30));
  for (const std::string& name : {h2o, streaming})
    EXPECT_THAT(client_.Decode(DecodeTokens(name, 20)).tokens, SizeIs(20));
  v1::EvictRequest evict;
  evict.set_session(h2o);
  evict.mutable_keep()->set_count(35);
  v1::EvictResponse evicted;
  ASSERT_TRUE(client_.eviction().Evict(client_.Context().get(), evict, &evicted).ok());
  v1::SetPolicyRequest change;
  change.set_session(h2o);
  *change.mutable_policy() = PolicyOf("keydiff", 34);
  v1::SetPolicyResponse changed;
  ASSERT_TRUE(client_.eviction().SetPolicy(client_.Context().get(), change, &changed).ok());

  const std::vector<std::string> policies = {"h2o", "streaming", "keydiff"};
  double evictions = 0;
  for (const std::string& policy : policies) evictions += OfPolicy("ebb_evictions_total", policy);
  watch.ReadUntil(static_cast<size_t>(evictions));
  EXPECT_EQ(watch.lost(), 0U);
  std::map<std::string, double> count, tokens, slots;
  std::map<std::string, uint64_t> generation;
  for (const v1::Eviction& event : watch.events()) {
    ++count[event.policy()];
    tokens[event.policy()] += event.evicted_tokens();
    slots[event.policy()] += static_cast<double>(event.slots_evicted());
    EXPECT_EQ(event.length_before() - event.length_after(), event.evicted_tokens());
    EXPECT_GE(event.generation(), generation[event.session()]);
    generation[event.session()] = event.generation();
  }
  for (const std::string& policy : policies) {
    EXPECT_GT(count[policy], 0) << policy;
    EXPECT_EQ(count[policy], OfPolicy("ebb_evictions_total", policy)) << policy;
    EXPECT_EQ(tokens[policy], OfPolicy("ebb_evicted_tokens_total", policy)) << policy;
    EXPECT_EQ(slots[policy], OfPolicy("ebb_evicted_slots_total", policy)) << policy;
  }
  EXPECT_EQ(OfDefault("ebb_watch_events_total"), evictions);
  EXPECT_EQ(OfDefault("ebb_watch_events_lost_total"), 0);

  // The two calls came last, and say what the calls answered.
  const v1::Eviction& by_evict = watch.events()[watch.events().size() - 2];
  EXPECT_EQ(by_evict.cause(), v1::EVICTION_CAUSE_EVICT);
  EXPECT_EQ(by_evict.slots_evicted(), evicted.slots_evicted());
  EXPECT_EQ(by_evict.attention_mass(), evicted.attention_mass());
  EXPECT_EQ(by_evict.generation(), evicted.generation());
  const v1::Eviction& by_change = watch.events().back();
  EXPECT_EQ(by_change.cause(), v1::EVICTION_CAUSE_SET_POLICY);
  EXPECT_EQ(by_change.output_error(), changed.changes(0).output_error());
  EXPECT_EQ(by_change.generation(), client_.Get(h2o).generation());

  // Who left and who is there are everybody, once each.
  v1::DescribeCacheRequest describe;
  describe.set_session(h2o);
  v1::DescribeCacheResponse cache;
  ASSERT_TRUE(client_.eviction().DescribeCache(client_.Context().get(), describe, &cache).ok());
  for (const v1::LaneDescription& lane : cache.lanes()) {
    std::vector<uint64_t> seen(lane.tokens().begin(), lane.tokens().end());
    for (const v1::Eviction& event : watch.events()) {
      for (const v1::LaneVictims& left : event.victims()) {
        const bool is_here = event.session() == h2o && left.layer() == lane.layer() && left.head() == lane.head();
        if (is_here) seen.insert(seen.end(), left.tokens().begin(), left.tokens().end());
      }
    }
    std::vector<uint64_t> all(cache.session_tokens());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_THAT(seen, UnorderedElementsAreArray(all));
  }
}

TEST_F(WatchEvictions, AStepIsToldWithItsCauseItsLossAndItsVictims) {
  const std::string name = Open(PolicyOf("streaming", 30));
  v1::WatchEvictionsRequest request = Of(name);
  request.set_list_victims(true);
  Watch watch(client_, request);
  EXPECT_TRUE(client_.Prefill(PrefillText(name, kStormyNight)).ok());  // 86 tokens in blocks of 16
  EXPECT_THAT(client_.Decode(DecodeTokens(name, 1)).tokens, SizeIs(1));
  watch.ReadUntil(6);
  std::vector<int> causes;
  std::vector<uint64_t> victims;
  for (const v1::Eviction& event : watch.events()) {
    causes.push_back(event.cause());
    ASSERT_THAT(event.victims(), SizeIs(kLanes));
    const v1::LaneVictims& first = event.victims(0);
    EXPECT_EQ(first.tokens_size(), static_cast<int>(event.evicted_tokens()));
    for (const v1::LaneVictims& lane : event.victims()) EXPECT_THAT(lane.tokens(), ElementsAreArray(first.tokens()));
    victims.insert(victims.end(), first.tokens().begin(), first.tokens().end());
    EXPECT_EQ(event.length_after(), 30U);
  }
  EXPECT_THAT(causes,
              ElementsAre(v1::EVICTION_CAUSE_PREFILL, v1::EVICTION_CAUSE_PREFILL, v1::EVICTION_CAUSE_PREFILL,
                          v1::EVICTION_CAUSE_PREFILL, v1::EVICTION_CAUSE_PROMPT_END, v1::EVICTION_CAUSE_DECODE));
  std::vector<uint64_t> middle(86 + 1 - 30);  // what is neither among the first 4 nor the last 26
  for (size_t i = 0; i < middle.size(); ++i) middle[i] = i + 4;
  EXPECT_THAT(victims, ElementsAreArray(middle));
  EXPECT_TRUE(watch.events()[0].has_attention_mass()) << "the first of 16";
  EXPECT_GT(watch.events()[0].attention_mass(), 0);
  EXPECT_FALSE(watch.events()[1].has_attention_mass());
}

TEST_F(WatchEvictions, OneInSoManyAreThoseThatAreMeasured) {
  const std::string name = Primed(PolicyOf("streaming", 30));  // 5 steps that evict
  Watch watch(client_, Of(name, 16));
  EXPECT_THAT(client_.Decode(DecodeTokens(name, 50)).tokens, SizeIs(50));
  watch.ReadUntil(3);
  std::vector<uint64_t> at;
  for (const v1::Eviction& event : watch.events()) {
    at.push_back(event.session_tokens());
    EXPECT_TRUE(event.has_output_error());
  }
  EXPECT_THAT(at, ElementsAre(86 + 12, 86 + 28, 86 + 44)) << "steps 16, 32 and 48 of those that evict, from 0";
  EXPECT_EQ(watch.Cancel().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_THAT(watch.events(), SizeIs(3));
}

TEST_F(WatchEvictions, OtherSessionsAndOtherTenantsAreNotSeen) {
  TestClient neighbour(server_.address(), "neighbour");
  const std::string mine = Open(PolicyOf("streaming", 30));
  const std::string foreign = neighbour.Create(SessionWith(PolicyOf("streaming", 30))).name();
  Watch one(client_, Of(mine));
  Watch all(client_, {});
  Watch theirs(neighbour, {});
  Watch refused(client_, Of(foreign));
  EXPECT_EQ(ReadDetails(refused.ReadToEnd()).reason, "UNKNOWN_SESSION");
  const std::string other = Primed(PolicyOf("streaming", 30));
  EXPECT_TRUE(neighbour.Prefill(PrefillText(foreign, kStormyNight)).ok());
  EXPECT_TRUE(client_.Prefill(PrefillText(mine, kStormyNight)).ok());
  one.ReadUntil(5);
  all.ReadUntil(10);
  theirs.ReadUntil(5);
  for (Watch* watch : {&one, &all, &theirs}) EXPECT_EQ(watch->Cancel().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_THAT(one.events(), SizeIs(5));
  EXPECT_THAT(all.events(), SizeIs(10));
  EXPECT_THAT(theirs.events(), SizeIs(5));
  for (const v1::Eviction& event : one.events()) EXPECT_EQ(event.session(), mine);
  for (const v1::Eviction& event : all.events()) EXPECT_TRUE(event.session() == mine || event.session() == other);
  for (const v1::Eviction& event : theirs.events()) EXPECT_EQ(event.session(), foreign);
}

TEST_F(WatchEvictions, AWatchEndsWithItsSession) {
  const std::string name = Primed(PolicyOf("streaming", 30));
  Watch one(client_, Of(name));
  Watch all(client_, {});
  EXPECT_EQ(OfDefault("ebb_watchers"), 2);
  EXPECT_TRUE(client_.Delete(name).ok());
  const grpc::Status status = one.ReadToEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(ReadDetails(status).reason, "SESSION_DELETED");
  EXPECT_EQ(OfDefault("ebb_watchers"), 1);
  Primed(PolicyOf("streaming", 30));
  all.ReadUntil(5);
  EXPECT_EQ(all.Cancel().error_code(), grpc::StatusCode::CANCELLED);
  while (OfDefault("ebb_watchers") > 0) continue;
}

TEST_F(WatchEvictions, ADrainEndsAWatchWhenTheLastCallIsOver) {
  const std::string name = Primed(PolicyOf("streaming", 30));
  Watch watch(client_, {});
  const auto context = client_.Context();
  auto decoding = client_.inference().Decode(context.get(), DecodeTokens(name, kEndless));
  v1::DecodeResponse message;
  ASSERT_TRUE(decoding->Read(&message));
  std::thread drain([this] { server_.server().Drain(absl::Milliseconds(200)); });
  uint64_t evicted = message.evicted_tokens();
  while (decoding->Read(&message)) evicted += message.evicted_tokens();
  EXPECT_EQ(ReadDetails(decoding->Finish()).reason, "DRAINING");
  const grpc::Status status = watch.ReadToEnd();
  drain.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReadDetails(status).reason, "DRAINING");
  EXPECT_TRUE(ReadDetails(status).retry.has_value());
  EXPECT_EQ(watch.events().size() + watch.lost(), evicted) << "a token a step, to the last step";
}

TEST_F(WatchEvictions, ARequestOutOfRangeIsRefused) {
  for (const uint32_t every : {0U, (1U << 20) + 1}) {
    const grpc::Status status = Watch(client_, Of("", every)).ReadToEnd();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(ReadDetails(status).field, "every");
  }
  EXPECT_EQ(ReadDetails(Watch(client_, Of("frog")).ReadToEnd()).reason, "INVALID_NAME");
}

class FewWatchers : public WatchEvictions {
 protected:
  FewWatchers()
      : WatchEvictions([](ServerOptions& options) {
          options.work.live.watchers_max = 3;
          options.work.tenants.listed["default"].watchers_max = 2;
        }) {}
};

TEST_F(FewWatchers, OneTooManyIsRefusedUntilAnotherEnds) {
  TestClient neighbour(server_.address(), "neighbour");
  Watch first(client_, {}), second(client_, {}), third(neighbour, {});
  const grpc::Status own = Watch(client_, {}).ReadToEnd();
  EXPECT_EQ(own.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReadDetails(own).reason, "TENANT_WATCHERS");
  const grpc::Status full = Watch(neighbour, {}).ReadToEnd();
  EXPECT_EQ(full.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReadDetails(full).reason, "WATCHERS_FULL");
  EXPECT_TRUE(ReadDetails(full).retry.has_value());
  server_.server().SetLive({.watchers_max = 4});
  Watch fourth(neighbour, {});
  EXPECT_TRUE(Eventually([&] { return server_.Metric("ebb_watchers{tenant=\"neighbour\"}") == 2; }));
  first.Cancel();
  while (OfDefault("ebb_watchers") > 1) continue;
  Watch again(client_, {});
  Primed(PolicyOf("streaming", 30));
  again.ReadUntil(5);
}

// Large messages and small windows fill what lies between server and reader in no time.
class SlowWatcher : public WatchEvictions {
 protected:
  SlowWatcher() : WatchEvictions([](ServerOptions& options) { options.stream_buffer = 2; }) {}
};

TEST_F(SlowWatcher, LosesEventsIsToldHowManyAndHoldsUpNobody) {
  TestClient sleeper(server_.address(), "", SmallWindows());
  const std::string name = Primed(PolicyOf("h2o", 40));
  v1::WatchEvictionsRequest request = Of("");
  request.set_list_victims(true);
  Watch watch(sleeper, request);
  const double before = OfPolicy("ebb_evictions_total", "h2o");
  // Nobody reads the watch, and every step of the decode evicts: if a step waited for it, this would never end.
  uint64_t decoded = 0;
  while (OfDefault("ebb_watch_events_lost_total") < 100) {
    ASSERT_LT(decoded, kDecodedMax) << "no loss was counted";
    ASSERT_THAT(client_.Decode(DecodeTokens(name, 200)).tokens, SizeIs(200));
    decoded += 200;
  }
  EXPECT_EQ(OfPolicy("ebb_evictions_total", "h2o") - before, static_cast<double>(decoded)) << "a step a token";
  EXPECT_EQ(OfDefault("ebb_watch_events_total") + OfDefault("ebb_watch_events_lost_total"),
            static_cast<double>(decoded));

  // Now it reads, and is told of the loss with the next event that finds room.
  while (watch.lost() == 0) {
    ASSERT_LT(decoded, kDecodedMax + 100) << "the watcher was not told";
    const auto queued = static_cast<size_t>(OfDefault("ebb_watch_events_total"));
    ASSERT_NO_FATAL_FAILURE(watch.ReadUntil(queued));
    ASSERT_THAT(client_.Decode(DecodeTokens(name, 1)).tokens, SizeIs(1));
    ++decoded;
    if (OfDefault("ebb_watch_events_total") > static_cast<double>(queued)) {
      ASSERT_TRUE(watch.Read());
    }
  }
  EXPECT_EQ(watch.events().size() + watch.lost(), decoded);
  EXPECT_EQ(static_cast<double>(watch.lost()), OfDefault("ebb_watch_events_lost_total"));
}

TEST_F(SlowWatcher, IsToldAtTheEndWhatItLostLast) {
  TestClient sleeper(server_.address(), "", SmallWindows());
  const std::string name = Primed(PolicyOf("h2o", 40));
  v1::WatchEvictionsRequest request = Of(name);
  request.set_list_victims(true);
  Watch watch(sleeper, request);
  uint64_t decoded = 0;
  for (; OfDefault("ebb_watch_events_lost_total") < 100; decoded += 200) {
    ASSERT_LT(decoded, kDecodedMax) << "no loss was counted";
    client_.Decode(DecodeTokens(name, 200));
  }
  EXPECT_TRUE(client_.Delete(name).ok());
  EXPECT_EQ(ReadDetails(watch.ReadToEnd()).reason, "SESSION_DELETED");
  EXPECT_EQ(watch.events().size() + watch.lost(), decoded);
}

}  // namespace
}  // namespace ebb
