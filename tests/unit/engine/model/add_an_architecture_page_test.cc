// The row of docs/how-to/add-an-architecture.md is in the table that this test is built with.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/model/architecture_table.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_engine.h"

namespace ebb {
namespace {

// A file of llama's as one of the other family: every name begins with five other letters.
void RenameTo(const std::string& family, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  ASSERT_EQ(family.size(), 5U);
  for (size_t at = bytes.find("llama"); at != std::string::npos; at = bytes.find("llama", at)) {
    bytes.replace(at, family.size(), family);
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(AddAnArchitecturePage, ItsRowReadsAFileAndTurnsHalves) {
  const TinyModelFile llama({});
  const TinyModelFile fable({});
  RenameTo("fable", fable.path());
  ASSERT_NE(FindArchitecture("fable"), nullptr);
  ASSERT_NE(FindArchitecture("llama"), nullptr);
  const auto neighbours = OpenTestEngine(llama.path());
  const auto halves = OpenTestEngine(fable.path());
  EXPECT_EQ(halves->config().architecture, "fable");
  EXPECT_EQ(halves->config().rope_pairs, RopePairs::kHalves);
  const auto one = OpenTestSession(*neighbours, {.scorer = "full"});
  const auto other = OpenTestSession(*halves, {.scorer = "full"});
  const std::vector<int32_t> tokens = RandomTokens(1, 8, halves->config().vocab);
  // A token alone is attended whatever it is turned by.
  EXPECT_EQ(Step(*neighbours, *one, std::span(tokens).first(1)), Step(*halves, *other, std::span(tokens).first(1)));
  EXPECT_NE(Step(*neighbours, *one, std::span(tokens).last(7)), Step(*halves, *other, std::span(tokens).last(7)));
}

}  // namespace
}  // namespace ebb
