// Sessions and a server for tests of swapping: an arena of a few sessions, and a folder for the others.

#ifndef EBB_TESTS_INTEGRATION_SWAPPING_H_
#define EBB_TESTS_INTEGRATION_SWAPPING_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {

#ifdef EBB_SANITIZED
inline constexpr int kRounds = 3;
#else
inline constexpr int kRounds = 10;
#endif

inline constexpr char kText[] = "Who is away takes no room, and comes back as who left.";

inline std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void WriteAll(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline v1::CreateSessionRequest Wanted(const std::string& id, const std::string& scorer) {
  v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24), 16);
  request.set_session_id(id);
  v1::PolicySpec& policy = *request.mutable_policy();
  if (scorer == "full") {
    policy.Clear();
    policy.mutable_full();
    policy.mutable_trigger()->set_budget(240);
  }
  if (scorer == "h2o") policy.mutable_h2o();
  if (scorer == "tova") policy.mutable_tova();
  if (scorer == "snapkv") policy.mutable_snapkv()->set_window(8);
  if (scorer == "semantic") policy.mutable_semantic();
  request.mutable_sampling()->set_temperature(0.9F);
  request.mutable_sampling()->set_repetition_penalty(1.1F);
  request.mutable_sampling()->set_seed(11);
  return request;
}

inline std::string Open(TestClient& client, const std::string& id, const std::string& scorer) {
  const std::string name = client.Create(Wanted(id, scorer)).name();
  EXPECT_TRUE(client.Prefill(PrefillText(name, kText)).ok());
  return name;
}

inline std::string Decodes(TestClient& client, const std::string& name) {
  const Answer answer = client.Decode(DecodeTokens(name, 7));
  EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
  return testing::PrintToString(answer.tokens);
}

// All that a client can see of a session's cache; brings it back.
inline std::string Seen(TestClient& client, const std::string& name) {
  v1::DescribeCacheRequest request;
  request.set_session(name);
  v1::DescribeCacheResponse response;
  const grpc::Status status = client.eviction().DescribeCache(client.Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  v1::Session session = client.Get(name);
  session.clear_last_used_time();
  session.clear_create_time();
  session.clear_shared_bytes();
  session.clear_reserved_bytes();  // it may be away again
  session.clear_swapped();
  return session.DebugString() + response.DebugString();
}

inline void ExpectRefusal(const grpc::Status& status, grpc::StatusCode code, const std::string& reason) {
  EXPECT_EQ(status.error_code(), code) << client::Describe(status);
  EXPECT_EQ(client::ReadDetails(status).reason, reason);
}

struct Life {
  int64_t arena_bytes = 384 << 10;
  int64_t swap_bytes_max = 1 << 30;
  Durability durability = Durability::kOff;
  int32_t sessions_max = 100'000;
};

inline std::unique_ptr<TestServer> StartOn(const std::string& store, const Life& life = {}) {
  return std::make_unique<TestServer>([&](ServerOptions& options) {
    options.http_listen = {.host = "127.0.0.1", .port = 0};
    options.store_dir = store;
    options.swap_bytes_max = life.swap_bytes_max;
    options.durability = life.durability;
    options.engine.arena_bytes = life.arena_bytes;
    options.work.live.sessions_max = life.sessions_max;
    options.engine.prefix_share = 0.25;
  });
}

class SwapTest : public testing::Test {
 protected:
  double Metric(const std::string& series) const { return server_->Metric(series); }
  bool IsAway(const std::string& name) const { return client_->Get(name).swapped(); }

  // Opens others until the session is away.
  void SendAway(const std::string& name) {
    for (int i = 0; i < 100 && !IsAway(name); ++i) {
      fillers_.push_back(client_->Create(SessionWith(StreamingPolicy(100), 16)).name());
    }
    ASSERT_TRUE(IsAway(name));
  }
  void DeleteFillers() {
    for (const std::string& name : std::exchange(fillers_, {})) EXPECT_TRUE(client_->Delete(name).ok());
  }

  // Its thread may still be about to remove what is not wanted any more.
  std::vector<std::filesystem::path> FilesWhenThereAre(size_t count) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    for (;;) {
      std::vector<std::filesystem::path> files;
      for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(store_.path()) / "swap"))
        files.push_back(entry.path());
      if (files.size() == count || std::chrono::steady_clock::now() > end) {
        EXPECT_EQ(files.size(), count);
        return files;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  void ExpectNothingIsLeft() const {
    EXPECT_EQ(client_->Status().work().sessions(), 0U);
    EXPECT_EQ(client_->Status().cache().pages_reserved(), 0U);
    EXPECT_EQ(Metric("ebb_kv_pages{state=\"free\"}"), Metric("ebb_kv_pages_limit"));
    EXPECT_EQ(Metric("ebb_kv_pages{state=\"owned\"}"), 0);
    EXPECT_EQ(Metric("ebb_cache_slots{state=\"used\"}"), 0);
    EXPECT_EQ(Metric("ebb_swapped_sessions"), 0);
    EXPECT_EQ(Metric("ebb_swap_file_bytes"), 0);
    FilesWhenThereAre(0);
  }

  TemporaryFolder store_;
  std::unique_ptr<TestServer> server_ = StartOn(store_.path());
  std::unique_ptr<TestClient> client_ = std::make_unique<TestClient>(server_->address());
  std::vector<std::string> fillers_ = {};
};

}  // namespace ebb

#endif  // EBB_TESTS_INTEGRATION_SWAPPING_H_
