// What an experiment has shown, as text: what may be said, and the intervals as bars.

#ifndef EBB_CLIENT_CLI_EXPERIMENT_TABLE_H_
#define EBB_CLIENT_CLI_EXPERIMENT_TABLE_H_

#include <cstddef>
#include <string>

#include "ebb/v1/experiment.pb.h"

namespace ebb::cli {

// "attention-mass-lost" of EXPERIMENT_METRIC_ATTENTION_MASS_LOST, and back; the latter UNSPECIFIED for what is none.
std::string MetricWord(v1::ExperimentMetric metric);
v1::ExperimentMetric MetricOf(const std::string& word);

// `columns` wide from -scale to scale: | at 0, o at the value, = from low to high. What is outside is cut off.
// REQUIRES: scale > 0, columns odd and at least 3.
std::string IntervalBar(double low, double value, double high, double scale, size_t columns);

// The decision in words, one sentence.
std::string DecisionSentence(const v1::Experiment& experiment);

// Name, state, arms and their policies: one line.
std::string ExperimentLine(const v1::Experiment& experiment);

// Everything, `columns` wide where that is enough.
std::string ExperimentPage(const v1::Experiment& experiment, size_t columns);

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_EXPERIMENT_TABLE_H_
