#include "tests/support/session_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/error.h"

namespace ebb {

namespace fs = std::filesystem;
using client::Describe;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = grpc::StatusCode;

static constexpr char kSaid[] = "Whatever fails, says so.";

Deed Creates(const v1::PolicySpec& policy) {
  return [policy](TestClient& client, const std::string& name, std::vector<uint32_t>& /*told*/) {
    v1::CreateSessionRequest request = SessionWith(policy, 64);
    request.set_session_id(fs::path(name).filename());
    request.mutable_sampling()->set_temperature(0.9F);
    v1::Session session;
    return client.Create(request, &session);
  };
}

grpc::Status Prefills(TestClient& client, const std::string& name, std::vector<uint32_t>& /*told*/) {
  return client.Prefill(PrefillText(name, kSaid));
}

grpc::Status Decodes(TestClient& client, const std::string& name, std::vector<uint32_t>& told) {
  const Answer answer = client.Decode(DecodeTokens(name, 5));
  told = answer.tokens;
  return answer.status;
}

static grpc::Status Edits(TestClient& client, const std::string& name, std::vector<uint32_t>& /*told*/) {
  v1::EditRequest request;
  request.set_session(name);
  request.set_mode(v1::EDIT_MODE_RECOMPUTE_TAIL);
  v1::EditSpan& span = *request.add_spans();
  span.set_start(20);
  span.set_end(22);
  span.mutable_tokens()->add_ids(7);
  v1::EditResponse response;
  return client.inference().Edit(client.Context().get(), request, &response);
}

static grpc::Status Evicts(TestClient& client, const std::string& name, std::vector<uint32_t>& /*told*/) {
  v1::EvictRequest request;
  request.set_session(name);
  request.mutable_keep()->set_count(20);
  request.mutable_keep()->set_scorer("streaming");
  v1::EvictResponse response;
  return client.eviction().Evict(client.Context().get(), request, &response);
}

static grpc::Status SetsPolicy(TestClient& client, const std::string& name, std::vector<uint32_t>& /*told*/) {
  v1::SetPolicyRequest request;
  request.set_session(name);
  *request.mutable_policy() = PolicyOf("tova", 30);
  v1::SetPolicyResponse response;
  return client.eviction().SetPolicy(client.Context().get(), request, &response);
}

static Deed Forks(const std::string& of) {
  return [of](TestClient& client, const std::string& name, std::vector<uint32_t>& /*told*/) {
    v1::ForkSessionRequest request;
    request.set_session(of);
    request.set_session_id(fs::path(name).filename());
    v1::Session session;
    return client.sessions().ForkSession(client.Context().get(), request, &session);
  };
}

static Deed Saves(const std::string& of) {
  return [of](TestClient& client, const std::string& name, std::vector<uint32_t>& /*told*/) {
    v1::SaveSessionRequest request;
    request.set_session(of);
    request.set_snapshot_id(fs::path(name).filename());
    v1::SaveSessionResponse response;
    return client.sessions().SaveSession(client.Context().get(), request, &response);
  };
}

static Deed Restores(const std::string& of) {
  return [of](TestClient& client, const std::string& name, std::vector<uint32_t>& /*told*/) {
    v1::RestoreSessionRequest request;
    request.set_snapshot(of);
    request.set_session_id(fs::path(name).filename());
    v1::Session session;
    return client.sessions().RestoreSession(client.Context().get(), request, &session);
  };
}

grpc::Status Deletes(TestClient& client, const std::string& name, std::vector<uint32_t>& /*told*/) {
  if (name.starts_with("sessions/")) return client.Delete(name);
  v1::DeleteSnapshotRequest request;
  request.set_name(name);
  v1::DeleteSnapshotResponse response;
  return client.sessions().DeleteSnapshot(client.Context().get(), request, &response);
}

static std::string SeenSession(TestClient& client, const std::string& name) {
  v1::GetSessionRequest get;
  get.set_name(name);
  v1::DescribeCacheRequest describe;
  describe.set_session(name);
  v1::DescribeCacheResponse cache;
  v1::Session session;
  grpc::Status status = client.eviction().DescribeCache(client.Context().get(), describe, &cache);
  if (status.error_code() == Code::NOT_FOUND) return {};
  if (status.ok()) status = client.sessions().GetSession(client.Context().get(), get, &session);
  EXPECT_TRUE(status.ok()) << Describe(status);
  session.clear_last_used_time();
  session.clear_create_time();
  session.clear_shared_bytes();
  session.clear_reserved_bytes();
  session.clear_swapped();
  return session.DebugString() + cache.DebugString();
}

std::string Seen(TestClient& client, const std::string& name) {
  if (name.starts_with("sessions/")) return SeenSession(client, name);
  std::vector<uint32_t> told;
  const grpc::Status status = Restores(name)(client, "sessions/probe", told);
  if (status.error_code() == Code::NOT_FOUND) return {};
  EXPECT_TRUE(status.ok()) << Describe(status);
  std::string seen = SeenSession(client, "sessions/probe");
  EXPECT_TRUE(client.Delete("sessions/probe").ok());
  return seen;
}

static grpc::Status Lists(TestClient& client, const std::string& /*name*/, std::vector<uint32_t>& /*told*/) {
  v1::ListSnapshotsResponse list;
  const grpc::Status status = client.sessions().ListSnapshots(client.Context().get(), {}, &list);
  if (status.ok()) {
    EXPECT_EQ(list.snapshots_size(), 1) << "it has been saved";
  }
  return status;
}

const std::vector<Step>& Script() {
  static const v1::PolicySpec small = PolicyOf("h2o", 24);
  static const std::vector<Step> steps = {
      {"sessions/a", Creates(small)},
      {"sessions/a", Prefills},
      {"sessions/a", Decodes},
      {"sessions/b", Forks("sessions/a"), "sessions/a", 3},
      {"sessions/a", Edits},
      {"sessions/b", Decodes},
      {"sessions/a", Evicts},
      {"snapshots/s", Saves("sessions/b"), "sessions/b", 2},
      {"", Lists, "snapshots/s", 1},
      {"sessions/c", Restores("snapshots/s"), "snapshots/s", 1},
      {"sessions/a", SetsPolicy},
      {"sessions/large", Creates(PolicyOf("h2o", 300))},
      {"sessions/large", Prefills},
      {"sessions/b", Decodes},
      {"sessions/large", Deletes, "", 0, true},
      {"sessions/c", Decodes},
      {"sessions/a", Decodes},
      {"sessions/b", Deletes, "", 0, true},
      {"snapshots/s", Deletes, "", 0, true},
      {"sessions/a", Decodes},
  };
  return steps;
}

static void ExpectReason(const grpc::Status& status) {
  static const std::set<std::pair<Code, std::string>> known = {{Code::UNAVAILABLE, "STORE_FAILED"},
                                                               {Code::UNAVAILABLE, "STORE_FULL"},
                                                               {Code::UNAVAILABLE, "NO_PAGES"},
                                                               {Code::UNAVAILABLE, "JOURNAL_FAILED"},
                                                               {Code::FAILED_PRECONDITION, "JOURNAL_FAILED"}};
  const client::ErrorDetails details = client::ReadDetails(status);
  EXPECT_THAT(known, Contains(std::pair(status.error_code(), details.reason))) << Describe(status);
  EXPECT_EQ(details.retry.has_value(), status.error_code() == Code::UNAVAILABLE) << Describe(status);
  EXPECT_THAT(status.error_message(), Not(HasSubstr("/ebb-test-"))) << "no path of the server's";
}

void Play(std::span<const Step> steps, TestClient& client, AllProgress& all, bool heals,
          const std::function<void(const Step&, const std::vector<uint32_t>&)>& after) {
  std::map<std::string, size_t> place;
  for (const Step& step : steps) {
    Progress& progress = all[step.subject];
    const bool is_next = place[step.subject]++ == progress.done && !progress.refused;
    const Progress& of = step.of.empty() ? Progress() : all[step.of];
    if (!is_next || of.done != step.of_deeds || of.refused) continue;
    SCOPED_TRACE(absl::StrFormat("deed %d of %s", progress.done, step.subject));
    std::vector<uint32_t> told;
    grpc::Status status = step.deed(client, step.subject, told);
    if (!status.ok()) ExpectReason(status);
    if (status.error_code() == Code::UNAVAILABLE && told.empty()) {
      status = step.deed(client, step.subject, told);
      if (heals && step.deletes && status.error_code() == Code::NOT_FOUND) status = grpc::Status::OK;
      if (heals) {
        EXPECT_TRUE(status.ok()) << Describe(status);
      }
      const bool is_gone = step.deletes && status.error_code() == Code::NOT_FOUND;  // here, and will be in the store
      if (!status.ok() && !is_gone) ExpectReason(status);
    }
    progress.refused = !status.ok();
    progress.told = told;
    if (status.ok()) ++progress.done;
    if (status.ok() && after) after(step, told);
  }
}

}  // namespace ebb
