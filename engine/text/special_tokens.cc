#include "engine/text/special_tokens.h"

#include <algorithm>
#include <utility>

#include "engine/text/unicode.h"

namespace ebb {

SpecialTokens::SpecialTokens(std::vector<Name> names, Overlap overlap) : names_(std::move(names)), overlap_(overlap) {
  for (size_t i = 0; i < names_.size(); ++i) tree_.Insert(names_[i].text, static_cast<int32_t>(i));
}

std::vector<SpecialTokens::Candidate> SpecialTokens::FindAll(std::string_view text,
                                                             const std::vector<Trusted>& trusted) const {
  std::vector<Candidate> candidates;
  size_t stretch = 0;
  for (size_t begin = 0; begin < text.size(); ++begin) {
    while (stretch < trusted.size() && trusted[stretch].end <= begin) ++stretch;
    const bool in_trusted = stretch < trusted.size() && trusted[stretch].begin <= begin;
    tree_.ForEachPrefix(text.substr(begin), [&](size_t size, int32_t index) {
      const auto name = static_cast<size_t>(index);
      const bool allowed = !names_[name].control || (in_trusted && begin + size <= trusted[stretch].end);
      if (allowed) candidates.push_back({begin, size, name});
    });
  }
  return candidates;
}

std::vector<SpecialTokens::Match> SpecialTokens::Longest(size_t text_bytes, std::vector<Candidate> candidates) const {
  std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) {
    return a.size != b.size ? a.size > b.size : a.begin < b.begin;
  });
  std::vector<bool> taken(text_bytes);
  std::vector<Match> matches;
  for (const Candidate& candidate : candidates) {
    const auto first = taken.begin() + static_cast<ptrdiff_t>(candidate.begin);
    const auto last = first + static_cast<ptrdiff_t>(candidate.size);
    // Nothing shorter was taken before, so an overlap shows at one of the ends.
    if (*first || *(last - 1)) continue;
    std::fill(first, last, true);
    matches.push_back({candidate.begin, candidate.size, names_[candidate.name].id});
  }
  std::ranges::sort(matches, {}, &Match::begin);
  return matches;
}

std::vector<SpecialTokens::Match> SpecialTokens::Leftmost(std::string_view text,
                                                          const std::vector<Candidate>& candidates) const {
  std::vector<Match> matches;
  size_t looked = 0;  // no name is looked for before it
  size_t done = 0;    // the last match's end, with its spaces
  for (size_t i = 0; i < candidates.size(); ++i) {
    // By begin, then size: the longest of those that begin here comes last.
    if (i + 1 < candidates.size() && candidates[i + 1].begin == candidates[i].begin) continue;
    const auto [from, size, index] = candidates[i];
    if (from < looked) continue;
    looked = from + size;
    const Name& name = names_[index];
    size_t begin = from;
    size_t end = looked;
    const bool inside_word =
        EndsWith(text.substr(0, begin), IsWordCharacter) || BeginsWith(text.substr(end), IsWordCharacter);
    if (name.how.single_word && inside_word) continue;
    if (name.how.left_strip) begin = std::max(begin - TrailingSpaces(text.substr(0, begin)), done);
    if (name.how.right_strip) end += LeadingSpaces(text.substr(end));
    if (begin < done) begin = done;  // in the spaces that the match before took
    if (end <= begin) continue;
    matches.push_back({begin, end - begin, name.id});
    done = end;
  }
  return matches;
}

std::vector<SpecialTokens::Match> SpecialTokens::Find(std::string_view text,
                                                      const std::vector<Trusted>& trusted) const {
  std::vector<Candidate> candidates = FindAll(text, trusted);
  return overlap_ == Overlap::kLongest ? Longest(text.size(), std::move(candidates)) : Leftmost(text, candidates);
}

}  // namespace ebb
