#include "server/device_metrics.h"

#include <cstddef>

namespace ebb {

DeviceMetrics::DeviceMetrics(MetricSet& set, const DeviceUse& use)
    : up_(set["ebb_gpu_up"].gauge()),
      weights_(set["ebb_gpu_memory_bytes"].gauge({"weights"})),
      cache_(set["ebb_gpu_memory_bytes"].gauge({"cache"})),
      cache_free_(set["ebb_gpu_memory_bytes"].gauge({"cache_free"})),
      of_sessions_(set["ebb_gpu_memory_bytes"].gauge({"sessions"})),
      of_steps_(set["ebb_gpu_memory_bytes"].gauge({"steps"})),
      sessions_(set["ebb_gpu_sessions"].gauge()),
      in_(set["ebb_gpu_cache_moves_total"].counter({"in"})),
      out_(set["ebb_gpu_cache_moves_total"].counter({"out"})),
      prefill_{set["ebb_gpu_steps_total"].counter({"prefill"}), set["ebb_gpu_step_seconds_total"].counter({"prefill"})},
      decode_{set["ebb_gpu_steps_total"].counter({"decode"}), set["ebb_gpu_step_seconds_total"].counter({"decode"})},
      halved_(set["ebb_gpu_short_steps_total"].counter({"halved"})),
      parted_(set["ebb_gpu_short_steps_total"].counter({"parted"})),
      unpinned_(set["ebb_gpu_short_steps_total"].counter({"unpinned"})),
      unrecorded_(set["ebb_gpu_short_steps_total"].counter({"unrecorded"})),
      unfit_(set["ebb_gpu_short_steps_total"].counter({"cpu"})),
      replays_(set["ebb_gpu_replays_total"].counter()),
      decode_bytes_(set["ebb_gpu_decode_bytes_total"].counter()),
      rows_kept_(set["ebb_gpu_logits_rows_total"].counter({"kept"})),
      rows_copied_(set["ebb_gpu_logits_rows_total"].counter({"copied"})),
      rows_fetched_(set["ebb_gpu_logits_rows_total"].counter({"fetched"})) {
  for (size_t i = 0; i < kWhyHost.size(); ++i) {
    on_host_[i] = &set["ebb_gpu_sessions_on_cpu_total"].counter({kWhyHost[i]});
  }
  set["ebb_gpu_info"].gauge({use.name, use.description}).Set(1);
  Set(use);
}

void DeviceMetrics::Set(const DeviceUse& use) {
  const auto page_bytes = static_cast<double>(use.page_bytes);
  up_.Set(use.failed ? 0 : 1);
  weights_.Set(static_cast<double>(use.weight_bytes));
  cache_.Set(static_cast<double>(use.pages_total - use.pages_free) * page_bytes);
  cache_free_.Set(static_cast<double>(use.pages_free) * page_bytes);
  of_sessions_.Set(static_cast<double>(use.session_bytes));
  of_steps_.Set(static_cast<double>(use.working_bytes));
  sessions_.Set(static_cast<double>(use.sessions));
  in_.SetTotal(static_cast<double>(use.brought));
  out_.SetTotal(static_cast<double>(use.fetched));
  prefill_.steps.SetTotal(static_cast<double>(use.prefill_steps));
  prefill_.seconds.SetTotal(use.prefill_seconds);
  decode_.steps.SetTotal(static_cast<double>(use.decode_steps));
  decode_.seconds.SetTotal(use.decode_seconds);
  halved_.SetTotal(static_cast<double>(use.short_steps.halved));
  parted_.SetTotal(static_cast<double>(use.short_steps.parted));
  unpinned_.SetTotal(static_cast<double>(use.short_steps.unpinned));
  unrecorded_.SetTotal(static_cast<double>(use.short_steps.unrecorded));
  unfit_.SetTotal(static_cast<double>(use.short_steps.unfit));
  replays_.SetTotal(static_cast<double>(use.replays));
  decode_bytes_.SetTotal(static_cast<double>(use.decode_bytes));
  rows_kept_.SetTotal(static_cast<double>(use.rows_kept));
  rows_copied_.SetTotal(static_cast<double>(use.rows_copied));
  rows_fetched_.SetTotal(static_cast<double>(use.rows_fetched));
}

void DeviceMetrics::CountOnHost(WhyHost why) {
  if (why != WhyHost::kNone) on_host_[static_cast<size_t>(why) - 1]->Add();
}

}  // namespace ebb
