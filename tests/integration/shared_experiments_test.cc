// Experiments of servers that share a Redis: those of one that ends go on at another, with the units of both, and
// nothing of what cannot go on is lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/experiment_image.h"
#include "server/experiments/experiments.h"
#include "server/redis_experiments.h"
#include "server/redis_sessions.h"
#include "tests/integration/experimenting.h"
#include "tests/support/eventually.h"
#include "tests/support/redis_process.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using ::testing::SizeIs;

class SharedExperimentsTest : public testing::Test {
 protected:
  struct Member {
    std::unique_ptr<TestServer> server;
    std::unique_ptr<Experimenter> client;

    Experimenter* operator->() const { return client.get(); }
    // As SIGTERM ends it, with all that it has.
    void End() {
      server->server().Drain(absl::Seconds(10));
      client.reset();
      server.reset();
    }
  };
  Member Open(const std::function<void(ServerOptions&)>& change = {}, absl::Duration lease = absl::Seconds(3)) {
    Member member;
    member.server = std::make_unique<TestServer>([&](ServerOptions& options) {
      options.http_listen = {.host = "127.0.0.1", .port = 0};
      options.durability = Durability::kStep;
      options.shared_store = {.redis = redis_.options(), .lease = lease};
      if (change) change(options);
    });
    member.client = std::make_unique<Experimenter>(member.server->address());
    return member;
  }
  // The server has it in this state, with so many units.
  static bool Comes(const Member& member, const std::string& id, v1::ExperimentState state, uint64_t units) {
    v1::Experiment experiment;
    const bool came = Eventually([&] {
      return member.client->TryGet(id, &experiment).ok() && experiment.state() == state && UnitsOf(experiment) == units;
    });
    EXPECT_TRUE(came) << experiment.DebugString();
    return came;
  }
  // The image of it that some server has written, once it is as `fits` says; empty: it never is.
  std::string ImageOf(const std::string& id, const std::function<bool(const ExperimentState&)>& fits) const {
    RedisConnection connection(redis_.options());
    std::string image;
    Eventually([&] {
      const auto heaps = connection.Run(RedisCommand{"KEYS", "ebb:experiments:*"});
      if (!heaps.ok()) return false;
      for (const RedisReply& heap : heaps->list) {
        const auto kept = connection.Run(RedisCommand{"HGET", heap.text, id});
        if (!kept.ok() || kept->is_nil) continue;
        const auto whole = ReadExperimentImage(kept->text);
        if (whole.ok() && fits(whole->state)) image = kept->text;
      }
      return !image.empty();
    });
    return image;
  }
  // Everything of it is in Redis: the image, else empty.
  std::string Write(const Member& member, const std::string& id, double ramp) const {
    member.client->Ramp(id, ramp);
    return ImageOf(id, [&](const ExperimentState& state) { return state.spec.ramp == ramp; });
  }
  // Empty: there is another number of them.
  std::string OnlyServer() const {
    const auto servers = RedisConnection(redis_.options()).Run(RedisCommand{"KEYS", "ebb:server:*"});
    EXPECT_TRUE(servers.ok() && servers->list.size() == 1);
    return servers.ok() && servers->list.size() == 1 ? servers->list[0].text : "";
  }

  static constexpr v1::ExperimentState kRuns = v1::EXPERIMENT_STATE_RUNNING;
  static constexpr v1::ExperimentState kStopped = v1::EXPERIMENT_STATE_STOPPED;

  TemporaryFolder folder_;
  RedisProcess redis_{folder_.path()};
};

TEST_F(SharedExperimentsTest, GoOnWithTheUnitsOfBothAtTheOneThatIsLeftAndThenAtTheNext) {
  Member first = Open();
  Member second = Open();
  const v1::Experiment started = first->Start(TwoArms("e"));
  second->Start(TwoArms("e"));
  first->Start(TwoArms("known-to-one", "acme"));
  for (int i = 0; i < 60; ++i) first->Come(absl::StrCat("user-", i));
  for (int i = 40; i < 100; ++i) second->Come(absl::StrCat("user-", i));
  first.End();
  ASSERT_TRUE(Comes(second, "e", kRuns, 100)) << "20 of them came to both";
  const v1::Experiment both = second->Get("e");
  EXPECT_EQ(SessionsOf(both), 120U);
  EXPECT_EQ(both.start_time().DebugString(), started.start_time().DebugString());
  EXPECT_DOUBLE_EQ(both.results().arms(1).metrics().rbegin()->difference(), 0.5);
  EXPECT_TRUE(Comes(second, "known-to-one", kRuns, 0));
  second->Come("user-7");
  EXPECT_EQ(UnitsOf(second->Get("e")), 100U) << "who came to the one that is gone is known here";
  second->Stop("known-to-one");
  second.End();

  Member third = Open();  // at once
  EXPECT_EQ(third->Get("e").state(), kRuns);
  EXPECT_EQ(UnitsOf(third->Get("e")), 100U);
  EXPECT_EQ(SessionsOf(third->Get("e")), 121U);
  EXPECT_EQ(third->Get("known-to-one").state(), kStopped);
  EXPECT_THAT(third->List().experiments(), SizeIs(2));
}

TEST_F(SharedExperimentsTest, OfAServerThatIsKilledGoOnFromWhatItHadWritten) {
  Member first = Open();
  Member second = Open();
  first->Start(TwoArms("e"));
  for (int i = 0; i < 10; ++i) first->Come(absl::StrCat("user-", i));
  ASSERT_NE(Write(first, "e", 0.9), "");
  first.server.reset();  // undrained
  ASSERT_TRUE(Comes(second, "e", kRuns, 10));
  EXPECT_EQ(second->Get("e").spec().ramp(), 0.9);
}

// A Redis that lost its last moments has again what was taken from there.
TEST_F(SharedExperimentsTest, AreTakenOnceAlsoWhereRedisHasThemAgain) {
  Member first = Open();
  Member second = Open();
  first->Start(TwoArms("e"));
  second->Start(TwoArms("e"));
  for (int i = 0; i < 10; ++i) first->Come(absl::StrCat("user-", i));
  const std::string image = Write(first, "e", 0.9);
  ASSERT_NE(image, "");
  first.server.reset();  // undrained
  ASSERT_TRUE(Comes(second, "e", kRuns, 10));
  RedisConnection connection(redis_.options());
  ASSERT_TRUE(connection.Run(RedisCommand{"HSET", "ebb:experiments:gone", "e", image}).ok());
  ASSERT_TRUE(connection.Run(RedisCommand{"SADD", "ebb:experiments", "gone"}).ok());
  ASSERT_TRUE(Eventually([&] { return redis_.Ask({"SCARD", "ebb:experiments"}) == "1"; })) << "it is in what is there";
  EXPECT_EQ(SessionsOf(second->Get("e")), 10U);
  EXPECT_EQ(second.server->Metric("ebb_experiment_files_set_aside_total"), 0);
}

TEST_F(SharedExperimentsTest, ThatHaveStoppedTakeNobodysPlace) {
  Member first = Open();
  first->Start(TwoArms("one-more"));
  first->Stop("one-more");
  Member second = Open();
  for (size_t i = 0; i < Experiments::kKeptMax; ++i) {
    second->Start(TwoArms(absl::StrCat("own-", i)));
    second->Stop(absl::StrCat("own-", i));
  }
  first.End();
  EXPECT_TRUE(Eventually([&] { return redis_.Ask({"HLEN", "ebb:experiments:aside"}) == "1"; }));
  EXPECT_EQ(second->Get("own-0").state(), kStopped);
  EXPECT_THAT(second->List().experiments(), SizeIs(Experiments::kKeptMax));
}

TEST_F(SharedExperimentsTest, OfAServerThatWasTakenForDeadBeginAnewThere) {
  Member sleeper = Open();
  sleeper->Start(TwoArms("e"));
  sleeper->Start(TwoArms("done", "acme"));
  sleeper->Stop("done");
  for (int i = 0; i < 10; ++i) sleeper->Come(absl::StrCat("user-", i));
  ASSERT_NE(Write(sleeper, "e", 0.9), "");
  ASSERT_NE(ImageOf("done", [](const ExperimentState& state) { return !state.running(); }), "");
  const std::string lease = OnlyServer();
  RedisConnection connection(redis_.options());
  const RedisKeys taker("ebb:", "taker");
  ASSERT_TRUE(connection.Run(taker.Lease("elsewhere:7700", absl::Minutes(5), false)).ok());
  RedisExperiments store(redis_.options(), "ebb:", "taker", absl::Seconds(1));
  ASSERT_TRUE(Eventually([&] {  // the server renews its lease at any time
    if (!connection.Run(RedisCommand{"DEL", lease}).ok()) return false;
    const auto found = store.Find();
    return found.ok() && found->size() == 2;
  }));
  sleeper->Ramp("e", 0.8);
  ASSERT_TRUE(Comes(sleeper, "e", kRuns, 0)) << "its units are the taker's";
  EXPECT_EQ(sleeper->Get("e").spec().ramp(), 0.8);
  EXPECT_THAT(sleeper->List().experiments(), SizeIs(1)) << "as are the results of what has stopped";
  sleeper->Ramp("e", 1);
  sleeper->Come("user-3");
  EXPECT_EQ(UnitsOf(sleeper->Get("e")), 1U);

  ASSERT_TRUE(connection.Run(taker.EndLease()).ok());
  EXPECT_TRUE(Comes(sleeper, "e", kRuns, 10)) << "and now they are back";
  EXPECT_TRUE(Comes(sleeper, "done", kStopped, 0));
}

TEST_F(SharedExperimentsTest, ThatCannotGoOnHaveStoppedWithTheirResultsBesideTheOnesThatAreThere) {
  Member first = Open();
  for (const char* id : {"e", "stopped", "other"}) {
    first->Start(TwoArms(id, id));
    if (id == std::string("e")) first->Start(TwoArms("all"));  // in which the sessions are
    if (id != std::string("e")) first->Stop(id);
  }
  for (int i = 0; i < 5; ++i) first->Come(absl::StrCat("user-", i));
  Member second = Open({}, absl::Seconds(1));  // of which it has patience for twelve
  v1::ExperimentSpec another = TwoArms("all");
  another.mutable_arms(0)->set_weight(3);
  second->Start(another);
  second->Start(TwoArms("stopped", "stopped"));
  for (int i = 0; i < 3; ++i) second->Come(absl::StrCat("user-", i));
  first.End();
  ASSERT_TRUE(Comes(second, "e", kRuns, 0));
  EXPECT_TRUE(Comes(second, "other", kStopped, 0));
  ASSERT_TRUE(Eventually([&] { return second->List().experiments_size() == 6; }));
  EXPECT_EQ(UnitsOf(second->Get("all")), 3U);
  int beside = 0;
  const v1::ListExperimentsResponse list = second->List();
  for (const v1::Experiment& each : list.experiments()) {
    const std::string& name = each.spec().name();
    if (!name.starts_with("all-") && !name.starts_with("stopped-")) continue;
    ++beside;
    EXPECT_EQ(each.state(), kStopped);
    EXPECT_EQ(UnitsOf(each), name.starts_with("all-") ? 5U : 0U) << name;
  }
  EXPECT_EQ(beside, 2);
  second.End();
  Member third = Open();
  EXPECT_THAT(third->List().experiments(), SizeIs(6)) << "and stay so";
}

TEST_F(SharedExperimentsTest, AreLeftToWhoRunsThem) {
  Member first = Open();
  Member fitting = Open({}, absl::Seconds(6));  // looks later than the other one
  first->Start(TwoArms("e"));
  fitting->Start(TwoArms("e"));
  for (int i = 0; i < 5; ++i) first->Come(absl::StrCat("user-", i));
  Member unfit = Open();
  unfit->Start(TwoArms("f"));  // both are for all tenants
  first.End();
  ASSERT_TRUE(Comes(fitting, "e", kRuns, 5));
  EXPECT_THAT(unfit->List().experiments(), SizeIs(1));
}

TEST_F(SharedExperimentsTest, WhoseImageIsDamagedAreSetAside) {
  Member first = Open();
  first->Start(TwoArms("e"));
  first->Start(TwoArms("whole", "acme"));
  ASSERT_NE(Write(first, "e", 0.9), "");
  const std::string heap = "ebb:experiments:" + OnlyServer().substr(std::string("ebb:server:").size());
  first.End();
  EXPECT_EQ(redis_.Ask({"HSET", heap, "e", "no image"}), "0") << "it was there";
  Member second = Open();
  EXPECT_EQ(second->Get("whole").state(), kRuns);
  EXPECT_THAT(second->List().experiments(), SizeIs(1));
  EXPECT_EQ(second.server->Metric("ebb_experiment_files_set_aside_total"), 1);
  EXPECT_EQ(redis_.Ask({"HLEN", "ebb:experiments:aside"}), "1");
}

TEST_F(SharedExperimentsTest, AreWrittenAgainToARedisThatHasForgottenThem) {
  Member first = Open();
  first->Start(TwoArms("e"));
  for (int i = 0; i < 5; ++i) first->Come(absl::StrCat("user-", i));
  ASSERT_NE(Write(first, "e", 0.9), "");
  redis_.Kill();
  std::filesystem::remove_all(folder_.path() + "/appendonlydir");
  redis_.Start();
  ASSERT_TRUE(Eventually([&] { return redis_.Ask({"SCARD", "ebb:experiments"}) == "1"; }));
  first.server.reset();
  Member second = Open();
  EXPECT_TRUE(Comes(second, "e", kRuns, 5));
}

}  // namespace
}  // namespace ebb
