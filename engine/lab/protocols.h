// The three protocols of ebb-tiny's card, for any policy: who recalls a passkey after eviction.
//
//   prefill  the prompt but for its last token on the full cache, one eviction to the budget, then the last token and
//            the answer under the budget
//   stream   the budget holds from the first block on; nobody knows the question while the facts go by
//   again    streamed; all facts lie in the first third, the question is asked and answered there, and asked again
//
// Blocks are appended and attended first, then evicted; so is every decoded token. Answers are greedy, and right when
// every token is.

#ifndef EBB_ENGINE_LAB_PROTOCOLS_H_
#define EBB_ENGINE_LAB_PROTOCOLS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"

namespace ebb::lab {

struct Cell;
class Record;

enum class Protocol { kPrefill, kStream, kAgain };

inline constexpr Protocol kProtocols[] = {Protocol::kPrefill, Protocol::kStream, Protocol::kAgain};

// "prefill", "stream", "again".
std::string ProtocolName(Protocol protocol);

// The protocol by name, or nothing.
std::optional<Protocol> FindProtocol(std::string_view name);

struct Prompt {
  std::vector<int32_t> tokens = {};
  std::vector<int32_t> answer = {};
};

// A cases file: {"passkey": [{"prompt": [id...], "answer": [id...]}...], "again": [...], "windows": [[id...]...]}.
struct Cases {
  std::vector<Prompt> passkey = {};  // of prefill and stream
  std::vector<Prompt> again = {};
  std::vector<std::vector<int32_t>> windows = {};

  const std::vector<Prompt>& of(Protocol protocol) const { return protocol == Protocol::kAgain ? again : passkey; }
};

// NOT_FOUND; DATA_LOSS when it is no cases file, a prompt or an answer is empty, or an id is not in 0..vocab-1.
absl::StatusOr<Cases> ReadCases(const std::string& path, int32_t vocab);

// `count` of the cases, spread evenly from first to last. REQUIRES: 1 <= count <= size.
std::vector<size_t> SpreadOver(size_t size, size_t count);

// `count` of the prompts, evenly spread; 0: all.
std::vector<Prompt> Choose(std::span<const Prompt> all, int32_t count);

// OK where --prompts asks for no more than there are; else INVALID_ARGUMENT naming `path`.
absl::Status CheckPromptCount(int32_t prompts, const std::string& path, const Cases& cases);

// "0.42 [0.29, 0.56]": a share and Wilson's 95 % interval.
std::string Share(int64_t right, int64_t cases);

// Tokens that answering them runs.
int64_t WorkOf(std::span<const Prompt> prompts);

struct ProtocolOptions {
  int32_t block = 32;                             // tokens of a prompt per step
  Record* record = nullptr;                       // what it knows is not run again, and what is run it keeps
  std::string name = {};                          // there, of the prompts, where a protocol has several sets: "depth 1"
  std::function<void(int64_t tokens)> tick = {};  // called after each step with the tokens it took
};

// The policy as a protocol runs it. A schedule that the caller left open becomes: once after the prompt and then at
// every step for `prefill` (but a scorer whose own default is once keeps its own `then`), at every step otherwise.
PolicySpec UnderProtocol(const PolicySpec& spec, Protocol protocol);

// Whether Resolve accepts that: `ada` shares its budget when the prompt ends, and only `prefill` says when it does.
bool CanFollow(const PolicySpec& spec, Protocol protocol, const SpecLimits& limits);

// '1' for each prompt solved, in order. `random` draws for prompt i by its seed plus i. What Resolve, OpenSession and
// the record refuse.
absl::StatusOr<std::string> Solve(Engine& engine, const Cell& cell, Protocol protocol, std::span<const Prompt> prompts,
                                  const ProtocolOptions& options);

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_PROTOCOLS_H_
