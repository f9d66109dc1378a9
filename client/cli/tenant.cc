#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "client/cli/policy_flags.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

// `tenants/{id}`, whatever of the two the user typed.
std::string TenantName(const std::string& typed) { return typed.starts_with("tenants/") ? typed : "tenants/" + typed; }

const std::map<std::string, v1::TenantPriority> kPriorities = {
    {"high", v1::TENANT_PRIORITY_HIGH}, {"normal", v1::TENANT_PRIORITY_NORMAL}, {"low", v1::TENANT_PRIORITY_LOW}};

std::string PriorityWord(v1::TenantPriority priority) {
  for (const auto& [word, value] : kPriorities) {
    if (value == priority) return word;
  }
  return "?";
}

uint64_t UsedOf(const v1::Tenant& tenant, const std::string& quota) {
  for (const v1::TenantUse& use : tenant.use()) {
    if (use.quota() == quota) return use.used();
  }
  return 0;
}

// "3/200", or "3" where there is no limit.
std::string OfLimit(const v1::Tenant& tenant, const std::string& quota, uint64_t limit) {
  const std::string used = std::to_string(UsedOf(tenant, quota));
  return limit == 0 ? used : used + "/" + std::to_string(limit);
}

std::string BytesOfLimit(const v1::Tenant& tenant) {
  const std::string used = Bytes(static_cast<double>(UsedOf(tenant, "cache_max")));
  return tenant.cache_max() == 0 ? used : used + "/" + Bytes(static_cast<double>(tenant.cache_max()));
}

void PrintTenantsHeader() {
  std::printf("%s\n", Styled("1",
                             "TENANT           WEIGHT  PRIORITY  SESSIONS    CALLS       TOKENS/MIN           CACHE"
                             "                POLICY")
                          .c_str());
}

void PrintRow(const v1::Tenant& tenant) {
  std::printf("%-16s %6u  %-8s  %-11s %-11s %-20s %-20s %s%s\n", tenant.name().substr(sizeof("tenants/") - 1).c_str(),
              tenant.weight(), PriorityWord(tenant.priority()).c_str(),
              OfLimit(tenant, "sessions_max", tenant.sessions_max()).c_str(),
              OfLimit(tenant, "calls_max", tenant.calls_max()).c_str(),
              OfLimit(tenant, "tokens_per_minute", tenant.tokens_per_minute()).c_str(), BytesOfLimit(tenant).c_str(),
              tenant.has_policy() ? Summary(tenant.policy()).c_str() : "-",
              tenant.configured() ? "" : "  (not configured)");
}

void ListTenants(Shell& shell) {
  client::Client client = shell.Connect();
  v1::ListTenantsRequest request;
  bool first = true;
  do {
    v1::ListTenantsResponse response;
    if (!shell.Check(client.ListTenants(request, &response))) return;
    for (const v1::Tenant& tenant : response.tenants()) {
      if (first && !shell.json) PrintTenantsHeader();
      first = false;
      shell.json ? shell.PrintJson(tenant) : PrintRow(tenant);
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  if (first && !shell.json) std::printf("no tenants\n");
}

struct TenantFlags {
  std::string name = {}, priority = {}, policy = {};
  std::optional<uint32_t> weight, sessions_max, forks_max, calls_max, watchers_max, tokens_per_minute;
  std::optional<uint64_t> cache_max, snapshot_size_max;

  v1::Tenant Build() const {
    v1::Tenant tenant;
    tenant.set_name(TenantName(name));
    if (weight) tenant.set_weight(*weight);
    if (!priority.empty()) tenant.set_priority(kPriorities.at(priority));
    if (sessions_max) tenant.set_sessions_max(*sessions_max);
    if (forks_max) tenant.set_forks_max(*forks_max);
    if (calls_max) tenant.set_calls_max(*calls_max);
    if (watchers_max) tenant.set_watchers_max(*watchers_max);
    if (tokens_per_minute) tenant.set_tokens_per_minute(*tokens_per_minute);
    if (cache_max) tenant.set_cache_max(*cache_max);
    if (snapshot_size_max) tenant.set_snapshot_size_max(*snapshot_size_max);
    if (policy == "none") {
      tenant.mutable_policy();
    } else if (!policy.empty()) {
      *tenant.mutable_policy() = PolicyFlags::FromWord("--policy", policy).Build();
    }
    return tenant;
  }
};

void AddSet(Command parent, Shell& shell) {
  const Command command = parent.add_subcommand("set", "Give a tenant other settings, until the server ends");
  auto flags = std::make_shared<TenantFlags>();
  command.add_option("name", flags->name, "Its name; one that the server's configuration does not have").required();
  command.add_option("--weight", flags->weight, "Share against others of its priority, from 1 to 1000");
  command.add_option("--priority", flags->priority, "Who goes first, whatever the weights").one_of(kPriorities);
  command.add_option("--sessions-max", flags->sessions_max, "Open sessions; 0, here and below: no limit");
  command.add_option("--forks-max", flags->forks_max, "Open branches");
  command.add_option("--calls-max", flags->calls_max, "Calls that run the model or wait for it");
  command.add_option("--watchers-max", flags->watchers_max, "WatchEvictions calls");
  command.add_option("--tokens-per-minute", flags->tokens_per_minute, "Tokens of prompts and answers");
  command.add_option("--cache-max", flags->cache_max, "Memory for K and V: 1048576, 512MiB, 2GiB").bytes();
  command.add_option("--snapshot-size-max", flags->snapshot_size_max, "Saved sessions, in bytes, likewise").bytes();
  command.add_option("--policy", flags->policy,
                     "Of sessions that name none, as `ebb policy try` takes policies: h2o:budget=256; or none");
  command.footer(
      "Example:\n  ebb tenant set batch --priority low --tokens-per-minute 100000\n"
      "What is to outlive the server belongs into its configuration, where `ebb reload` takes it from.");
  command.callback([&shell, flags] {
    v1::SetTenantRequest request;
    *request.mutable_tenant() = flags->Build();
    client::Client client = shell.Connect();
    v1::Tenant tenant;
    if (!shell.Check(client.SetTenant(request, &tenant))) return;
    if (shell.json) return shell.PrintJson(tenant);
    std::printf("%s has weight %u and priority %s until the server ends\n", tenant.name().c_str(), tenant.weight(),
                PriorityWord(tenant.priority()).c_str());
  });
}

}  // namespace

void AddTenant(Command app, Shell& shell) {
  const Command command = app.add_subcommand("tenant", "What tenants may have, and what they have");
  AddSet(command, shell);
  const Command list = command.add_subcommand("list", "Those that have settings of their own, or something in use");
  list.footer("Example:\n  ebb tenant list --json");
  list.callback([&shell] { ListTenants(shell); });
  command.footer(
      "Examples:\n"
      "  ebb tenant list\n"
      "  ebb tenant set batch --weight 3");
  command.require_subcommand(1);
}

}  // namespace ebb::cli
