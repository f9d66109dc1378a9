#include "engine/lab/npy.h"

#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/status_matchers.h"

namespace ebb::lab {
namespace {

constexpr char kHeader[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";

std::string File(const std::string& header, const std::vector<float>& values) {
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() % 256);
  bytes += static_cast<char>(header.size() / 256);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return bytes;
}

class NpyTest : public testing::Test {
 protected:
  ~NpyTest() override { std::filesystem::remove(path_); }

  absl::StatusOr<Matrix> Read(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return ReadNpy(path_);
  }

  std::string path_ = testing::TempDir() + "ebb-npy-" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(NpyTest, ReadsRowsOfFloats) {
  const auto matrix = Read(File(kHeader, {1, 2, 3, 4, 5, 6}));
  ASSERT_THAT(matrix, IsOk());
  EXPECT_EQ(matrix->rows, 2);
  EXPECT_EQ(matrix->cols, 3);
  EXPECT_THAT(matrix->row(1), testing::ElementsAre(4, 5, 6));
}

TEST_F(NpyTest, RefusesEveryOtherFileByName) {
  const std::string whole = File(kHeader, {1, 2, 3, 4, 5, 6});
  std::string double_precision = kHeader;
  double_precision.replace(double_precision.find("<f4"), 3, "<f8");
  std::string columns_first = kHeader;
  columns_first.replace(columns_first.find("False"), 5, "True");
  std::string three_dimensions = kHeader;
  three_dimensions.replace(three_dimensions.find("(2, 3)"), 6, "(1, 2, 3)");
  std::string enormous = kHeader;
  enormous.replace(enormous.find("(2, 3)"), 6, "(999999999, 999999999)");
  for (const std::string& bytes :
       {std::string(), std::string("PK"), whole.substr(0, 9), whole.substr(0, 40), whole.substr(0, whole.size() - 1),
        whole + '\0', File(double_precision, {1, 2, 3, 4, 5, 6}), File(columns_first, {1, 2, 3, 4, 5, 6}),
        File(three_dimensions, {1, 2, 3, 4, 5, 6}), File(enormous, {1})}) {
    const auto matrix = Read(bytes);
    EXPECT_EQ(matrix.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(matrix.status().message()), testing::HasSubstr(path_));
  }
  EXPECT_EQ(ReadNpy(path_ + "-none").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ebb::lab
