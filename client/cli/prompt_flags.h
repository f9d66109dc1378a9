// Flags of sampling and stopping (--temperature, --seed, --max-tokens ...), shared by generate and chat.

#ifndef EBB_CLIENT_CLI_PROMPT_FLAGS_H_
#define EBB_CLIENT_CLI_PROMPT_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command_line/command_line.h"
#include "ebb/v1/sampling.pb.h"

namespace ebb::cli {

struct PromptFlags {
  float temperature = 0.7F;  // the program's default; the API's is the model's own distribution
  std::optional<uint32_t> top_k = {}, max_tokens = {}, logprobs = {};
  std::optional<float> top_p = {}, min_p = {}, typical_p = {}, repetition_penalty = {}, presence_penalty = {},
                       frequency_penalty = {};
  std::optional<uint64_t> seed = {};
  std::vector<std::string> stop = {};
  bool ignore_eos = false, ngram = false;
  std::string draft_model = {};

  void AddTo(Command command);
  v1::Sampling Sampling() const;
  v1::Stopping Stopping() const;
  v1::Speculation Speculation() const;
};

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_PROMPT_FLAGS_H_
