// What can happen to the files of sessions that are swapped, and to those who wait for them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/integration/swapping.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using client::ReadDetails;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Code = grpc::StatusCode;

TEST_F(SwapTest, ADamagedFileIsNamedAndHarmsNoOther) {
  const std::string name = Open(*client_, "a", "h2o");
  SendAway(name);
  const std::string other = Open(*client_, "b", "h2o");
  const std::string right = Seen(*client_, other);
  for (const fs::path& file : FilesWhenThereAre(static_cast<size_t>(Metric("ebb_swapped_sessions")))) {
    std::string bytes = ReadAll(file);
    bytes[bytes.size() / 2] ^= 4;
    WriteAll(file, bytes);
  }
  for (int i = 0; i < 2; ++i) {
    const grpc::Status status = client_->Decode(DecodeTokens(name, 1)).status;
    ExpectRefusal(status, Code::DATA_LOSS, "SWAP_DAMAGED");
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  }
  EXPECT_EQ(Metric("ebb_swap_failures_total{direction=\"in\"}"), 1) << "it is read once";
  EXPECT_TRUE(IsAway(name));
  EXPECT_EQ(Seen(*client_, other), right);
  EXPECT_TRUE(client_->Delete(name).ok());

  SendAway(other);
  for (const fs::path& file : FilesWhenThereAre(static_cast<size_t>(Metric("ebb_swapped_sessions")))) fs::remove(file);
  ExpectRefusal(client_->Decode(DecodeTokens(other, 1)).status, Code::DATA_LOSS, "SWAP_DAMAGED");
  EXPECT_TRUE(client_->Delete(other).ok());
  EXPECT_THAT(Open(*client_, "c", "h2o"), "sessions/c") << "in what is free";
}

TEST_F(SwapTest, ADiskThatIsFullRefusesTheNewcomerAndNobodyElse) {
  const TestServer roomy;
  TestClient calm(roomy.address());
  const std::string name = Open(*client_, "a", "h2o");
  Open(calm, "a", "h2o");
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {.rlim_cur = 64, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  v1::Session session;
  grpc::Status full;
  for (int i = 0; i < 100 && full.ok(); ++i) full = client_->Create(SessionWith(StreamingPolicy(100), 16), &session);
  setrlimit(RLIMIT_FSIZE, &before);
  ExpectRefusal(full, Code::UNAVAILABLE, "NO_PAGES");
  EXPECT_GT(ReadDetails(full).retry.value_or(absl::ZeroDuration()), absl::ZeroDuration());
  EXPECT_EQ(Metric("ebb_swap_failures_total{direction=\"out\"}"), 1);
  EXPECT_EQ(Metric("ebb_swapped_sessions"), 0);
  EXPECT_FALSE(IsAway(name));
  FilesWhenThereAre(0);
  SendAway(name);
  EXPECT_EQ(Decodes(*client_, name), Decodes(calm, name));
}

TEST_F(SwapTest, NoMoreThanSwapMaxIsOnTheDisk) {
  const TemporaryFolder folder;
  const auto server = StartOn(folder.path(), {.swap_bytes_max = 40'000});
  TestClient client(server->address());
  v1::Session session;
  grpc::Status status;
  int opened = 0;
  for (; status.ok() && opened < 1000; ++opened) {
    status = client.Create(Wanted(absl::StrFormat("s%d", opened), "h2o"), &session);
    if (!status.ok()) break;
    EXPECT_TRUE(client.Prefill(PrefillText(session.name(), kText)).ok());
  }
  ExpectRefusal(status, Code::UNAVAILABLE, "NO_PAGES");
  EXPECT_GT(server->Metric("ebb_swapped_sessions"), 0);
  EXPECT_LE(server->Metric("ebb_swap_file_bytes"), 40'000);
}

// A file that is read and never comes is a named pipe that nobody writes to. What the files held.
std::vector<std::string> StopUp(const std::vector<fs::path>& files) {
  std::vector<std::string> good;
  for (const fs::path& file : files) {
    good.push_back(ReadAll(file));
    fs::remove(file);
    EXPECT_EQ(mkfifo(file.c_str(), 0600), 0);
  }
  return good;
}
void PutBack(const std::vector<fs::path>& files, const std::vector<std::string>& good) {
  for (size_t i = 0; i < files.size(); ++i) {
    fs::rename(files[i], files[i].string() + ".pipe");
    WriteAll(files[i], good[i]);
  }
  for (const fs::path& file : files) {
    std::ofstream(file.string() + ".pipe", std::ios::in | std::ios::out);  // whoever reads it, comes to its end
    fs::remove(file.string() + ".pipe");
  }
}

TEST_F(SwapTest, ACallThatWaitsForItsSessionIsOneOfItsTenants) {
  const std::string name = Open(*client_, "a", "h2o");
  SendAway(name);
  const std::vector<fs::path> files = FilesWhenThereAre(static_cast<size_t>(Metric("ebb_swapped_sessions")));
  const std::vector<std::string> good = StopUp(files);
  ASSERT_TRUE(server_->server().SetTenants({.listed = {{"default", {.calls_max = 1}}}}).ok());
  const auto waits = client_->Context();
  const auto stream = client_->inference().Decode(waits.get(), DecodeTokens(name, 3));
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  const auto reason = [&] { return ReadDetails(client_->Prefill(PrefillText(fillers_.back(), "a"))).reason; };
  const std::string calls = "ebb_quota_used{tenant=\"default\",quota=\"calls\"}";
  while (Metric(calls) == 0) ASSERT_LT(std::chrono::steady_clock::now(), end);
  EXPECT_EQ(reason(), "TENANT_CALLS");
  waits->TryCancel();
  v1::DecodeResponse message;
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_EQ(stream->Finish().error_code(), Code::CANCELLED);
  while (Metric(calls) > 0) ASSERT_LT(std::chrono::steady_clock::now(), end);
  EXPECT_EQ(reason(), "");
  PutBack(files, good);
  EXPECT_THAT(client_->Decode(DecodeTokens(name, 3)).tokens, SizeIs(3));
}

TEST_F(SwapTest, OfLowPriorityLeaveFirst) {
  TestClient batch(server_->address(), "batch");
  ASSERT_TRUE(server_->server().SetTenants({.listed = {{"batch", {.tier = Tier::kLow}}}}).ok());
  const std::string old = Open(*client_, "old", "h2o");
  const std::string young = Open(batch, "young", "h2o");
  while (Metric("ebb_swapped_sessions") == 0) {
    fillers_.push_back(client_->Create(SessionWith(StreamingPolicy(24), 16)).name());  // as large as each of them
    ASSERT_LT(fillers_.size(), 100U);
  }
  EXPECT_TRUE(batch.Get(young).swapped());
  EXPECT_FALSE(IsAway(old));
}

TEST_F(SwapTest, WhoIsOverItsQuotaSendsNobodyAway) {
  TestClient acme(server_->address(), "acme");
  const v1::Session mine = acme.Create(SessionWith(StreamingPolicy(24), 16));
  ASSERT_TRUE(acme.Prefill(PrefillText(mine.name(), kText)).ok());
  const auto own = static_cast<int64_t>(mine.reserved_bytes());
  ASSERT_TRUE(server_->server().SetTenants({.listed = {{"acme", {.cache_bytes_max = own + own / 2}}}}).ok());
  const auto free = [this] {
    const v1::CacheStatus cache = client_->Status().cache();
    return static_cast<int64_t>((cache.pages_total() - cache.pages_reserved()) * cache.page_bytes());
  };
  while (free() >= own) fillers_.push_back(client_->Create(SessionWith(StreamingPolicy(24), 16)).name());
  ASSERT_EQ(Metric("ebb_swapped_sessions"), 0);

  v1::SetPolicyRequest grow;
  grow.set_session(mine.name());
  *grow.mutable_policy() = StreamingPolicy(100);
  v1::SetPolicyResponse grown;
  EXPECT_FALSE(acme.eviction().SetPolicy(acme.Context().get(), grow, &grown).ok());
  v1::ForkSessionRequest fork;
  fork.set_session(mine.name());
  *fork.mutable_policy() = StreamingPolicy(100);
  v1::Session branch;
  ExpectRefusal(acme.sessions().ForkSession(acme.Context().get(), fork, &branch), Code::RESOURCE_EXHAUSTED,
                "TENANT_CACHE");
  EXPECT_EQ(Metric("ebb_swapped_sessions"), 0);

  ASSERT_TRUE(server_->server().SetTenants({}).ok());
  EXPECT_TRUE(acme.eviction().SetPolicy(acme.Context().get(), grow, &grown).ok()) << "without it, others make room";
  EXPECT_GT(Metric("ebb_swapped_sessions"), 0);
}

TEST_F(SwapTest, WhoWaitsMayCancelOrRunOutOfTimeAndOthersGoOn) {
  const TestServer roomy;
  TestClient calm(roomy.address());
  Open(calm, "a", "h2o");
  const std::string name = Open(*client_, "a", "h2o");
  SendAway(name);
  const std::vector<fs::path> files = FilesWhenThereAre(static_cast<size_t>(Metric("ebb_swapped_sessions")));
  const std::vector<std::string> good = StopUp(files);

  const auto late = client_->Context();
  late->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  const auto late_stream = client_->inference().Decode(late.get(), DecodeTokens(name, 3));
  v1::DecodeResponse message;
  EXPECT_FALSE(late_stream->Read(&message));
  EXPECT_EQ(late_stream->Finish().error_code(), Code::DEADLINE_EXCEEDED);

  const auto cancelled = client_->Context();
  const auto cancelled_stream = client_->inference().Decode(cancelled.get(), DecodeTokens(name, 3));
  const std::string other = fillers_.back();
  EXPECT_TRUE(client_->Prefill(PrefillText(other, kText)).ok());
  EXPECT_THAT(client_->Decode(DecodeTokens(other, 20)).tokens, SizeIs(20)) << "who is in memory does not wait";
  cancelled->TryCancel();
  EXPECT_FALSE(cancelled_stream->Read(&message));
  EXPECT_EQ(cancelled_stream->Finish().error_code(), Code::CANCELLED);
  // Both are over for the server, too.
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (Metric("ebb_rpc_handled_total{method=\"InferenceService/Decode\",code=\"CANCELLED\"}") +
             Metric("ebb_rpc_handled_total{method=\"InferenceService/Decode\",code=\"DEADLINE_EXCEEDED\"}") <
         2) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

  PutBack(files, good);
  EXPECT_EQ(Decodes(*client_, name), Decodes(calm, name));
  EXPECT_EQ(Seen(*client_, name), Seen(calm, name));
}

}  // namespace
}  // namespace ebb
