// Positions x in `from` and y in `to`; a diagonal is k = x - y. furthest[k] is the largest x that so many changes
// reach on it; the walk back over what was furthest after each change tells which changes they were.

#include "client/token_diff.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace ebb::client {
namespace {

using Tokens = std::span<const uint32_t>;

class Myers {
 public:
  Myers(Tokens from, Tokens to) : from_(from), to_(to) {}

  // Pairs (x, y) of tokens that stay, ascending; nothing where more than `most` tokens would leave and come.
  std::optional<std::vector<std::pair<int32_t, int32_t>>> Kept(int32_t most) {
    const auto x_end = static_cast<int32_t>(from_.size()), y_end = static_cast<int32_t>(to_.size());
    for (int32_t changes = 0; changes <= std::min(most, x_end + y_end); ++changes) {
      std::vector<int32_t>& now = reached_.emplace_back(2 * changes + 1);
      for (int32_t k = -changes; k <= changes; k += 2) {
        int32_t x = Enter(changes, k);
        while (x < x_end && x - k < y_end && from_[x] == to_[x - k]) ++x;
        now[k + changes] = x;
        if (x >= x_end && x - k >= y_end) return WalkBack(changes);
      }
    }
    return std::nullopt;
  }

 private:
  // Where change number `changes` comes onto diagonal k: a token came (from k + 1), or one left (from k - 1).
  int32_t Enter(int32_t changes, int32_t k) const {
    if (changes == 0) return 0;
    return Comes(changes, k) ? At(changes - 1, k + 1) : At(changes - 1, k - 1) + 1;
  }
  bool Comes(int32_t changes, int32_t k) const {
    return k == -changes || (k != changes && At(changes - 1, k - 1) < At(changes - 1, k + 1));
  }
  int32_t At(int32_t changes, int32_t k) const { return reached_[changes][k + changes]; }

  std::vector<std::pair<int32_t, int32_t>> WalkBack(int32_t changes) const {
    std::vector<std::pair<int32_t, int32_t>> kept;
    auto x = static_cast<int32_t>(from_.size());
    int32_t k = x - static_cast<int32_t>(to_.size());
    for (; changes >= 0; --changes) {
      const int32_t entered = Enter(changes, k);
      while (x > entered) --x, kept.emplace_back(x, x - k);
      if (changes == 0) break;
      const bool comes = Comes(changes, k);
      k += comes ? 1 : -1;
      x = At(changes - 1, k);
    }
    std::ranges::reverse(kept);
    return kept;
  }

  Tokens from_, to_;
  std::vector<std::vector<int32_t>> reached_ = {};  // [changes][2 changes + 1]
};

}  // namespace

std::vector<TokenSpan> DiffTokens(Tokens from, Tokens to, int32_t most) {
  const size_t shorter = std::min(from.size(), to.size());
  size_t same = 0;
  while (same < shorter && from[same] == to[same]) ++same;
  size_t tail = 0;
  while (tail < shorter - same && from[from.size() - 1 - tail] == to[to.size() - 1 - tail]) ++tail;
  const Tokens a = from.subspan(same, from.size() - same - tail), b = to.subspan(same, to.size() - same - tail);
  std::vector<TokenSpan> spans;
  if (a.empty() && b.empty()) return spans;
  std::vector<std::pair<int32_t, int32_t>> kept = Myers(a, b).Kept(most).value_or(decltype(kept)());
  kept.emplace_back(a.size(), b.size());
  size_t x = 0, y = 0;
  for (const auto& [to_x, to_y] : kept) {
    const auto end = static_cast<size_t>(to_x), came = static_cast<size_t>(to_y);
    if (end > x || came > y) {
      spans.push_back(
          {.start = same + x, .end = same + end, .tokens = {b.begin() + static_cast<int64_t>(y), b.begin() + to_y}});
    }
    x = end + 1;
    y = came + 1;
  }
  return spans;
}

}  // namespace ebb::client
