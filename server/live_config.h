// What of its configuration a running server takes: the keys that the schema marks with `reload`, and no others. It is
// made the same way when the server starts and when its file has changed.

#ifndef EBB_SERVER_LIVE_CONFIG_H_
#define EBB_SERVER_LIVE_CONFIG_H_

#include <string>

#include "absl/time/time.h"
#include "ebb/config/v1/config.pb.h"
#include "server/address_limit.h"
#include "server/dispatcher.h"
#include "server/log.h"
#include "server/server.h"
#include "server/tenants.h"

namespace ebb {

struct LiveConfig {
  TenantTable tenants = {};
  ModelTable models = {};
  LiveOptions work = {};
  ConnectionLimits of_an_address = {};
  LogLevel log_level = LogLevel::kInfo;
  absl::Duration drain_timeout = {};
};

// REQUIRES: LoadConfig made it, so that all is set and in range.
LiveConfig LiveFrom(const config::v1::Config& config);

// What DeviceOptions calls a worker of the configuration.
std::string DeviceKind(const std::string& worker);

}  // namespace ebb

#endif  // EBB_SERVER_LIVE_CONFIG_H_
