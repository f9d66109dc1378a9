// `ebb bench batch`: sessions write together; a step reads the weights once for all.

#include <memory>

#include "bench/step_run.h"

namespace ebb::bench {

void AddBatch(Command bench, cli::Shell& shell) {
  const Command command = bench.add_subcommand("batch", "Tokens per second of many sessions in one step");
  const auto common = std::make_shared<Common>();
  const auto options = std::make_shared<StepOptions>();
  options->sessions = {1, 2, 4, 8, 16, 32};
  AddStepOptions(command, *options);
  command.add_option("--sessions", options->sessions, "How many, with commas")
      .delimiter(',')
      .range(1, 512)
      .default_str("1,2,4,8,16,32");
  AddCommonOptions(command, *common);
  command.footer(
      "roofline: the longer of the bytes of weights and of all sessions' K and V by the bandwidth measured in the\n"
      "same round, and of the operations of the matrices by the ceiling of their kind (`ebb bench ceilings`); what\n"
      "attention computes is not counted. share: roofline by the time of a step. With --compare full: the same\n"
      "sessions beside ones that keep everything, at some depths and, between them in straight lines, over all of\n"
      "it. With --compare shift: beside the same sessions in a cache that keeps its tokens in order, in which all\n"
      "behind the one that leaves (with streaming the first behind the sinks, else any) move down by one, in each\n"
      "lane at every step, while the lane is in the core's cache: a shift costs its bytes and nothing else.\n"
      "Example:\n  ebb bench batch models/ebb-tiny-q8_0.gguf --sessions 1,8,64");
  command.callback([&shell, common, options] { Check(shell, RunSteps(shell, "batch", *common, *options)); });
}

}  // namespace ebb::bench
