// What experiments that run have shown so far, as gauges of the metrics page: the numbers of GetExperiment, for
// dashboards and alerts.
//
// They are worked out at a scrape and kept nowhere, so an experiment that stops is gone from the next page. At most
// Experiments::kRunningMax run, of eight arms and kTrialMetrics metrics each, which bounds the series.

#ifndef EBB_SERVER_EXPERIMENT_METRICS_H_
#define EBB_SERVER_EXPERIMENT_METRICS_H_

#include <string>
#include <vector>

#include "server/experiments/experiments.h"

namespace ebb {

// Prometheus' text format, by the rows of MetricTable() that begin with ebb_experiment_; empty if none runs. Any
// thread.
std::string ExperimentMetrics(const std::vector<ExperimentView>& views);

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENT_METRICS_H_
