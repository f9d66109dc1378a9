// Flags that describe a policy (--policy h2o --budget 256 ...), shared by every command that opens a session.

#ifndef EBB_CLIENT_CLI_POLICY_FLAGS_H_
#define EBB_CLIENT_CLI_POLICY_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ebb/v1/policy.pb.h"

namespace ebb::cli {

struct PolicyFlags {
  std::string scorer = {};
  std::optional<uint32_t> budget = {}, overflow = {}, slack = {}, max_drop = {}, sinks = {}, recent = {};
  std::optional<double> budget_ratio = {};
  std::string positions = {}, kv_type = {}, rope_cache = {};

  void AddTo(CLI::App& command);
  // Any of the flags was given.
  bool given() const;
  v1::PolicySpec Build() const;
};

// Names of the scorers that this client knows, in the order of their field numbers.
std::vector<std::string> ScorerNames();

// The name of the scorer that a spec sets; empty when none is.
std::string ScorerOf(const v1::PolicySpec& spec);

// Selects a scorer by name, clearing the one that was set. REQUIRES: one of ScorerNames().
void SetScorer(v1::PolicySpec& spec, const std::string& name);

// "h2o, budget 256, recent 128, ORIGINAL".
std::string Summary(const v1::PolicySpec& spec);

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_POLICY_FLAGS_H_
