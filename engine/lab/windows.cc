#include "engine/lab/windows.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/divergence.h"
#include "engine/lab/lab.h"
#include "engine/lab/protocols.h"
#include "engine/lab/table.h"
#include "engine/sampler.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Loss, mass, error)

}  // namespace ebb

namespace ebb::lab {

// As a record holds them, and found by nlohmann::json by their names.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WindowResult, counted, loss, divergence, agreed, evicted, prunings, ranked, peak,
                                   lost)

namespace {

std::string NameOf(const Cell& cell, size_t window) { return absl::StrFormat("%s window %d", cell.name(), window); }

// One policy on its way through a window.
struct Rider {
  std::unique_ptr<Session> session = {};
  WindowResult* result = nullptr;  // null: `full`, which the others are compared with
};

// The predictions of one step's tokens that count.
void Compare(std::span<const float> logits, std::span<const float> full, int32_t next, WindowResult& result) {
  result.loss -= LogProbability(logits, next);
  ++result.counted;
  if (full.empty()) return;
  result.divergence += KlDivergence(full, logits);
  result.agreed += std::ranges::max_element(logits) - logits.begin() == std::ranges::max_element(full) - full.begin();
}

void Count(const BatchRow& row, WindowResult& result) {
  // After the pruning a lane holds what it kept; before it, what left too.
  const int32_t before = row.session->cache_length() + row.evicted;
  result.peak = std::max(result.peak, before);
  result.evicted = row.session->evicted();
  if (row.evicted == 0) return;
  ++result.prunings;
  result.ranked += before;
  result.lost.mass += row.loss.mass;
  result.lost.error += row.loss.error;
}

absl::Status RunWindow(Engine& engine, std::span<Rider> riders, const Window& window, const WindowOptions& options) {
  const auto vocab = static_cast<size_t>(engine.config().vocab);
  const size_t half = window.size() / 2;
  std::vector<BatchRow> rows;
  for (size_t first = 0; first < window.size(); first += options.block) {
    const size_t count = std::min<size_t>(options.block, window.size() - first);
    const bool counts = options.predict && first + count >= half;  // the last logits before the second half, too
    rows.clear();
    for (const Rider& rider : riders) {
      EBB_TRY(rider.session->CanAppend(static_cast<int32_t>(count)));
      rows.push_back({.session = rider.session.get(),
                      .tokens = std::span(window).subspan(first, count),
                      .want = counts ? Want::kAll : Want::kNone,
                      .measure = options.measure});
    }
    engine.Run(rows);
    for (size_t i = 0; i < riders.size(); ++i) {
      if (riders[i].result == nullptr) continue;
      Count(rows[i], *riders[i].result);
      for (size_t next = std::max(first + 1, half); counts && next <= first + count && next < window.size(); ++next) {
        const size_t at = (next - 1 - first) * vocab;
        const auto full = riders[0].result == nullptr ? rows[0].logits.subspan(at, vocab) : std::span<const float>();
        Compare(rows[i].logits.subspan(at, vocab), full, window[next], *riders[i].result);
      }
    }
    if (options.tick) {
      const auto measured = std::ranges::count_if(riders, [](const Rider& rider) { return rider.result != nullptr; });
      options.tick(static_cast<int64_t>(count) * measured);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Session>> Open(Engine& engine, PolicySpec spec, size_t window, int32_t block) {
  if (spec.scorer == "random") spec.parameters["seed"] += static_cast<double>(window);
  EBB_ASSIGN(const ValidSpec policy, Resolve(UnderProtocol(spec, Protocol::kStream), LimitsOf(engine.config())));
  return engine.OpenSession({.policy = policy, .block_size_max = block});
}

// The mean over windows of `of`, which is divided by `weight`; windows of no weight are left out.
template <typename Value, typename Weight>
Mean MeanOver(std::span<const WindowResult> results, Value of, Weight weight) {
  std::vector<double> samples;
  for (const WindowResult& result : results) {
    if (weight(result) > 0) samples.push_back(static_cast<double>(of(result)) / static_cast<double>(weight(result)));
  }
  return MeanOf(samples);
}

int64_t Counted(const WindowResult& result) { return result.counted; }
int64_t Prunings(const WindowResult& result) { return result.prunings; }

}  // namespace

absl::StatusOr<std::optional<WindowResult>> Known(const Record* record, const Cell& cell, size_t window,
                                                  int64_t counted) {
  if (record == nullptr) return std::nullopt;
  const auto fits = [&](const WindowResult& result) { return result.counted == counted; };
  return record->Find<WindowResult>(NameOf(cell, window), fits);
}

absl::Status Keep(Record* record, const Cell& cell, size_t window, const WindowResult& result) {
  return record == nullptr ? absl::OkStatus() : record->Add(NameOf(cell, window), result);
}

absl::StatusOr<std::vector<std::vector<WindowResult>>> RunWindows(Engine& engine, std::span<const Cell> cells,
                                                                  std::span<const Window> windows,
                                                                  const WindowOptions& options) {
  const bool full = options.against == Against::kFull;
  const int32_t at_once = engine.step_tokens_max() / options.block - (full ? 1 : 0);
  if (at_once < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--block: %d; two blocks exceed a step of %d tokens", options.block, engine.step_tokens_max()));
  }
  std::vector<std::vector<WindowResult>> results(cells.size());
  for (size_t w = 0; w < windows.size(); ++w) {
    const auto size = static_cast<int64_t>(windows[w].size());
    std::vector<size_t> missing;
    for (size_t c = 0; c < cells.size(); ++c) {
      if (!cells[c].possible) continue;
      EBB_ASSIGN(const auto known, Known(options.record, cells[c], w, options.predict ? size - size / 2 : 0));
      results[c].push_back(known.value_or(WindowResult()));
      if (!known) missing.push_back(c);
      if (known && options.tick) options.tick(size);
    }
    for (size_t first = 0; first < missing.size(); first += at_once) {
      const auto some = std::span(missing).subspan(first, std::min<size_t>(at_once, missing.size() - first));
      std::vector<Rider> riders;
      if (full) {
        const PolicySpec& like = cells[some.front()].spec;
        const PolicySpec unevicted = {.scorer = "full",
                                      .budget = static_cast<int32_t>(size),
                                      .kv_type = like.kv_type,
                                      .rope_cache = like.rope_cache};
        EBB_ASSIGN(riders.emplace_back().session, Open(engine, unevicted, w, options.block));
      }
      for (const size_t c : some) {
        EBB_ASSIGN(riders.emplace_back().session, Open(engine, cells[c].spec, w, options.block));
        riders.back().result = &results[c][w];
      }
      EBB_TRY(RunWindow(engine, riders, windows[w], options));
      for (const size_t c : some) EBB_TRY(Keep(options.record, cells[c], w, results[c][w]));
    }
  }
  return results;
}

int64_t WorkOf(std::span<const Cell> cells, std::span<const Window> windows) {
  int64_t tokens = 0;
  for (const Window& window : windows) tokens += static_cast<int64_t>(window.size());
  return tokens * std::ranges::count_if(cells, &Cell::possible);
}

Mean LossOf(std::span<const WindowResult> results) {
  return MeanOver(
      results, [](const WindowResult& result) { return result.loss; }, Counted);
}

Mean DivergenceOf(std::span<const WindowResult> results) {
  return MeanOver(
      results, [](const WindowResult& result) { return result.divergence; }, Counted);
}

Mean AgreementOf(std::span<const WindowResult> results) {
  return MeanOver(
      results, [](const WindowResult& result) { return result.agreed; }, Counted);
}

Mean LossAbove(std::span<const WindowResult> results, std::span<const WindowResult> base) {
  EBB_CHECK(results.size() == base.size());
  std::vector<double> samples;
  for (size_t i = 0; i < results.size(); ++i) {
    EBB_CHECK(results[i].counted == base[i].counted);
    samples.push_back((results[i].loss - base[i].loss) / static_cast<double>(results[i].counted));
  }
  return MeanOf(samples);
}

Mean MassLostOf(std::span<const WindowResult> results) {
  return MeanOver(
      results, [](const WindowResult& result) { return result.lost.mass; }, Prunings);
}

Mean ErrorOf(std::span<const WindowResult> results) {
  return MeanOver(
      results, [](const WindowResult& result) { return result.lost.error; }, Prunings);
}

std::string Perplexity(const Mean& loss) {
  const Interval interval = {.low = std::exp(loss.value - loss.half_width),
                             .high = std::exp(loss.value + loss.half_width)};
  return WithInterval(std::exp(loss.value), interval, 2);
}

void AddTextOptions(Command command, TextWindows& text) {
  command.add_option("TEXT", text.text, "Text file").required();
  AddBlockOption(command, text.block, "eviction");
  command.add_option("--window", text.window, "Tokens of a window, its begin token included")
      .range(4, 1 << 20)
      .capture_default_str();
  command.add_option("--windows", text.windows, "How many windows of the text").range(1, 1 << 20).capture_default_str();
}

Settings SettingsOf(const TextWindows& text) {
  return {{"--block", absl::StrCat(text.block)},
          {"--window", absl::StrCat(text.window)},
          {"--windows", absl::StrCat(text.windows)}};
}

absl::StatusOr<std::vector<Window>> CutWindows(const Tokenizer& tokenizer, const TextWindows& text) {
  EBB_ASSIGN(const std::string characters, ReadText(text.text));
  const std::vector<int32_t> ids = tokenizer.Encode(characters);
  Window begin;
  if (tokenizer.adds_bos() && tokenizer.bos()) begin.push_back(*tokenizer.bos());
  const size_t step = static_cast<size_t>(text.window) - begin.size();
  if (ids.size() < step * text.windows) {
    return absl::InvalidArgumentError(absl::StrFormat("%s has %d tokens, but %d windows of %d need %d", text.text,
                                                      ids.size(), text.windows, text.window, step * text.windows));
  }
  std::vector<Window> windows;
  for (size_t first = 0; first < step * text.windows; first += step) {
    windows.push_back(begin);
    windows.back().insert(windows.back().end(), ids.begin() + static_cast<std::ptrdiff_t>(first),
                          ids.begin() + static_cast<std::ptrdiff_t>(first + step));
  }
  return windows;
}

}  // namespace ebb::lab
