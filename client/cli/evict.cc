#include <cstdio>
#include <vector>

#include "client/cli/shell.h"

namespace ebb::cli {

void AddEvict(Command app, Shell& shell) {
  const Command command = app.add_subcommand("evict", "Evict tokens of a session now");
  struct Flags {
    std::string id, scorer;
    std::vector<uint64_t> range;
    std::optional<uint32_t> keep;
    std::optional<uint64_t> older_than;
    bool dry_run = false;
  };
  auto flags = std::make_shared<Flags>();
  command.add_option("id", flags->id, "Session").required();
  const Command what = command.add_option_group("what", "Exactly one of");
  what.add_option("--range", flags->range, "Tokens START END of the log, END excluded").expected(2);
  const Flag keep = what.add_option("--keep", flags->keep, "Prune every lane to this many tokens");
  what.add_option("--older-than", flags->older_than, "Tokens older than this many tokens");
  what.require_option(1);
  command.add_option("--scorer", flags->scorer, "Whose scores decide with --keep; default: the session's own")
      .needs(keep);
  command.add_flag("--dry-run", flags->dry_run, "Say what would leave, change nothing");
  command.footer(
      "Exact slots per lane can be named through the API (EvictRequest.slots).\n"
      "Examples:\n"
      "  ebb evict tour --range 10 40\n"
      "  ebb evict tour --keep 128 --scorer h2o --dry-run");
  command.callback([&shell, flags] {
    client::Client client = shell.Connect();
    v1::EvictRequest request;
    request.set_session(SessionName(flags->id));
    if (!flags->range.empty()) {
      request.mutable_range()->set_start(flags->range[0]);
      request.mutable_range()->set_end(flags->range[1]);
    } else if (flags->keep) {
      request.mutable_keep()->set_count(*flags->keep);
      request.mutable_keep()->set_scorer(flags->scorer);
    } else {
      request.set_older_than(*flags->older_than);
    }
    request.set_dry_run(flags->dry_run);
    v1::EvictResponse response;
    if (!shell.Check(client.Evict(request, &response))) return;
    if (shell.json) {
      shell.PrintJson(response);
    } else {
      std::printf("%s%u -> %u tokens per lane, %llu slots (%s), %.4f of the attention, output error %.4f\n",
                  flags->dry_run ? "would evict: " : "evicted: ", response.length_before(), response.length_after(),
                  static_cast<unsigned long long>(response.slots_evicted()),
                  Bytes(static_cast<double>(response.bytes_evicted())).c_str(), response.attention_mass(),
                  response.output_error());
    }
  });
}

}  // namespace ebb::cli
