// `ebb bench decode`: one session writes; the weights stream past.

#include <memory>

#include "bench/step_run.h"

namespace ebb::bench {

void AddDecode(Command bench, cli::Shell& shell) {
  const Command command = bench.add_subcommand("decode", "Tokens per second of one session");
  const auto common = std::make_shared<Common>();
  const auto options = std::make_shared<StepOptions>();
  AddStepOptions(command, *options);
  AddCommonOptions(command, *common);
  command.footer(
      "roofline: bytes of weights, as the file has them, and of K and V, by the bandwidth measured in the same\n"
      "round; or operations of the matrices by their own ceiling, where that is longer. share: roofline by the time\n"
      "of a step. A model that fits the last cache may be read faster than memory. Steps give logits and do not\n"
      "sample.\n"
      "Example:\n  ebb bench decode models/ebb-tiny-q8_0.gguf --policy h2o --compare full");
  command.callback([&shell, common, options] { Check(shell, RunSteps(shell, "decode", *common, *options)); });
}

}  // namespace ebb::bench
