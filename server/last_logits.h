// What a session's next token is drawn from: the logits of its log's last token. Where a device computed them and keeps
// the row, what it says of it is here, and the row is fetched when somebody needs it.

#ifndef EBB_SERVER_LAST_LOGITS_H_
#define EBB_SERVER_LAST_LOGITS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/row_facts.h"
#include "engine/sampler.h"

namespace ebb {

class LastLogits {
 public:
  LastLogits() = default;
  explicit LastLogits(std::vector<float> whole) : whole_(std::move(whole)) {}

  // `whole` [vocab], or what a device said of a row that it keeps (BatchRow::facts).
  void TakeWhole(std::span<const float> whole);
  void TakeFacts(const RowFacts& facts);

  // [vocab]; empty while the log is. As Engine::TakeLogits, which it asks once. Valid until the next call of this
  // class. REQUIRES: they are of `session`, of `engine`.
  absl::StatusOr<std::span<const float>> Whole(Engine& engine, Session& session);

  // What sampler.DrawToken draws from Whole, where a device keeps the row and what it said of it leaves nothing open.
  std::optional<int32_t> DrawTokenFromFacts(const SamplingOptions& options, std::span<const int32_t> log,
                                            Sampler& sampler) const;

 private:
  bool is_away() const { return whole_.empty() && !largest_.empty(); }
  RowFacts facts() const { return {.asked = asked_, .largest = largest_, .mass = mass_}; }

  std::vector<float> whole_ = {};  // [vocab], or empty: there are none, or a device keeps them
  gpu::DrawNeeds asked_ = {};      // as RowFacts, which is empty where the row is not away
  std::vector<gpu::TokenLogit> largest_ = {};
  gpu::RowMass mass_ = {};
};

}  // namespace ebb

#endif  // EBB_SERVER_LAST_LOGITS_H_
