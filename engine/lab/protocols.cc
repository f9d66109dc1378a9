#include "engine/lab/protocols.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/lab/grid.h"
#include "engine/lab/lab.h"
#include "engine/lab/record.h"
#include "engine/lab/statistics.h"
#include "engine/lab/table.h"
#include "policies/check.h"
#include "policies/registry.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

int32_t BestToken(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

std::vector<Prompt> ReadPrompts(const Json& json) {
  std::vector<Prompt> prompts;
  for (const Json& prompt : json) {
    prompts.push_back(
        {prompt.at("prompt").get<std::vector<int32_t>>(), prompt.at("answer").get<std::vector<int32_t>>()});
  }
  return prompts;
}

// Of what the engine will be given.
absl::Status CheckTokens(const std::string& path, const std::string& where, std::span<const int32_t> tokens,
                         int32_t vocab) {
  if (tokens.size() < 2) return absl::DataLossError(absl::StrFormat("%s: %s is too short", path, where));
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocab) continue;
    return absl::DataLossError(
        absl::StrFormat("%s: %s: token %d is not in 0..%d; made for another model?", path, where, token, vocab - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckCases(const std::string& path, const Cases& cases, int32_t vocab) {
  for (const auto& [name, prompts] : {std::pair("passkey", &cases.passkey), std::pair("again", &cases.again)}) {
    for (size_t i = 0; i < prompts->size(); ++i) {
      const Prompt& prompt = (*prompts)[i];
      EBB_TRY(CheckTokens(path, absl::StrFormat("%s[%d].prompt", name, i), prompt.tokens, vocab));
      EBB_TRY(CheckTokens(path, absl::StrFormat("%s[%d].answer", name, i), prompt.answer, vocab));
    }
  }
  for (size_t i = 0; i < cases.windows.size(); ++i) {
    EBB_TRY(CheckTokens(path, absl::StrFormat("windows[%d]", i), cases.windows[i], vocab));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Session>> Open(Engine& engine, PolicySpec spec, int32_t index, int32_t block) {
  if (spec.scorer == "random") spec.parameters["seed"] += index;
  EBB_ASSIGN(const ValidSpec policy, Resolve(spec, LimitsOf(engine.config())));
  return engine.OpenSession({.policy = policy, .block_size_max = block});
}

// A prompt on its way through a session: what is fed next, and what came of it.
class Reader {
 public:
  Reader(const Prompt& prompt, Protocol protocol, std::unique_ptr<Session> session)
      : prompt_(&prompt), protocol_(protocol), session_(std::move(session)) {}

  bool done() const { return said_.size() == prompt_->answer.size(); }
  bool right() const { return said_ == prompt_->answer; }

  absl::StatusOr<BatchRow> Next(int32_t block) {
    BatchRow row = {.session = session_.get(), .want = Want::kLast};
    const size_t size = prompt_->tokens.size();
    if (fed_ == size) {
      row.tokens = std::span(said_).last(1);
    } else {
      const size_t end = protocol_ == Protocol::kPrefill && fed_ < size - 1 ? size - 1 : size;
      const size_t count = std::min<size_t>(block, end - fed_);
      row.tokens = std::span(prompt_->tokens).subspan(fed_, count);
      fed_ += count;
      row.prompt_ends = protocol_ == Protocol::kPrefill && fed_ == size - 1;
      if (fed_ < size) row.want = Want::kNone;
    }
    EBB_TRY(session_->CanAppend(static_cast<int32_t>(row.tokens.size())));
    return row;
  }

  void Take(const BatchRow& row) {
    if (row.want == Want::kLast) said_.push_back(BestToken(row.logits));
  }

 private:
  const Prompt* prompt_;
  Protocol protocol_;
  std::unique_ptr<Session> session_;
  size_t fed_ = 0;
  std::vector<int32_t> said_ = {};
};

int32_t SessionsPerStep(const Engine& engine, int32_t block) { return std::max(engine.step_tokens_max() / block, 1); }

}  // namespace

std::string ProtocolName(Protocol protocol) {
  switch (protocol) {
    case Protocol::kPrefill:
      return "prefill";
    case Protocol::kStream:
      return "stream";
    case Protocol::kAgain:
      return "again";
  }
  return {};
}

std::optional<Protocol> FindProtocol(std::string_view name) {
  for (const Protocol protocol : kProtocols) {
    if (ProtocolName(protocol) == name) return protocol;
  }
  return std::nullopt;
}

absl::StatusOr<Cases> ReadCases(const std::string& path, int32_t vocab) {
  EBB_ASSIGN(const std::string text, ReadText(path));
  Cases cases;
  try {
    const Json json = Json::parse(text);
    cases.passkey = ReadPrompts(json.at("passkey"));
    cases.again = ReadPrompts(json.at("again"));
    cases.windows = json.at("windows").get<std::vector<std::vector<int32_t>>>();
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrFormat("%s: not a cases file: %s", path, error.what()));
  }
  EBB_TRY(CheckCases(path, cases, vocab));
  return cases;
}

std::vector<size_t> SpreadOver(size_t size, size_t count) {
  EBB_CHECK(count >= 1);
  EBB_CHECK(count <= size);
  std::vector<size_t> chosen;
  for (size_t i = 0; i < count; ++i) chosen.push_back(count == 1 ? 0 : i * (size - 1) / (count - 1));
  return chosen;
}

std::vector<Prompt> Choose(std::span<const Prompt> all, int32_t count) {
  std::vector<Prompt> prompts;
  for (const size_t i : SpreadOver(all.size(), count > 0 ? static_cast<size_t>(count) : all.size())) {
    prompts.push_back(all[i]);
  }
  return prompts;
}

absl::Status CheckPromptCount(int32_t prompts, const std::string& path, const Cases& cases) {
  const size_t most = std::min(cases.passkey.size(), cases.again.size());
  if (prompts >= 0 && static_cast<size_t>(prompts) <= most && most > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("--prompts: %d; %s has %d of each protocol", prompts, path, most));
}

std::string Share(int64_t right, int64_t cases) {
  return WithInterval(static_cast<double>(right) / static_cast<double>(cases), Wilson(right, cases), 2);
}

PolicySpec UnderProtocol(const PolicySpec& spec, Protocol protocol) {
  PolicySpec under = spec;
  const ScorerRow* const row = FindScorer(spec.scorer);
  if (row == nullptr || !row->evicts || spec.schedule) return under;
  under.schedule = protocol == Protocol::kPrefill ? Schedule::kOncePrompt : Schedule::kEveryStep;
  if (protocol == Protocol::kPrefill && !spec.then && row->schedule != Schedule::kOncePrompt) under.then = Then::kSame;
  return under;
}

bool CanFollow(const PolicySpec& spec, Protocol protocol, const SpecLimits& limits) {
  return Resolve(UnderProtocol(spec, protocol), limits).ok();
}

int64_t WorkOf(std::span<const Prompt> prompts) {
  int64_t tokens = 0;
  for (const Prompt& prompt : prompts) tokens += static_cast<int64_t>(prompt.tokens.size() + prompt.answer.size()) - 1;
  return tokens;
}

absl::StatusOr<std::string> Solve(Engine& engine, const Cell& cell, Protocol protocol, std::span<const Prompt> prompts,
                                  const ProtocolOptions& options) {
  std::string name = cell.name() + " " + ProtocolName(protocol);
  if (!options.name.empty()) name += ", " + options.name;
  if (options.record != nullptr) {
    EBB_ASSIGN(const auto known, options.record->Find<std::string>(
                                     name, [&](const std::string& right) { return right.size() == prompts.size(); }));
    if (known && options.tick) options.tick(WorkOf(prompts));
    if (known) return *known;
  }
  const PolicySpec under = UnderProtocol(cell.spec, protocol);
  const auto at_once = static_cast<size_t>(SessionsPerStep(engine, options.block));
  std::string right;
  std::vector<BatchRow> rows;
  std::vector<Reader*> seated;
  for (size_t first = 0; first < prompts.size(); first += at_once) {
    std::vector<Reader> readers;
    for (size_t i = first; i < std::min(first + at_once, prompts.size()); ++i) {
      EBB_ASSIGN(auto session, Open(engine, under, static_cast<int32_t>(i), options.block));
      readers.emplace_back(prompts[i], protocol, std::move(session));
    }
    while (true) {
      rows.clear();
      seated.clear();
      int64_t tokens = 0;
      for (Reader& reader : readers) {
        if (reader.done()) continue;
        EBB_ASSIGN(rows.emplace_back(), reader.Next(options.block));
        seated.push_back(&reader);
        tokens += static_cast<int64_t>(rows.back().tokens.size());
      }
      if (rows.empty()) break;
      engine.Run(rows);
      for (size_t i = 0; i < rows.size(); ++i) {
        EBB_TRY(rows[i].status);
        seated[i]->Take(rows[i]);
      }
      if (options.tick) options.tick(tokens);
    }
    for (const Reader& reader : readers) right += reader.right() ? '1' : '0';
  }
  if (options.record != nullptr) EBB_TRY(options.record->Add(name, right));
  return right;
}

}  // namespace ebb::lab
