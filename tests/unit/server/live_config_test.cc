#include "server/live_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "server/config_keys.h"
#include "tests/support/another_value.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

bool SameTenants(const TenantTable& a, const TenantTable& b) {
  return SameLimits(a.unlisted, b.unlisted) && std::ranges::equal(a.listed, b.listed, [](const auto& x, const auto& y) {
           return x.first == y.first && SameLimits(x.second, y.second);
         });
}

bool Same(const LiveConfig& a, const LiveConfig& b) {
  return SameTenants(a.tenants, b.tenants) && a.models == b.models && a.work == b.work &&
         a.of_an_address == b.of_an_address && a.log_level == b.log_level && a.drain_timeout == b.drain_timeout;
}

TEST(LiveConfig, HoldsEachKeyThatARunningServerTakesAndNoOther) {
  config::v1::Config before = DefaultConfig();
  AddNamed("tenants", "acme", before);
  AddNamed("models", "acme", before);
  for (const ConfigKey& key : ConfigKeys()) {
    SCOPED_TRACE(key.Path("acme"));
    config::v1::Config after = before;
    const ConfigPlace place = {.key = &key, .name = key.is_named() ? "acme" : ""};
    ASSERT_THAT(SetConfigValue(place, AnotherValue(key), after), IsOk());
    EXPECT_EQ(Same(LiveFrom(before), LiveFrom(after)), !key.key.reload());
  }
}

}  // namespace
}  // namespace ebb
