// docs/how-to/add-a-scorer.md: its row makes its scorer. The build takes both from the page.

#include <gmock/gmock.h>

#include "policies/fading.h"
#include "policies/registry.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

const ScorerRow kRows[] = {
#include "page/policies/registry.cc"
};

TEST(AddAScorerPage, ItsRowMakesItsScorer) {
  const ScorerRow& row = kRows[0];
  EXPECT_EQ(row.name, "fading");
  EXPECT_EQ(FindScorer(row.name), nullptr) << "the page shows a scorer that is not there yet";
  EXPECT_EQ(row.recent(64, 0, 1), 32);
  const auto scorer = row.make(ResolveParameters(row, {{"decay", 0.5}}).value());
  EXPECT_TRUE(scorer->needs().column_sums);
}

}  // namespace
}  // namespace ebb
