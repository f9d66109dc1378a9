#include "server/live_config.h"

#include "server/config.h"
#include "server/convert_tenant.h"

namespace ebb {
namespace {

ModelTable ModelsFrom(const config::v1::Config& config) {
  ModelTable models;
  for (const auto& [name, model] : config.models()) {
    models[name] = {.path = model.path(),
                    .calibration_path = model.calibration(),
                    .head_gates_path = model.head_gates(),
                    .threads = static_cast<int32_t>(model.threads()),
                    .arena_bytes = static_cast<int64_t>(model.arena()),
                    .accuracy = model.accuracy() == "exact" ? Accuracy::kExact : Accuracy::kFast,
                    .worker = DeviceKind(model.worker()),
                    .gpu_device = static_cast<int32_t>(model.gpu_device()),
                    .gpu_arena_bytes = static_cast<int64_t>(model.gpu_arena())};
  }
  return models;
}

LiveOptions WorkFrom(const config::v1::Config& config) {
  return {.ttft_target = ToDuration(config.scheduling().ttft_target()),
          .inter_token_target = ToDuration(config.scheduling().inter_token_target()),
          .measure_every = static_cast<int32_t>(config.quality().measure_every()),
          .shadow = {.share = config.quality().shadow_share(),
                     .tokens_max = static_cast<int32_t>(config.quality().shadow_tokens_max())},
          .sessions_max = static_cast<int32_t>(config.cache().sessions_max()),
          .watchers_max = static_cast<int32_t>(config.server().watchers_max()),
          .reader_patience = ToDuration(config.server().reader_patience()),
          .queue_max = static_cast<int32_t>(config.scheduling().queue_max()),
          .snapshot_every = static_cast<int64_t>(config.store().snapshot_every())};
}

}  // namespace

LiveConfig LiveFrom(const config::v1::Config& config) {
  return {.tenants = TenantsFrom(config),
          .models = ModelsFrom(config),
          .work = WorkFrom(config),
          .of_an_address = {.at_once = config.server().connections_per_address(),
                            .begun_a_minute = config.server().new_connections_per_address()},
          .log_level = ParseLogLevel(config.log().level()).value_or(LogLevel::kInfo),
          .drain_timeout = ToDuration(config.server().drain_timeout())};
}

std::string DeviceKind(const std::string& worker) { return worker == "cpu" ? "" : worker; }

}  // namespace ebb
