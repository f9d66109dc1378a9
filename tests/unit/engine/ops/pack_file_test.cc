#include "engine/ops/cpu/pack_file.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/model/quantization.h"
#include "engine/ops/cpu/packed_matrix.h"
#include "engine/parallel.h"
#include "policies/hash_random.h"
#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBf16, DType::kQ8_0,
                            DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
const cpu::PackedModel kModel = {.fingerprint = "0123456789abcdef", .bytes = 1000, .changed = 5};

// Tensors of all types, with names, larger than a piece of a file's checksums in all and one in itself.
struct Tensors {
  std::vector<std::pair<std::string, std::vector<std::byte>>> stored = {};
  std::vector<TensorView> views = {};

  explicit Tensors(uint64_t seed = 1) {
    HashRandom random(seed);
    for (const DType type : kTypes) {
      const int64_t rows = type == DType::kF32 ? 700 : 70, cols = 512;
      std::vector<std::byte> data(static_cast<size_t>(rows * RowBytes(type, cols)));
      for (std::byte& byte : data) byte = static_cast<std::byte>(random.Next64());
      stored.emplace_back(absl::StrFormat("blk.%d.w", stored.size()), std::move(data));
    }
    for (size_t i = 0; i < stored.size(); ++i) {
      const int64_t rows = kTypes[i] == DType::kF32 ? 700 : 70;
      views.push_back(
          {.name = stored[i].first, .type = kTypes[i], .rows = rows, .cols = 512, .data = stored[i].second});
    }
  }
};

using Packed = std::vector<std::vector<std::byte>>;

// All tensors as they are packed with the file, and what became of it.
std::pair<Packed, PackReport> PackAll(const Tensors& tensors, cpu::PackFile* file, int32_t threads = 2) {
  Parallel parallel(threads);
  Packed all;
  for (const TensorView& view : tensors.views) {
    const cpu::PackedPanels panels(view, {}, parallel, file);
    all.emplace_back(panels.packed().begin(), panels.packed().end());
  }
  return {std::move(all), file == nullptr ? PackReport() : file->Finish()};
}
std::pair<Packed, PackReport> PackAll(const Tensors& tensors, const std::string& path,
                                      const cpu::PackedModel& model = kModel) {
  cpu::PackFile file(path, model);
  return PackAll(tensors, &file);
}

constexpr int32_t kAll = std::size(kTypes);

class PackFileTest : public testing::Test {
 protected:
  // Every matrix has the bytes that it has without a file, and the next who reads the file has all of them from it.
  void ExpectRepacked(const std::string& why) {
    const auto [packed, report] = PackAll(tensors_, path_);
    EXPECT_TRUE(packed == expected_) << why;
    EXPECT_THAT(report.ignored, AllOf(StartsWith(path_ + ": "), HasSubstr(why)));
    EXPECT_THAT(report.not_written, IsEmpty());
    EXPECT_TRUE(report.written) << why;
    EXPECT_GT(report.packed, 0) << why;
    EXPECT_EQ(report.read + report.packed, kAll) << why;
    ExpectRead();
  }
  void ExpectRead() {
    const auto [packed, report] = PackAll(tensors_, path_);
    EXPECT_TRUE(packed == expected_);
    EXPECT_EQ(report.read, kAll);
    EXPECT_EQ(report.packed, 0);
    EXPECT_FALSE(report.written);
    EXPECT_THAT(report.ignored, IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
  }
  // The file with the byte at `at` changed, counted from its end where it is below 0.
  void Damage(int64_t at) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at, at < 0 ? std::ios::end : std::ios::beg);
    const auto place = file.tellg();
    const auto byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(place);
    file.put(byte);
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.path() + "/a.packed";
  Tensors tensors_;
  Packed expected_ = PackAll(tensors_, nullptr).first;
};

TEST_F(PackFileTest, ReadsWhatItWrote) {
  const auto [packed, report] = PackAll(tensors_, path_);
  EXPECT_TRUE(packed == expected_);
  EXPECT_EQ(report.path, path_);
  EXPECT_EQ(report.packed, kAll);
  EXPECT_TRUE(report.written);
  EXPECT_THAT(report.ignored, IsEmpty()) << "there was none";
  ExpectRead();
}

TEST_F(PackFileTest, FindsDamageWhereverItIs) {
  PackAll(tensors_, path_);
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path_));
  const std::vector<std::pair<int64_t, std::string>> places = {
      {0, "byte 0: expected a file of packed weights"},
      {8, "version 1"},
      {12, "layout 1"},
      {48, "the header does not have its checksum"},
      {72, "the header does not have its checksum"},
      {4096, "byte 4096: matrix 0 (blk.0.w) does not have its checksum"},
      {4096 + (1 << 20) + 77, "matrix 0 (blk.0.w)"},
      {size / 2, "does not have its checksum"},
      {size * 9 / 10, "does not have its checksum"},
      {-1, "the table does not have its checksum"},
      {-32 * kAll - 1, "matrix 7 (blk.7.w)"}};
  for (const auto& [at, why] : places) {
    SCOPED_TRACE(at);
    Damage(at);
    ExpectRepacked(why);
  }
}

// What lies before the damage and behind it is read all the same.
TEST_F(PackFileTest, PacksOnlyWhatIsDamaged) {
  PackAll(tensors_, path_);
  Damage(static_cast<int64_t>(std::filesystem::file_size(path_)) * 9 / 10);
  const auto [packed, report] = PackAll(tensors_, path_);
  EXPECT_TRUE(packed == expected_);
  EXPECT_EQ(report.packed, 1);
  EXPECT_TRUE(report.written);
  ExpectRead();
}

TEST_F(PackFileTest, PacksAnewWhatIsCutShortOrNoSuchFile) {
  for (const int64_t keep : {int64_t{0}, int64_t{50}, int64_t{5000}, int64_t{2'000'000}}) {
    PackAll(tensors_, path_);
    std::filesystem::resize_file(path_, static_cast<uintmax_t>(keep));
    ExpectRepacked(keep < 100 ? "byte 0: expected a file of packed weights" : "expected a table of 8 matrices");
  }
  std::ofstream(path_) << std::string(100'000, 'x');
  ExpectRepacked("byte 0: expected a file of packed weights");
}

TEST_F(PackFileTest, PacksAnewForAnotherModel) {
  cpu::PackedModel other = kModel;
  other.fingerprint = "ffffffffffffffff";
  PackAll(tensors_, path_, other);
  ExpectRepacked("made for the model ffffffffffffffff, this one is 0123456789abcdef");
  other = kModel;
  other.bytes = 999;
  PackAll(tensors_, path_, other);
  ExpectRepacked("the model's file was changed since (999 bytes then, 1000 now)");
  other = kModel;
  other.changed = 6;
  PackAll(tensors_, path_, other);
  ExpectRepacked("the model's file was changed since");
}

// Same fingerprint, other tensors: told by what they begin with, and by their order.
TEST_F(PackFileTest, PacksAnewWhatIsAnotherMatrix) {
  PackAll(Tensors(2), path_);
  ExpectRepacked("expected blk.0.w as matrix 0, found another");
  Tensors turned;
  std::swap(turned.views[2], turned.views[3]);
  PackAll(turned, path_);
  ExpectRepacked("expected blk.2.w as matrix 2, found another");
  Tensors fewer;
  fewer.views.pop_back();
  std::filesystem::remove(path_);
  PackAll(fewer, path_);
  ExpectRepacked("matrix 7 (blk.7.w): expected it, found none");
}

TEST_F(PackFileTest, OneOfSeveralWrites) {
  Parallel parallel(1);
  cpu::PackFile first(path_, kModel);
  const cpu::PackedPanels begun(tensors_.views[0], {}, parallel, &first);  // holds the new file now
  const auto [packed, report] = PackAll(tensors_, path_);
  EXPECT_TRUE(packed == expected_);
  EXPECT_FALSE(report.written);
  EXPECT_THAT(report.not_written, HasSubstr(path_ + ".new: another process writes it"));
  for (int32_t i = 1; i < kAll; ++i) const cpu::PackedPanels other(tensors_.views[i], {}, parallel, &first);
  EXPECT_TRUE(first.Finish().written);
  ExpectRead();
}

TEST_F(PackFileTest, ManyAtOnceLeaveOneWholeFile) {
  for (int round = 0; round < 5; ++round) {
    std::filesystem::remove(path_);
    std::vector<std::jthread> threads;
    std::vector<int> same(4);
    for (int& mine : same) threads.emplace_back([&, to = &mine] { *to = PackAll(tensors_, path_).first == expected_; });
    threads.clear();
    EXPECT_THAT(same, testing::Each(1));
    ExpectRead();
  }
}

TEST_F(PackFileTest, WritesOverWhatAKilledProcessLeft) {
  std::ofstream(path_ + ".new") << std::string(5'000'000, 'x');
  EXPECT_TRUE(PackAll(tensors_, path_).second.written);
  ExpectRead();
}

TEST_F(PackFileTest, LeavesNothingBehindWhereAModelIsNotOpenedToItsEnd) {
  Parallel parallel(1);
  {
    cpu::PackFile file(path_, kModel);
    const cpu::PackedPanels begun(tensors_.views[0], {}, parallel, &file);
    EXPECT_TRUE(std::filesystem::exists(path_ + ".new"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// A disk that is full, in the way that a test can have it.
TEST_F(PackFileTest, GoesOnWithoutAFileThatCannotBeWritten) {
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100'000;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const auto [packed, report] = PackAll(tensors_, path_);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(packed == expected_);
  EXPECT_FALSE(report.written);
  EXPECT_THAT(report.not_written, HasSubstr(path_ + ".new: write failed: File too large"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));

  const auto [again, nowhere] = PackAll(tensors_, folder_.path() + "/missing/a.packed");
  EXPECT_TRUE(again == expected_);
  EXPECT_THAT(nowhere.ignored, IsEmpty());
  EXPECT_THAT(nowhere.not_written, HasSubstr("/missing/a.packed.new: open failed: No such file or directory"));
}

TEST_F(PackFileTest, IsNotLedAstrayByWhatIsNoFile) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const auto [packed, report] = PackAll(tensors_, path_);
  EXPECT_TRUE(packed == expected_);
  EXPECT_THAT(report.ignored, HasSubstr("expected a regular file"));
  EXPECT_TRUE(report.written) << "in the pipe's place";
  std::filesystem::remove(path_);
  std::ofstream(folder_.path() + "/precious") << "kept";
  std::filesystem::create_symlink(folder_.path() + "/precious", path_ + ".new");
  EXPECT_THAT(PackAll(tensors_, path_).second.not_written, HasSubstr("open failed"));
  EXPECT_EQ(std::filesystem::file_size(folder_.path() + "/precious"), 4);
}

// Whoever changes how weights lie (kernels.h) gives kPackLayout the next number, and writes the new sums here: else
// files from before would be read as what they are not.
TEST(PackLayout, IsWhatItsNumberSays) {
  ASSERT_EQ(cpu::kPackLayout, 1U);
  std::string sums;
  for (const std::vector<std::byte>& packed : PackAll(Tensors(), nullptr).first) {
    uint64_t sum = 0xcbf29ce484222325;
    for (const std::byte byte : packed) sum = (sum ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
    sums += absl::StrFormat("%016x\n", sum);
  }
  EXPECT_EQ(sums,
            "23ac50e5f2edfa00\n3a2169649d57a653\nde2d977a2e0f1262\ne88e70fc7d9a5ee9\n"
            "3bb5e755cfb2d4fa\n6e52b3ec50f89b9e\n0511f366397a7248\nc379ecbd468043d1\n");
}

}  // namespace
}  // namespace ebb
