// Flags that describe a policy (--policy h2o --budget 256 ...), shared by every command that opens a session.

#ifndef EBB_CLIENT_CLI_POLICY_FLAGS_H_
#define EBB_CLIENT_CLI_POLICY_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command_line/command_line.h"
#include "ebb/v1/policy.pb.h"

namespace ebb::cli {

struct PolicyFlags {
  // From one word, as ebb-lab takes it: NAME[:KEY=VALUE]...[+MODIFIER][@ALLOCATION[:KEY=VALUE]...]. KEY is one of the
  // scorer's parameters, or budget, sinks, recent, overflow, slack or max_drop. Throws UsageError naming
  // `flag`.
  static PolicyFlags FromWord(const std::string& flag, const std::string& word);

  std::string scorer = {};
  std::optional<uint32_t> budget = {}, overflow = {}, slack = {}, max_drop = {}, sinks = {}, recent = {};
  std::optional<double> budget_ratio = {};
  std::optional<uint32_t> every_n = {}, grow_max = {};
  std::string positions = {}, kv_type = {}, rope_cache = {}, schedule = {}, then = {}, scope = {}, reduction = {},
              modifier = {}, allocation = {};
  std::vector<std::string> parameters = {};             // name=value, of the scorer
  std::vector<std::string> allocation_parameters = {};  // name=value, of the allocation

  // `group`: the heading in help.
  void AddTo(Command command, const std::string& group = "Policy of a new session");
  // Any of the flags was given.
  bool given() const;
  // Throws UsageError where a parameter is none of the scorer's or has a value of another kind.
  v1::PolicySpec Build() const;
};

// Names of the scorers that this client knows, in the order of their field numbers.
std::vector<std::string> ScorerNames();

// The name of the scorer that a spec sets; empty when none is.
std::string ScorerOf(const v1::PolicySpec& spec);

// Selects a scorer by name, clearing the one that was set. REQUIRES: one of ScorerNames().
void SetScorer(v1::PolicySpec& spec, const std::string& name);

// "snapkv kernel=7 window=32, budget 256, recent 32, once after the prompt, then grow, ORIGINAL": what a reader would
// ask first, and what is not everybody's default.
std::string Summary(const v1::PolicySpec& spec);

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_POLICY_FLAGS_H_
