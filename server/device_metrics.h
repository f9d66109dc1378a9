// What a GPU that computes sessions shows of itself, as metrics.

#ifndef EBB_SERVER_DEVICE_METRICS_H_
#define EBB_SERVER_DEVICE_METRICS_H_

#include <array>

#include "engine/device_use.h"
#include "engine/placement.h"
#include "server/metric_family.h"

namespace ebb {

class DeviceMetrics {
 public:
  // `set` outlives it.
  DeviceMetrics(MetricSet& set, const DeviceUse& use);

  // One thread at a time.
  void Set(const DeviceUse& use);
  // A session that the host computes from now on; kNone counts nowhere.
  void CountOnHost(WhyHost why);

 private:
  struct Phase {
    Counter& steps;
    Counter& seconds;
  };
  Gauge& up_;
  Gauge& weights_;
  Gauge& cache_;
  Gauge& cache_free_;
  Gauge& of_sessions_;
  Gauge& of_steps_;
  Gauge& sessions_;
  Counter& in_;
  Counter& out_;
  Phase prefill_;
  Phase decode_;
  Counter& halved_;
  Counter& parted_;
  Counter& unpinned_;
  Counter& unrecorded_;
  Counter& unfit_;
  Counter& replays_;
  Counter& decode_bytes_;
  Counter& rows_kept_;
  Counter& rows_copied_;
  Counter& rows_fetched_;
  std::array<Counter*, kWhyHost.size()> on_host_ = {};
};

}  // namespace ebb

#endif  // EBB_SERVER_DEVICE_METRICS_H_
