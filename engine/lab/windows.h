// Windows of text streamed under policies, and what each policy makes of them: what the next tokens cost, how far that
// is from what nothing evicted would have said, and how much left the cache.
//
// A window starts with an empty cache; its second half counts, so that the budget has been in force for a while.

#ifndef EBB_ENGINE_LAB_WINDOWS_H_
#define EBB_ENGINE_LAB_WINDOWS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "command_line/command_line.h"
#include "engine/engine.h"
#include "engine/lab/grid.h"
#include "engine/lab/record.h"
#include "engine/lab/statistics.h"

namespace ebb::lab {

using Window = std::vector<int32_t>;  // token ids

// What one policy made of one window. The counted tokens are those of the second half; evictions are of the whole.
struct WindowResult {
  int64_t counted = 0;
  double loss = 0;        // nats, sum of -log p of the counted tokens
  double divergence = 0;  // nats, sum over their predictions of KL(full || policy) = sum_x P(x) log(P(x) / Q(x))
  int64_t agreed = 0;     // of the predictions, those whose best token is that of `full`
  int64_t evicted = 0;    // tokens per lane
  int64_t prunings = 0;   // steps that evicted
  int64_t ranked = 0;     // tokens per lane among which these chose, protected ones included
  int32_t peak = 0;       // most tokens in a lane before a step's pruning
  Loss lost = {};         // with `measure`: sums over the prunings
};

// What a record knows of a cell's window, of which so many tokens count, and what it is to keep of it. What Record
// refuses; no record knows nothing.
absl::StatusOr<std::optional<WindowResult>> Known(const Record* record, const Cell& cell, size_t window,
                                                  int64_t counted);
absl::Status Keep(Record* record, const Cell& cell, size_t window, const WindowResult& result);

enum class Against { kNothing, kFull };

struct WindowOptions {
  int32_t block = 32;                   // tokens per step; eviction follows each
  Against against = Against::kNothing;  // kFull: an unevicted session runs beside, for divergence and agreement
  bool measure = false;                 // what each pruning lost, for one more attention pass of one query
  bool predict = true;                  // false: no logits, so neither loss nor divergence
  Record* record = nullptr;             // what it knows is not run again, and what is run it keeps
  std::function<void(int64_t tokens)> tick = {};  // called after each step with its tokens, of all specs
};

// A result for each cell and window, [cell][window]; none for cells that are not possible. The policies ride side by
// side, which changes no bit of what each does. A schedule left open becomes "at every step". `random` draws for window
// i by its seed plus i. What Resolve, OpenSession, CanAppend and the record refuse; INVALID_ARGUMENT where two blocks
// exceed a step of the engine.
absl::StatusOr<std::vector<std::vector<WindowResult>>> RunWindows(Engine& engine, std::span<const Cell> cells,
                                                                  std::span<const Window> windows,
                                                                  const WindowOptions& options);

// Tokens that RunWindows will tick, but for the unevicted session's.
int64_t WorkOf(std::span<const Cell> cells, std::span<const Window> windows);

// What the windows say together: means of the windows' own means per token, with Student's 95 % interval from the
// spread between windows. All windows weigh the same.
Mean LossOf(std::span<const WindowResult> results);        // nats per token
Mean DivergenceOf(std::span<const WindowResult> results);  // nats per prediction
Mean AgreementOf(std::span<const WindowResult> results);   // share of the predictions
// Of loss(a) - loss(b), window by window: far narrower than either, since a hard window is hard for both.
Mean LossAbove(std::span<const WindowResult> results, std::span<const WindowResult> base);
// Of Loss.mass and Loss.error, per pruning. Windows without a pruning do not count.
Mean MassLostOf(std::span<const WindowResult> results);
Mean ErrorOf(std::span<const WindowResult> results);

// e^loss: "27.49 [25.90, 29.18]", without brackets for one window.
std::string Perplexity(const Mean& loss);

// A text cut into windows, by flags.
struct TextWindows {
  std::string text = {};
  int32_t block = 128;
  int32_t window = 1024;
  int32_t windows = 8;
};

// TEXT, --block, --window and --windows.
void AddTextOptions(Command command, TextWindows& text);
Settings SettingsOf(const TextWindows& text);  // of the three flags

// The begin token, where the model has one added, and what fits of the text, over and over. NOT_FOUND;
// INVALID_ARGUMENT where the text is too short.
absl::StatusOr<std::vector<Window>> CutWindows(const Tokenizer& tokenizer, const TextWindows& text);

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_WINDOWS_H_
