// What changed from one list of tokens to another, as spans that InferenceService.Edit takes.

#ifndef EBB_CLIENT_TOKEN_DIFF_H_
#define EBB_CLIENT_TOKEN_DIFF_H_

#include <cstdint>
#include <span>
#include <vector>

namespace ebb::client {

// Tokens [start, end) of the old list, and what takes their place.
struct TokenSpan {
  size_t start = 0, end = 0;
  std::vector<uint32_t> tokens = {};
};

// Spans, ascending and apart, that make `to` of `from`; none where they are equal. As few tokens leave and come as can
// be (Myers, "An O(ND) Difference Algorithm and Its Variations", 1986), while these are at most `most`: else one span
// from the first difference to the last. O((|from| + |to|) * min(most, changes)) time, O(changes^2) memory.
std::vector<TokenSpan> DiffTokens(std::span<const uint32_t> from, std::span<const uint32_t> to, int32_t most = 1024);

}  // namespace ebb::client

#endif  // EBB_CLIENT_TOKEN_DIFF_H_
