#include "engine/model/head_gates_file.h"

#include <gmock/gmock.h>

#include <fstream>
#include <string>

#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HeadGatesFile : public testing::Test {
 protected:
  HeadGatesOr ReadText(const std::string& text) const {
    std::ofstream(path_) << text;
    return ReadHeadGates(path_, model_);
  }

  const ModelConfig model_ = [] {
    ModelConfig model;
    model.layers = 2;
    model.kv_heads = 2;
    model.fingerprint = "00000000000000aa";
    return model;
  }();
  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/head_gates_file_test.heads.json";
};

TEST_F(HeadGatesFile, LiesBesideTheModel) { EXPECT_EQ(HeadGatesPath("models/a.gguf"), "models/a.heads.json"); }

TEST_F(HeadGatesFile, IsReadAsItWasWritten) {
  ASSERT_THAT(WriteHeadGates(path_, model_, "a test", {0, 0.25, 0.125, 1}), IsOk());
  const HeadGatesOr gates = ReadHeadGates(path_, model_);
  ASSERT_THAT(gates, IsOk());
  EXPECT_THAT(**gates, ElementsAre(0, 0.25, 0.125, 1));
}

TEST_F(HeadGatesFile, IsNoFileOfAnotherModel) {
  ModelConfig other = model_;
  other.fingerprint = "00000000000000bb";
  ASSERT_THAT(WriteHeadGates(path_, other, "a test", {0, 0, 0, 0}), IsOk());
  const HeadGatesOr gates = ReadHeadGates(path_, model_);
  ASSERT_THAT(gates, IsRefusal(absl::StatusCode::kFailedPrecondition, "HEAD_GATES_FOREIGN", "policy.duo"));
  EXPECT_THAT(
      std::string(gates.status().message()),
      HasSubstr("policy.duo: head_gates_file_test.heads.json was made for the model 00000000000000bb, and this is "
                "00000000000000aa"));
}

TEST_F(HeadGatesFile, MayBeMissing) {
  const HeadGatesOr gates = ReadHeadGates(path_, model_);
  ASSERT_THAT(gates, IsRefusal(absl::StatusCode::kFailedPrecondition, "HEAD_GATES_MISSING", "policy.duo"));
  EXPECT_THAT(std::string(gates.status().message()), HasSubstr("there is no head_gates_file_test.heads.json;"));
}

TEST_F(HeadGatesFile, SaysWhereItIsDamaged) {
  const std::string head = R"({"format": "ebb head gates", "version": 1, "model": "00000000000000aa", "gates": )";
  struct Case {
    std::string text, where;
  };
  for (const auto& [text, where] :
       {Case{"", "byte 1: expected JSON"}, Case{"[1]", "byte 1: expected an object, found [1]"},
        Case{R"({"format": "gates"})", "format: expected \"ebb head gates\""},
        Case{R"({"format": "ebb head gates", "version": 2})", "version: expected 1"},
        Case{R"({"format": "ebb head gates", "version": 1, "model": 7})", "model: expected a model's fingerprint"},
        Case{head + "[[0, 1], [0, 1e999]]}", "a number: expected one that a double can hold"},
        Case{head + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}", "gates: expected a row for each"},
        Case{head + "[[0, 1]]}", "gates: expected a row for each of 2 layers"},
        Case{head + "[[0, 1], [0]]}", "gates[1]: expected 2 gates, found [0]"},
        Case{head + "[[0, 1], [0, 2]]}", "gates[1][1]: expected a number in [0, 1], found 2"},
        Case{head + "[[0, null], [0, 1]]}", "gates[0][1]: expected a number in [0, 1], found null"}}) {
    SCOPED_TRACE(text.substr(0, 100));
    const HeadGatesOr gates = ReadText(text);
    ASSERT_EQ(gates.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(gates.status().message()), HasSubstr(path_ + ": " + where));
  }
}

}  // namespace
}  // namespace ebb
