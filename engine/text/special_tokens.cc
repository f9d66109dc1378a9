#include "engine/text/special_tokens.h"

#include <algorithm>

namespace ebb {

SpecialTokens::SpecialTokens(const TokenTable& table) : table_(table) {
  for (int32_t id = 0; id < table.size(); ++id) {
    const TokenType type = table.type(id);
    if (type == TokenType::kControl || type == TokenType::kUserDefined || type == TokenType::kUnknown) {
      Insert(table.text(id), id);
    }
  }
}

void SpecialTokens::Insert(std::string_view name, int32_t id) {
  if (name.empty()) return;
  int32_t node = 0;
  for (const char byte : name) {
    const auto [edge, is_new] = edges_.try_emplace(Edge(node, byte), static_cast<int32_t>(id_of_node_.size()));
    if (is_new) id_of_node_.push_back(-1);
    node = edge->second;
  }
  id_of_node_[node] = id;
}

std::vector<SpecialTokens::Match> SpecialTokens::Find(std::string_view text,
                                                      const std::vector<Trusted>& trusted) const {
  std::vector<Match> candidates;
  size_t stretch = 0;
  for (size_t begin = 0; begin < text.size(); ++begin) {
    while (stretch < trusted.size() && trusted[stretch].end <= begin) ++stretch;
    const bool in_trusted = stretch < trusted.size() && trusted[stretch].begin <= begin;
    int32_t node = 0;
    for (size_t end = begin; end < text.size(); ++end) {
      const auto edge = edges_.find(Edge(node, text[end]));
      if (edge == edges_.end()) break;
      node = edge->second;
      const int32_t id = id_of_node_[node];
      if (id < 0) continue;
      const bool allowed =
          table_.type(id) == TokenType::kUserDefined || (in_trusted && end + 1 <= trusted[stretch].end);
      if (allowed) candidates.push_back({.begin = begin, .size = end + 1 - begin, .id = id});
    }
  }

  std::ranges::sort(candidates, [](const Match& a, const Match& b) {
    return a.size != b.size ? a.size > b.size : a.begin < b.begin;
  });
  std::vector<bool> taken(text.size());
  std::vector<Match> matches;
  for (const Match& match : candidates) {
    const auto first = taken.begin() + static_cast<ptrdiff_t>(match.begin);
    const auto last = first + static_cast<ptrdiff_t>(match.size);
    // Nothing shorter was taken before, so an overlap shows at one of the ends.
    if (*first || *(last - 1)) continue;
    std::fill(first, last, true);
    matches.push_back(match);
  }
  std::ranges::sort(matches, {}, &Match::begin);
  return matches;
}

}  // namespace ebb
