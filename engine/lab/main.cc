// `ebb-lab`: the engine without a server. Data goes to stdout, messages to stderr.

#include <cstdio>
#include <string>
#include <vector>

#include "command_line/command_line.h"
#include "engine/lab/lab.h"

namespace {

constexpr void (*kCommands[])(ebb::Command, ebb::lab::Lab&) = {
    ebb::lab::AddInfo,      ebb::lab::AddLogits,  ebb::lab::AddPpl,     ebb::lab::AddAgree,  ebb::lab::AddRecall,
    ebb::lab::AddOuterr,    ebb::lab::AddCompare, ebb::lab::AddPasskey, ebb::lab::AddLazy,   ebb::lab::AddQueries,
    ebb::lab::AddRotation,  ebb::lab::AddHeads,   ebb::lab::AddCases,   ebb::lab::AddGolden, ebb::lab::AddTokenize,
    ebb::lab::AddCalibrate, ebb::lab::AddConvert,
};

}  // namespace

int main(int argc, char** argv) {
  ebb::Program app("ebb-lab: look into a model, measure a policy, check the engine, all without a server.\n",
                   "ebb-lab");
  ebb::lab::Lab lab;
  app.add_flag("--json", lab.json, "Print JSON, one object per line");
  app.footer(
      "Examples:\n"
      "  ebb-lab info models/ebb-tiny-q8_0.gguf\n"
      "  ebb-lab ppl models/ebb-tiny-q8_0.gguf models/text/persuasion.txt --policy h2o --budget 256\n"
      "  ebb-lab recall models/ebb-tiny-q8_0.gguf models/ebb-tiny.cases.json --policies h2o,h2o+caote --budgets 128\n"
      "  ebb-lab convert models/ebb-tiny-q8_0.gguf -o ebb-tiny-q4_0.gguf --type q4_0\n"
      "  ebb-lab golden tests/golden/data\n"
      "Exit codes: 0 done, 1 failed or did not match, 2 usage.");
  app.fallthrough();
  app.require_subcommand(1);
  for (const auto add : kCommands) add(app, lab);
  const auto stopped = app.parse({argv + 1, argv + argc});
  if (!stopped) return lab.exit_code;
  const std::vector<std::string>& rest = stopped->unread;
  if (!stopped->commands.empty() && !rest.empty() && !rest.front().starts_with('-')) {
    std::fprintf(stderr, "ebb-lab: there is no command '%s', see --help\n", rest.front().c_str());
    return ebb::lab::kUsage;
  }
  if (stopped->asked) {
    std::fputs(stopped->text.c_str(), stdout);
    return ebb::lab::kDone;
  }
  std::fprintf(stderr, "%s\nRun with --help for more information.\n", stopped->text.c_str());
  return ebb::lab::kUsage;
}
