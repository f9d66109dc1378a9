// The loop that byte-level BPE and SPM share: join neighbouring symbols, best pair first, until no pair can be joined.
//
// O(n log n) for n symbols, whatever the text: neighbours are a linked list, candidate pairs a heap, and a candidate
// whose symbols have changed since is dropped when it comes up.

#ifndef EBB_ENGINE_TEXT_MERGE_H_
#define EBB_ENGINE_TEXT_MERGE_H_

#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

namespace ebb {

// A stretch of the text, bytes [begin, begin + size), and the token it is.
struct Symbol {
  int32_t id = -1;  // -1: no token
  int32_t begin = 0;
  int32_t size = 0;  // 0: joined into the symbol before it
  int32_t previous = -1;
  int32_t next = -1;
};

// A pair that can be joined.
struct Join {
  double cost = 0;  // cheapest first; equal costs: leftmost first
  int32_t id = -1;  // token that the pair becomes
};

// Links `symbols` in order and joins them. `find(left, right)` returns std::optional<Join>, and the same for the same
// symbols. Afterwards the symbols whose size is not 0 are the result.
template <typename Find>
void MergeSymbols(std::vector<Symbol>& symbols, const Find& find) {
  struct Candidate {
    Join join = {};
    int32_t left = 0;
    int32_t right = 0;
    int32_t size = 0;  // bytes of both when they met
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.join.cost != b.join.cost ? a.join.cost > b.join.cost : a.left > b.left;
  };
  std::priority_queue<Candidate, std::vector<Candidate>, decltype(later)> candidates(later);
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const std::optional<Join> join = find(symbols[left], symbols[right]);
    if (join) candidates.push({*join, left, right, symbols[left].size + symbols[right].size});
  };

  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[i].previous = i - 1;
    symbols[i].next = i + 1 < count ? i + 1 : -1;
  }
  for (int32_t i = 0; i + 1 < count; ++i) consider(i, i + 1);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbols[best.left];
    Symbol& right = symbols[best.right];
    if (left.size == 0 || right.size == 0 || left.size + right.size != best.size) continue;
    left.id = best.join.id;
    left.size = best.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) symbols[left.next].previous = best.left;
    consider(left.previous, best.left);
    consider(best.left, left.next);
  }
}

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_MERGE_H_
