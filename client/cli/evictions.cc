#include <cstdio>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

struct EvictionsFlags {
  std::string id = {}, model = {};
  uint32_t every = 1;
  uint64_t count = 0;
  bool victims = false;
};

const char* CauseName(v1::EvictionCause cause) {
  switch (cause) {
    case v1::EVICTION_CAUSE_DECODE:
      return "decode";
    case v1::EVICTION_CAUSE_PREFILL:
      return "prefill";
    case v1::EVICTION_CAUSE_PROMPT_END:
      return "prompt end";
    case v1::EVICTION_CAUSE_EVICT:
      return "Evict";
    case v1::EVICTION_CAUSE_SET_POLICY:
      return "SetPolicy";
    default:
      return "?";
  }
}

void Print(const v1::Eviction& eviction) {
  const absl::Time time = absl::FromUnixSeconds(eviction.time().seconds()) + absl::Nanoseconds(eviction.time().nanos());
  std::string line = absl::StrFormat("%s  %s  %s  %-10s  %6d tokens  %d -> %d per lane, %d slots",
                                     absl::FormatTime("%H:%M:%E3S", time, absl::LocalTimeZone()), eviction.session(),
                                     eviction.policy(), CauseName(eviction.cause()), eviction.session_tokens(),
                                     eviction.length_before(), eviction.length_after(), eviction.slots_evicted());
  if (eviction.has_attention_mass()) {
    line += absl::StrFormat("  %.4f of the attention, output error %.4f", eviction.attention_mass(),
                            eviction.output_error());
  }
  std::printf("%s\n", line.c_str());
}

void Watch(Shell& shell, const EvictionsFlags& flags) {
  client::Client client = shell.Connect();
  v1::WatchEvictionsRequest request;
  if (!flags.id.empty()) request.set_session(SessionName(flags.id));
  request.set_model(flags.model);
  request.set_every(flags.every);
  request.set_list_victims(flags.victims);
  client::Cancellation cancellation;
  const InterruptGuard guard(cancellation);
  uint64_t seen = 0;
  bool enough = false;
  const grpc::Status status = client.WatchEvictions(
      request,
      [&](const v1::WatchEvictionsResponse& message) {
        if (enough) return;  // what was on its way
        if (shell.json) {
          shell.PrintJson(message);
        } else {
          if (message.events_lost() > 0) {
            std::fprintf(stderr, "%llu evictions lost: they came faster than they were read\n",
                         static_cast<unsigned long long>(message.events_lost()));
          }
          if (message.has_eviction()) Print(message.eviction());
        }
        std::fflush(stdout);
        enough = message.has_eviction() && ++seen == flags.count;
        if (enough) cancellation.Cancel();
      },
      &cancellation);
  if (enough) return;
  if (guard.interrupted()) {
    shell.exit_code = kInterrupted;
  } else {
    shell.Check(status);
  }
}

}  // namespace

void AddEvictions(Command app, Shell& shell) {
  const Command command = app.add_subcommand("evictions", "What leaves the caches, while it leaves");
  auto flags = std::make_shared<EvictionsFlags>();
  const Flag session =
      command.add_option("--session", flags->id, "Only this session; default: all of the tenant's of a model");
  AddModel(command, flags->model, "Whose sessions").excludes(session);
  command.add_option("--every", flags->every, "Of each session's steps that evict, one in so many")
      .capture_default_str();
  command.add_option("--count", flags->count, "End after so many evictions; default: go on");
  command.add_flag("--victims", flags->victims, "Also who left, lane by lane; shown with --json");
  command.footer(
      "Ends with Ctrl-C, with --count, or when the session is deleted.\n"
      "Examples:\n"
      "  ebb evictions\n"
      "  ebb evictions --session tour --every 16 --json");
  command.callback([&shell, flags] { Watch(shell, *flags); });
}

}  // namespace ebb::cli
