#include <cstdio>

#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

void Print(const v1::GetStatusResponse& status) {
  const auto& model = status.model();
  const auto& cache = status.cache();
  const auto& work = status.work();
  const uint64_t pages = cache.pages_total() == 0 ? 1 : cache.pages_total();
  std::printf("%s  ebbd %s, %s, up %llds, %s resident\n", Styled("1", "server ").c_str(), status.version().c_str(),
              v1::ServerState_Name(status.state()).substr(sizeof("SERVER_STATE_") - 1).c_str(),
              static_cast<long long>(status.uptime().seconds()),
              Bytes(static_cast<double>(work.resident_bytes())).c_str());
  std::printf("%s  %s (%s), %u layers, %u heads, %u KV heads of %u, context %u, weights %s, %u threads, %s\n",
              Styled("1", "model  ").c_str(), model.name().c_str(), model.architecture().c_str(), model.layers(),
              model.heads(), model.kv_heads(), model.head_dim(), model.context(),
              Bytes(static_cast<double>(model.weight_bytes())).c_str(), model.threads(), model.fingerprint().c_str());
  if (!model.gpu_products().empty()) {
    std::printf("%s  prompts by %s\n", Styled("1", "gpu    ").c_str(), model.gpu_products().c_str());
  }
  if (!model.draft_model().empty()) {
    std::printf("%s  %s\n", Styled("1", "drafts ").c_str(), model.draft_model().c_str());
  }
  std::printf("%s  %llu of %llu pages reserved (%.1f %%), %s live\n", Styled("1", "cache  ").c_str(),
              static_cast<unsigned long long>(cache.pages_reserved()),
              static_cast<unsigned long long>(cache.pages_total()),
              100.0 * static_cast<double>(cache.pages_reserved()) / static_cast<double>(pages),
              Bytes(static_cast<double>(cache.used_bytes())).c_str());
  std::printf("%s  %u sessions, %u running, %u queued; %llu steps, %llu tokens read, %llu written, %llu evicted\n",
              Styled("1", "work   ").c_str(), work.sessions(), work.requests_running(), work.requests_queued(),
              static_cast<unsigned long long>(work.steps()), static_cast<unsigned long long>(work.prompt_tokens()),
              static_cast<unsigned long long>(work.completion_tokens()),
              static_cast<unsigned long long>(work.evicted_tokens()));
}

}  // namespace

void AddStatus(Command app, Shell& shell) {
  const Command command = app.add_subcommand("status", "The server about itself: model, cache, work");
  command.footer(
      "Examples:\n"
      "  ebb status\n"
      "  ebb --addr 10.0.0.1:7700 status --json");
  command.callback([&shell] {
    client::Client client = shell.Connect();
    v1::GetStatusResponse status;
    if (!shell.Check(client.GetStatus(&status))) return;
    shell.json ? shell.PrintJson(status) : Print(status);
  });
}

}  // namespace ebb::cli
