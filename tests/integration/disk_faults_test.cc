// A disk that fails at the first call, then at the second, and so on, through all that the store does: while calls are
// served, and while a server takes up what another left. A program of its own, since it replaces libc's file functions
// for all of it (tests/support/failing_disk.h).
//
// The same script of calls runs once undisturbed, which says what each session is after each of its deeds, and then
// once for each fault. Whatever fails: a call is done or refused with a reason; what was acknowledged is there after
// the server's end, and with `sync` after a power cut; what was refused is done or not, and nothing in between; nobody
// else loses anything, and nothing is left behind.
//
// EBB_DISK_FAULTS=all tries every call (minutes), EBB_DISK_FAULTS=N another choice of them, by N as a seed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "policies/hash_random.h"
#include "policies/status.h"
#include "server/log.h"
#include "tests/support/eventually.h"
#include "tests/support/failing_disk.h"
#include "tests/support/session_script.h"
#include "tests/support/store_copy.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using client::Describe;
using ::testing::Each;
using ::testing::Gt;
using ::testing::IsEmpty;

// A server on a folder, with room for some of the script's sessions at a time.
absl::StatusOr<std::unique_ptr<Server>> Open(const std::string& folder, Durability durability) {
  static const TinyModelFile model(TinyModel{});
  static const auto log = StartLog({.level = LogLevel::kError});  // an access line per call would bury what a test says
  ServerOptions options = {.listen = {.host = "127.0.0.1", .port = 0},
                           .store_dir = folder,
                           .swap_bytes_max = 1 << 30,
                           .durability = durability,
                           .engine = {.model_path = model.path(), .threads = 1, .arena_bytes = 160 << 10}};
  options.work.live.snapshot_every = 12;
  return Server::Start(options);
}

// The callers of a server: of the script's tenant, and of another's.
struct Callers {
  explicit Callers(const Server& server)
      : own(FormatAddress(server.address()), "own"), other(FormatAddress(server.address()), "other") {}
  TestClient own;
  TestClient other;
};

const std::string kCalm = "sessions/calm";

void BeginCalm(TestClient& other) {
  std::vector<uint32_t> told;
  for (const Deed& deed : {Creates(PolicyOf("tova", 24)), Deed(Prefills), Deed(Decodes)}) {
    const grpc::Status status = deed(other, kCalm, told);
    ASSERT_TRUE(status.ok()) << Describe(status);
  }
}

// Of a run without a fault, and with nobody's memory short.
struct Undisturbed {
  Points points = {};
  std::string calm = {};
  bool swapped = false;
};

Undisturbed RunUndisturbed(Durability durability) {
  const TemporaryFolder store;
  const auto server = Open(store.path(), durability);
  Callers callers(**server);
  Undisturbed seen;
  BeginCalm(callers.other);
  seen.calm = Seen(callers.other, kCalm);
  for (const Step& step : Script()) seen.points.try_emplace(step.subject, 1);
  AllProgress progress;
  Play(Script(), callers.own, progress, true, [&](const Step& step, const std::vector<uint32_t>& told) {
    v1::ListSessionsResponse list;
    EXPECT_TRUE(callers.own.sessions().ListSessions(callers.own.Context().get(), {}, &list).ok());
    for (const v1::Session& session : list.sessions()) seen.swapped = seen.swapped || session.swapped();
    Point point = {.told = told};
    if (!step.subject.empty()) point.seen = Seen(callers.own, step.subject);
    if (step.subject.starts_with("sessions/") && !step.deletes) point.tokens = callers.own.Get(step.subject).tokens();
    seen.points[step.subject].push_back(std::move(point));
  });
  for (const auto& [subject, of] : progress) EXPECT_FALSE(of.refused) << subject;
  return seen;
}

std::vector<std::string> DescriptorsIn(const std::string& folder) {
  std::vector<std::string> open;
  std::error_code gone;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    const std::string path = fs::read_symlink(entry.path(), gone);
    if (path.starts_with(folder)) open.push_back(path);
  }
  return open;
}

void DeleteAll(TestClient& client) {
  v1::ListSessionsResponse sessions;
  EXPECT_TRUE(client.sessions().ListSessions(client.Context().get(), {}, &sessions).ok());
  std::vector<uint32_t> told;
  for (const v1::Session& session : sessions.sessions()) {
    const grpc::Status status = Deletes(client, session.name(), told);
    EXPECT_TRUE(status.ok()) << Describe(status);
  }
  v1::ListSnapshotsResponse snapshots;
  EXPECT_TRUE(client.sessions().ListSnapshots(client.Context().get(), {}, &snapshots).ok());
  for (const v1::Snapshot& snapshot : snapshots.snapshots()) {
    const grpc::Status status = Deletes(client, snapshot.name(), told);
    EXPECT_TRUE(status.ok()) << Describe(status);
  }
}

// The disk works again: whoever was there can be deleted, nothing of them is held, and their names are free.
void ExpectNothingIsHeld(Callers& callers) {
  DeleteAll(callers.own);
  DeleteAll(callers.other);
  EXPECT_EQ(callers.own.Status().work().sessions(), 0U);
  EXPECT_EQ(callers.own.Status().cache().pages_reserved(), 0U);
  std::vector<uint32_t> told;
  std::set<std::string> names;
  for (const Step& step : Script()) {
    if (!step.subject.starts_with("sessions/") || !names.insert(step.subject).second) continue;
    const grpc::Status made = Creates(PolicyOf("h2o", 24))(callers.own, step.subject, told);
    EXPECT_TRUE(made.ok()) << Describe(made);
    const grpc::Status deleted = Deletes(callers.own, step.subject, told);
    EXPECT_TRUE(deleted.ok()) << Describe(deleted);
  }
}

enum class EndOf { kKill, kPowerCut };

// Where a subject is that was refused a deed: where it was before or after it, or, of an answer, some tokens into it,
// and then the rest of them follows.
bool IsWithin(TestClient& client, EndOf cause, const std::string& subject, const std::vector<Point>& points,
              Progress& progress, const std::string& seen) {
  if (!progress.refused || progress.done + 1 >= points.size()) return false;
  const Point& next = points[progress.done + 1];
  if (seen == next.seen) {
    ++progress.done;
    progress.refused = false;
    return true;
  }
  if (next.told.empty() || seen.empty()) return false;
  const uint64_t before = points[progress.done].tokens;
  const size_t told = cause == EndOf::kKill ? progress.told.size() : 0;  // tokens of an answer that goes on
  EXPECT_GE(client.Get(subject).tokens(), before + told) << "what was told";
  v1::DecodeRequest resume = DecodeTokens(subject, static_cast<uint32_t>(next.told.size()));
  resume.set_resume_from(before);
  return client.Decode(resume).tokens == next.told;
}

// What another server left is what was acknowledged there. Those that go on from there do so as if nothing had been.
void ExpectAcknowledged(Callers& callers, EndOf cause, const Undisturbed& right, AllProgress& all) {
  EXPECT_EQ(Seen(callers.other, kCalm), right.calm) << "of another tenant, who asked for nothing";
  for (const auto& [subject, points] : right.points) {
    if (subject.empty()) continue;
    SCOPED_TRACE(subject);
    Progress& progress = all[subject];
    const std::string seen = Seen(callers.own, subject);
    if (seen == points[progress.done].seen) {
      progress.refused = false;
    } else if (!IsWithin(callers.own, cause, subject, points, progress, seen)) {
      ADD_FAILURE() << "after " << progress.done << " deeds, "
                    << (progress.refused ? "the next refused" : "and no other") << ", it is " << seen << " and not "
                    << points[progress.done].seen;
      progress.refused = true;
    }
  }
}

void ExpectGoesOn(Callers& callers, const Undisturbed& right, AllProgress& all) {
  const AllProgress before = all;
  Play(Script(), callers.own, all, false);
  for (const auto& [subject, points] : right.points) {
    const Progress& progress = all.at(subject);
    if (before.contains(subject) && before.at(subject).refused) continue;
    EXPECT_FALSE(progress.refused) << subject;
    const bool is_done = progress.done + 1 == points.size() && !subject.empty();
    if (is_done) {
      EXPECT_EQ(Seen(callers.own, subject), points.back().seen) << subject;
    }
  }
}

// Another server on what is left.
void ExpectComesBack(const std::string& folder, Durability durability, EndOf cause, const Undisturbed& right,
                     AllProgress all) {
  const auto server = Open(folder, durability);
  ASSERT_TRUE(server.ok()) << server.status();
  Callers callers(**server);
  ExpectAcknowledged(callers, cause, right, all);
  ExpectGoesOn(callers, right, all);
  ExpectNothingIsHeld(callers);
  EXPECT_TRUE(Eventually([&] { return FilesIn(folder).empty(); })) << testing::PrintToString(FilesIn(folder));
}

struct Variant {
  std::string name = {};
  DiskFault fault = {};
  Durability durability = Durability::kSync;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

// Which calls fail first in one run each, of so many.
std::vector<int64_t> Chosen(int64_t calls, int64_t runs) {
  const char* const wanted = std::getenv("EBB_DISK_FAULTS");
  const std::string how = wanted == nullptr ? "1" : wanted;
  uint64_t seed = 0;
  const bool all = !absl::SimpleAtoi(how, &seed);
  if (all || runs > calls) runs = calls;
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < runs; ++i) {
    const int64_t low = i * calls / runs;
    const int64_t high = (i + 1) * calls / runs;
    const auto within = static_cast<int64_t>(HashBits(seed, 0, static_cast<uint64_t>(i)) % uint64_t(high - low));
    chosen.push_back(1 + low + within);
  }
  std::printf("%d of %d calls, by seed %d\n", static_cast<int>(runs), static_cast<int>(calls), static_cast<int>(seed));
  return chosen;
}

constexpr int64_t kRuns = 10;  // of a test, with a fault each

constexpr size_t kScriptToStart = 17;  // steps, after which nobody has gone

class DiskFaultsTest : public testing::TestWithParam<Variant> {
 protected:
  // True where the fault was met.
  bool RunWith(const DiskFault& fault) {
    const Durability durability = GetParam().durability;
    const TemporaryFolder store;
    const TemporaryFolder killed;
    const TemporaryFolder dark;
    AllProgress progress;
    FailingDisk disk(store.path());
    auto server = Open(store.path(), durability);
    std::optional<Callers> callers(std::in_place, **server);
    BeginCalm(callers->other);
    disk.Fail(fault);
    Play(Script(), callers->own, progress, fault.count == 1);
    disk.Work();
    calls_ = disk.counted();
    SCOPED_TRACE(absl::StrFormat("call %d, %s", fault.from, disk.first()));
    CopyStore(store.path(), killed.path());
    disk.CutPower(dark.path());
    ExpectNothingIsHeld(*callers);
    callers.reset();
    server->reset();
    EXPECT_THAT(DescriptorsIn(store.path()), IsEmpty());
    ExpectComesBack(killed.path(), durability, EndOf::kKill, right_, progress);
    if (durability == Durability::kSync) ExpectComesBack(dark.path(), durability, EndOf::kPowerCut, right_, progress);
    return disk.met();
  }

  const Undisturbed right_ = RunUndisturbed(GetParam().durability);
  int64_t calls_ = 0;  // of the last run, of the kinds that may fail
};

TEST_P(DiskFaultsTest, WhateverFailsWhatWasAcknowledgedIsThere) {
  ASSERT_TRUE(right_.swapped) << "by the arena";
  DiskFault fault = GetParam().fault;
  fault.from = DiskFault::kForGood;
  ASSERT_FALSE(RunWith(fault));
  ASSERT_FALSE(HasFailure());
  int64_t met = 0;
  for (const int64_t call : Chosen(calls_, kRuns)) {
    fault.from = call;
    met += RunWith(fault) ? 1 : 0;
  }
  EXPECT_GT(met, 0) << "no run came to the call that was to fail";
}

// Sessions and a snapshot that a server left: the others find all of them, whatever fails while they look.
class DiskFaultsAtStartTest : public testing::TestWithParam<Variant> {
 protected:
  DiskFaultsAtStartTest() {
    const auto server = Open(left_.path(), GetParam().durability);
    Callers callers(**server);
    BeginCalm(callers.other);
    Play(std::span(Script()).first(kScriptToStart), callers.own, progress_, true);
    if (GetParam().durability == Durability::kDrain) (*server)->Drain(absl::ZeroDuration());
  }

  // One that cannot be read is not there, and nobody gets its name.
  void ExpectThereOrAway(Callers& callers) {
    for (const auto& [subject, progress] : progress_) {
      SCOPED_TRACE(subject);
      if (subject.empty() || progress.done == 0) continue;
      const std::string seen = Seen(callers.own, subject);
      if (seen == right_.points.at(subject)[progress.done].seen) continue;
      EXPECT_THAT(seen, IsEmpty());
      EXPECT_TRUE(subject.starts_with("sessions/"));
      if (GetParam().durability == Durability::kDrain) continue;
      std::vector<uint32_t> told;
      const grpc::Status taken = Creates(PolicyOf("h2o", 24))(callers.own, subject, told);
      EXPECT_EQ(client::ReadDetails(taken).reason, "JOURNAL_FAILED") << Describe(taken);
    }
  }

  void StartWith(const std::string& store, const DiskFault& fault) {
    FailingDisk disk(store);
    disk.Fail(fault);
    auto server = Open(store, GetParam().durability);
    disk.Work();
    calls_ = disk.counted();
    trace_ = absl::StrFormat("call %d, %s", fault.from, disk.first());
    SCOPED_TRACE(trace_);
    if (!server.ok()) {
      EXPECT_EQ(GetRefusal(server.status()).reason, "STORE_UNUSABLE") << server.status();
      return;
    }
    std::optional<Callers> callers(std::in_place, **server);
    ExpectThereOrAway(*callers);
    if (GetParam().durability == Durability::kDrain) (*server)->Drain(absl::ZeroDuration());
    callers.reset();
    server->reset();
    EXPECT_THAT(DescriptorsIn(store), IsEmpty());
  }

  void RunWith(const DiskFault& fault) {
    const TemporaryFolder store;
    CopyStore(left_.path(), store.path());
    StartWith(store.path(), fault);
    SCOPED_TRACE(trace_);
    ExpectComesBack(store.path(), GetParam().durability, EndOf::kKill, right_, progress_);
  }

  const Undisturbed right_ = RunUndisturbed(GetParam().durability);
  const TemporaryFolder left_;
  AllProgress progress_ = {};
  int64_t calls_ = 0;
  std::string trace_ = {};
};

TEST_P(DiskFaultsAtStartTest, WhatCannotBeReadNowIsLeftToTheNext) {
  DiskFault fault = GetParam().fault;
  fault.from = DiskFault::kForGood;
  RunWith(fault);
  ASSERT_FALSE(HasFailure());
  for (const int64_t call : Chosen(calls_, kRuns)) {
    fault.from = call;
    RunWith(fault);
  }
}

// A server that leaves its sessions in a store that fails leaves those that it can, and says so of the others.
TEST(DiskFaultsAtDrainTest, WhoCannotBeKeptIsGoneAndNobodyElse) {
  const Undisturbed right = RunUndisturbed(Durability::kDrain);
  const auto run = [&](const DiskFault& fault) {
    const TemporaryFolder store;
    AllProgress progress;
    int64_t calls = 0;
    std::string first;
    {
      FailingDisk disk(store.path());
      const auto server = Open(store.path(), Durability::kDrain);
      Callers callers(**server);
      BeginCalm(callers.other);
      Play(Script(), callers.own, progress, true);
      disk.Fail(fault);
      (*server)->Drain(absl::ZeroDuration());
      calls = disk.counted();
      first = disk.first();
    }
    SCOPED_TRACE(absl::StrFormat("call %d, %s", fault.from, first));
    const auto next = Open(store.path(), Durability::kDrain);
    EXPECT_TRUE(next.ok()) << next.status();
    Callers callers(**next);
    size_t gone = Seen(callers.other, kCalm) == right.calm ? 0 : 1;
    for (const auto& [subject, points] : right.points) {
      if (!subject.starts_with("sessions/") || points.back().seen.empty()) continue;
      const std::string seen = Seen(callers.own, subject);
      if (seen == points.back().seen) continue;
      EXPECT_THAT(seen, IsEmpty()) << subject;
      ++gone;
    }
    EXPECT_LE(gone, first.empty() ? 0U : fault.count == 1 ? 1U : 3U);
    ExpectNothingIsHeld(callers);
    EXPECT_TRUE(Eventually([&] { return FilesIn(store.path()).empty(); }));
    return calls;
  };
  const int64_t calls = run({.from = DiskFault::kForGood});
  for (const int64_t call : Chosen(calls, kRuns)) {
    run({.from = call});
    run({.from = call, .count = DiskFault::kForGood});
  }
}

std::string NameOf(const testing::TestParamInfo<Variant>& info) { return info.param.name; }

constexpr int64_t kForGood = DiskFault::kForGood;
const std::vector<DiskCall> kMakesAndWrites = {DiskCall::kMake, DiskCall::kWrite, DiskCall::kSync};
const std::vector<DiskCall> kChanges = {DiskCall::kMake, DiskCall::kWrite,  DiskCall::kSync,
                                        DiskCall::kCut,  DiskCall::kRename, DiskCall::kRemove};
const std::vector<DiskCall> kOpens = {DiskCall::kOpen, DiskCall::kMake};

INSTANTIATE_TEST_SUITE_P(
    Disks, DiskFaultsTest,
    testing::Values(Variant{"once", {}}, Variant{"once_by_step", {}, Durability::kStep},
                    Variant{"for_good", {.count = kForGood}}, Variant{"sync", {.kinds = {DiskCall::kSync}}},
                    Variant{"partly", {.error = ENOSPC, .partly = true, .kinds = {DiskCall::kWrite}}},
                    Variant{"full", {.count = kForGood, .error = ENOSPC, .kinds = kMakesAndWrites}},
                    Variant{
                        "quota", {.count = kForGood, .error = EDQUOT, .kinds = {DiskCall::kWrite}}, Durability::kStep},
                    Variant{"read_only", {.count = kForGood, .error = EROFS, .kinds = kChanges}},
                    Variant{"descriptors", {.error = EMFILE, .kinds = kOpens}}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Disks, DiskFaultsAtStartTest,
    testing::Values(Variant{"once", {}, Durability::kStep}, Variant{"for_good", {.count = kForGood}, Durability::kSync},
                    Variant{"read_only", {.count = kForGood, .error = EROFS, .kinds = kChanges}, Durability::kStep},
                    Variant{"descriptors", {.error = EMFILE, .kinds = kOpens}, Durability::kSync},
                    Variant{"once_when_kept", {}, Durability::kDrain},
                    Variant{"for_good_when_kept", {.count = kForGood}, Durability::kDrain}),
    NameOf);

// That the disk is asked at all, in each of the ways in which it can fail.
TEST(FailingDiskTest, SeesEveryKindOfCall) {
  const TemporaryFolder store;
  const FailingDisk disk(store.path());
  AllProgress progress;
  for (const size_t steps : {kScriptToStart, Script().size()}) {
    const auto server = Open(store.path(), Durability::kSync);
    Callers callers(**server);
    Play(std::span(Script()).first(steps), callers.own, progress, true);
  }
  EXPECT_THAT(disk.seen(), Each(Gt(0)));
}

}  // namespace
}  // namespace ebb
