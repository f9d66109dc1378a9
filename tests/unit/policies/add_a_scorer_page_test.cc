// docs/how-to/add-a-scorer.md: its row makes its scorer. The build takes both from the page.

#include <gmock/gmock.h>

#include "policies/registry.h"
#include "policies/tova.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

constexpr ScorerRow kRows[] = {
#include "page/policies/registry.cc"
};

TEST(AddAScorerPage, ItsRowMakesItsScorer) {
  const ScorerRow& row = kRows[0];
  EXPECT_EQ(row.name, "tova");
  EXPECT_EQ(row.recent(64, row.sinks(64), 1), 32);
  const auto scorer = row.make(ResolveParameters(row, {}).value());
  EXPECT_TRUE(scorer->needs().last_row);
}

}  // namespace
}  // namespace ebb
