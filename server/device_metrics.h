// What a GPU that computes sessions shows of itself, as metrics.

#ifndef EBB_SERVER_DEVICE_METRICS_H_
#define EBB_SERVER_DEVICE_METRICS_H_

#include "engine/device_use.h"
#include "server/metric_family.h"

namespace ebb {

class DeviceMetrics {
 public:
  // `set` outlives it.
  DeviceMetrics(MetricSet& set, const DeviceUse& use);

  // One thread at a time.
  void Set(const DeviceUse& use);

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
  Counter& unfit_;
  Counter& replays_;
  Counter& decode_bytes_;
  Counter& rows_kept_;
  Counter& rows_copied_;
  Counter& rows_fetched_;
};

}  // namespace ebb

#endif  // EBB_SERVER_DEVICE_METRICS_H_
