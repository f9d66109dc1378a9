#include "client/cli/prompt_flags.h"

namespace ebb::cli {

void PromptFlags::AddTo(Command command) {
  const std::string group = "Sampling";
  command.add_option("--temperature", temperature, "0 is greedy").capture_default_str().group(group);
  command.add_option("--max-tokens", max_tokens, "Tokens to generate (default 256)").group(group);
  command.add_option("--seed", seed, "Same seed, same session: same tokens").group(group);
  command.add_option("--top-k", top_k, "Keep the k most likely tokens").group(group);
  command.add_option("--top-p", top_p, "Nucleus, in (0, 1]").group(group);
  command.add_option("--min-p", min_p, "Keep tokens at least this likely against the best").group(group);
  command.add_option("--typical-p", typical_p, "Locally typical sampling, in (0, 1]").group(group);
  command.add_option("--repetition-penalty", repetition_penalty, "Against tokens seen lately").group(group);
  command.add_option("--presence-penalty", presence_penalty, "In [-2, 2]").group(group);
  command.add_option("--frequency-penalty", frequency_penalty, "In [-2, 2]").group(group);
  command.add_option("--logprobs", logprobs, "Report log-probabilities and this many alternatives (with --json)")
      .group(group);
  command.add_option("--stop", stop, "Text that ends the answer; may be given several times").group(group);
  command.add_flag("--ignore-eos", ignore_eos, "Go on past the model's end tokens").group(group);
  const Flag lookup =
      command.add_flag("--ngram", ngram, "Draft what followed the last tokens before; tokens stay the same")
          .group(group);
  command
      .add_option("--draft-model", draft_model,
                  "Have the server's draft model (ebbd --model.draft) draft; tokens stay the same")
      .excludes(lookup)
      .group(group);
}

v1::Sampling PromptFlags::Sampling() const {
  v1::Sampling sampling;
  sampling.set_temperature(temperature);
  if (top_k) sampling.set_top_k(*top_k);
  if (top_p) sampling.set_top_p(*top_p);
  if (min_p) sampling.set_min_p(*min_p);
  if (typical_p) sampling.set_typical_p(*typical_p);
  if (repetition_penalty) sampling.set_repetition_penalty(*repetition_penalty);
  if (presence_penalty) sampling.set_presence_penalty(*presence_penalty);
  if (frequency_penalty) sampling.set_frequency_penalty(*frequency_penalty);
  if (seed) sampling.set_seed(*seed);
  return sampling;
}

v1::Stopping PromptFlags::Stopping() const {
  v1::Stopping stopping;
  if (max_tokens) stopping.set_max_tokens(*max_tokens);
  if (logprobs) stopping.set_logprobs(*logprobs);
  for (const std::string& text : stop) stopping.add_stop(text);
  stopping.set_ignore_eos(ignore_eos);
  return stopping;
}

v1::Speculation PromptFlags::Speculation() const {
  v1::Speculation speculation;
  speculation.set_ngram(ngram);
  speculation.set_draft_model(draft_model);
  return speculation;
}

}  // namespace ebb::cli
