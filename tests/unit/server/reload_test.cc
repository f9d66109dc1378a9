// Files that are read again, all of them or each by itself. They are none here, but say what a file would.

#include "server/reload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// What a file holds, and what was taken of it. "bad" cannot be read, "late" is refused when it is taken.
class PretendedFile {
 public:
  explicit PretendedFile(std::string path) : path_(std::move(path)) {}

  LiveFile AsLiveFile(absl::Duration every = absl::InfiniteDuration()) {
    return {.path = path_, .every = every, .read = [this] { return Read(); }};
  }
  void Set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ = text;
  }
  std::string taken() const {
    const std::lock_guard lock(mutex_);
    return taken_;
  }
  int tries() const {  // to take it
    const std::lock_guard lock(mutex_);
    return tries_;
  }

 private:
  absl::StatusOr<FileChange> Read() {
    const std::lock_guard lock(mutex_);
    if (text_ == "bad") return RefuseField("BAD", path_, "it is bad");
    if (text_ == taken_) return FileChange();
    return FileChange{.paths = {path_}, .take = [this, text = text_]() { return Take(text); }};
  }
  absl::Status Take(const std::string& text) {
    const std::lock_guard lock(mutex_);
    ++tries_;
    if (text == "late") return RefuseField("LATE", path_, "it does not go with the rest");
    taken_ = text;
    return absl::OkStatus();
  }

  const std::string path_;
  mutable std::mutex mutex_;
  std::string text_, taken_;
  int tries_ = 0;
};

class ReloadedFiles : public testing::Test {
 protected:
  ~ReloadedFiles() override { reloader_.Stop(); }

  void Start() {
    reloader_.Start([this](const absl::Status& status, bool any_failing) {
      const std::lock_guard lock(mutex_);
      told_.emplace_back(GetRefusal(status).reason, any_failing);
      arrived_.notify_all();
    });
  }
  absl::StatusOr<std::vector<std::string>> Ask() {
    std::promise<absl::StatusOr<Reloaded>> promise;
    reloader_.Ask([&](absl::StatusOr<Reloaded> reloaded) { promise.set_value(std::move(reloaded)); });
    EBB_ASSIGN(Reloaded reloaded, promise.get_future().get());
    return reloaded.paths;
  }
  // Reasons, and whether any file is bad by then. Waits for as many as that.
  std::vector<std::pair<std::string, bool>> Told(size_t count = 0) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return told_.size() >= count; });
    return std::exchange(told_, {});
  }

  PretendedFile first_{"first"}, second_{"second"};
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::pair<std::string, bool>> told_;
  Reloader reloader_;
};

TEST_F(ReloadedFiles, AreTakenTogether) {
  Start();
  EXPECT_THAT(Ask(), IsRefusal(absl::StatusCode::kFailedPrecondition, "NO_CONFIG_FILE", ""));
  EXPECT_THAT(Told(), ElementsAre()) << "there is nothing that could fail";
  reloader_.Add(first_.AsLiveFile());
  reloader_.Add(second_.AsLiveFile());
  first_.Set("a");
  second_.Set("b");
  EXPECT_THAT(*Ask(), ElementsAre("first", "second"));
  EXPECT_EQ(first_.taken() + second_.taken(), "ab");
  second_.Set("c");
  EXPECT_THAT(*Ask(), ElementsAre("second"));
  EXPECT_THAT(*Ask(), IsEmpty());
  EXPECT_THAT(Told(), ElementsAre(Pair("", false), Pair("", false), Pair("", false)));
}

TEST_F(ReloadedFiles, AreAllLeftWhereOneIsBad) {
  Start();
  reloader_.Add(first_.AsLiveFile());
  reloader_.Add(second_.AsLiveFile());
  for (PretendedFile* const bad : {&first_, &second_}) {
    first_.Set("a");
    second_.Set("a");
    bad->Set("bad");
    EXPECT_EQ(GetRefusal(Ask().status()).reason, "BAD");
    EXPECT_EQ(first_.taken() + second_.taken(), "");
  }
  first_.Set("late");
  second_.Set("a");
  EXPECT_EQ(GetRefusal(Ask().status()).reason, "LATE");
  EXPECT_EQ(first_.taken() + second_.taken(), "") << "the first is taken first";
  EXPECT_THAT(Told(), ElementsAre(Pair("BAD", true), Pair("BAD", true), Pair("LATE", true)));
  first_.Set("b");
  EXPECT_TRUE(Ask().ok());
  EXPECT_THAT(Told(), ElementsAre(Pair("", false)));
}

TEST_F(ReloadedFiles, AreTakenByThemselvesWhateverAnotherIsLike) {
  Start();
  first_.Set("bad");
  reloader_.Add(first_.AsLiveFile(absl::Milliseconds(1)));
  EXPECT_THAT(Told(1), ElementsAre(Pair("BAD", true)));
  reloader_.Add(second_.AsLiveFile(absl::Milliseconds(1)));
  second_.Set("a");
  EXPECT_THAT(Told(1), ElementsAre(Pair("", true))) << "the same complaint is not told again";
  EXPECT_EQ(second_.taken(), "a");
  first_.Set("b");
  EXPECT_THAT(Told(1), ElementsAre(Pair("", false)));
  first_.Set("bad");
  EXPECT_THAT(Told(1), ElementsAre(Pair("BAD", true)));
  first_.Set("b");
  EXPECT_THAT(Told(1), ElementsAre(Pair("", false))) << "mended, though nothing is taken";
}

TEST_F(ReloadedFiles, AreRefusedOnceHoweverOftenTheyAreTriedAgain) {
  Start();
  first_.Set("late");
  reloader_.Add(first_.AsLiveFile(absl::Milliseconds(1)));
  EXPECT_THAT(Told(1), ElementsAre(Pair("LATE", true)));
  const int tries = first_.tries();
  EXPECT_TRUE(Eventually([&] { return first_.tries() > tries + 3; }));
  EXPECT_THAT(Told(), ElementsAre());
}

TEST_F(ReloadedFiles, AreAnsweredAfterTheEndToo) {
  Start();
  reloader_.Stop();
  EXPECT_THAT(Ask(), IsRefusal(absl::StatusCode::kUnavailable, "QUEUE_FULL", ""));
}

}  // namespace
}  // namespace ebb
