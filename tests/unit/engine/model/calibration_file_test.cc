#include "engine/model/calibration_file.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "policies/status.h"
#include "tests/support/random_calibration.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

using testing::HasSubstr;

class CalibrationFileTest : public testing::Test {
 protected:
  std::string Text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // What reading says where the file has `after` in the place of `before`.
  absl::Status ReadWith(const std::string& before, const std::string& after) const {
    std::string text = whole_;
    const size_t at = text.find(before);
    EXPECT_NE(at, std::string::npos) << before;
    text.replace(at, before.size(), after);
    std::ofstream(path_) << text;
    return ReadCalibration(path_, model_).status();
  }

  absl::Status Write(const std::vector<Feature>& features) {
    const absl::Status status = WriteCalibration(path_, model_, features, "a text", written_);
    whole_ = Text();
    return status;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/a.calibration.json";
  const ModelConfig model_ = {.layers = 3, .kv_heads = 2, .fingerprint = "00112233445566aa"};
  const std::vector<Feature> all_ = {Feature::kAge, Feature::kKeyLength, Feature::kKeyLikeness, Feature::kValueLength,
                                     Feature::kAttention};
  const Calibration written_ = RandomCalibration(3, 3, 2);
  std::string whole_;
};

TEST_F(CalibrationFileTest, LiesBesideTheModel) {
  EXPECT_EQ(CalibrationPath("models/ebb-tiny-q8_0.gguf"), "models/ebb-tiny-q8_0.calibration.json");
  const TemporaryFolder folder;
  EXPECT_EQ(CalibrationPath(folder.path() + "/"), folder.path() + ".calibration.json");
}

TEST_F(CalibrationFileTest, WhatIsWrittenIsRead) {
  ASSERT_THAT(Write(all_), IsOk());
  const CalibrationOr read = ReadCalibration(path_, model_);
  ASSERT_THAT(read, IsOk());
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t head = 0; head < 2; ++head) {
      const LaneWeights& was = written_.lane(layer, head);
      const LaneWeights& is = (*read)->lane(layer, head);
      EXPECT_EQ(is.with_attention.bias, was.with_attention.bias);
      EXPECT_EQ(is.with_attention.weight, was.with_attention.weight);
      EXPECT_EQ(is.unseen.bias, was.unseen.bias);
      EXPECT_EQ(is.unseen.weight, was.unseen.weight);
    }
  }
}

TEST_F(CalibrationFileTest, FeaturesThatAreNotInTheFileWeighNothing) {
  ASSERT_THAT(Write({Feature::kAge}), IsOk());
  const CalibrationOr read = ReadCalibration(path_, model_);
  ASSERT_THAT(read, IsOk());
  const Features& weight = (*read)->lane(2, 1).with_attention.weight;
  EXPECT_THAT(weight, testing::ElementsAre(0, 0, 0, 0, written_.lane(2, 1).with_attention.weight[4]));
}

TEST_F(CalibrationFileTest, AFileThatIsNotThereIsNamed) {
  const CalibrationOr read = ReadCalibration("/nowhere/a.json", model_);
  ASSERT_THAT(read, IsRefusal(absl::StatusCode::kFailedPrecondition, "CALIBRATION_MISSING", "policy.calibrated"));
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("there is no a.json;"));
}

TEST_F(CalibrationFileTest, AnotherModelsFileIsForeign) {
  ASSERT_THAT(Write(all_), IsOk());
  ModelConfig other = model_;
  other.fingerprint = "ffeeddccbbaa9988";
  const CalibrationOr read = ReadCalibration(path_, other);
  ASSERT_THAT(read, IsRefusal(absl::StatusCode::kFailedPrecondition, "CALIBRATION_FOREIGN", "policy.calibrated"));
  const std::string name = std::filesystem::path(path_).filename();
  for (const std::string& named : {": " + name + " ", model_.fingerprint, other.fingerprint}) {
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(named));
  }
}

// One error with the file, the place and what was expected there.
TEST_F(CalibrationFileTest, ADamagedFileIsRefused) {
  ASSERT_THAT(Write(all_), IsOk());
  struct Case {
    std::string before, after, message;
  };
  const std::vector<Case> cases = {
      {"{", "[", "byte "},
      {whole_, "", "byte 1: expected JSON"},
      {whole_, "[]", "byte 1: expected an object, found []"},
      {"ebb calibration", "recipe", "format: expected \"ebb calibration\", found \"recipe\""},
      {"\"version\": 1", "\"version\": 2", "version: expected 1, found 2"},
      {"\"format\"", "\"formed\"", "format: expected \"ebb calibration\", found nothing"},
      {"\"00112233445566aa\"", "17", "model: expected a model's fingerprint, found 17"},
      {"\"layers\": 3", "\"layers\": 4", "layers: expected 3, found 4"},
      {"\"layers\": 3", "\"layers\": 1e999", "a number: expected one that a double can hold"},
      {"\"kv_heads\": 2", "\"kv_heads\": \"2\"", "kv_heads: expected 2, found \"2\""},
      {"\"features\"", "\"feature\"", "features: expected a list of some of key_length, key_likeness"},
      {"\"age\"", "\"weight\"", "features[0]: expected one of key_length, key_likeness"},
      {"\"age\"", "\"attention\"", "features[4]: expected each feature once, found attention again"},
      {"\"with_attention\": [", "\"with_attention\": [[1],",
       "with_attention: expected a row for each of 6 lanes, found 7"},
      {"\"unseen\": [\n  [", "\"unseen\": [\n  [1,", "unseen[0]: expected a bias and 5 weights, found [1"},
      {"\"unseen\": [\n  [", "\"unseen\": [\n  [null],[", "unseen: expected a row for each of 6 lanes, found 7"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    const absl::Status status = ReadWith(c.before, c.after);
    ASSERT_THAT(status, IsRefusal(absl::StatusCode::kDataLoss, "CALIBRATION_DAMAGED", ""));
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(path_ + ": "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
  const std::string first = whole_.substr(whole_.find("[", whole_.find("\"unseen\": [") + 11) + 1);
  const std::string number =
      first.substr(first.find_first_of("-0123456789"), first.find(',') - first.find_first_of("-0123456789"));
  std::string text = whole_;
  text.replace(text.find(number, text.find("\"unseen\"")), number.size(), "\"much\"");
  std::ofstream(path_) << text;
  EXPECT_THAT(std::string(ReadCalibration(path_, model_).status().message()),
              HasSubstr("unseen[0][0]: expected a finite number, found \"much\""));
}

}  // namespace
}  // namespace ebb
