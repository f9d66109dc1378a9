// Finds special tokens in a text: those whose name is looked for before the text is cut into ordinary tokens.
//
// Longer names win over shorter ones wherever they overlap, then the earlier place: as the public engine does it, which
// splits the whole text by each name in turn. Here one pass over the text finds all names at once.

#ifndef EBB_ENGINE_TEXT_SPECIAL_TOKENS_H_
#define EBB_ENGINE_TEXT_SPECIAL_TOKENS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/text/vocabulary.h"

namespace ebb {

class SpecialTokens {
 public:
  explicit SpecialTokens(const TokenTable& table);  // table outlives it

  struct Match {
    size_t begin = 0;  // bytes
    size_t size = 0;
    int32_t id = 0;
  };

  // A stretch of text, bytes [begin, end), whose control tokens count.
  struct Trusted {
    size_t begin = 0;
    size_t end = 0;
  };

  // Matches that do not overlap, in ascending order. User-defined tokens match everywhere; control tokens and the
  // unknown token only where they lie inside one stretch of `trusted` (ascending, apart).
  std::vector<Match> Find(std::string_view text, const std::vector<Trusted>& trusted) const;

 private:
  // The names as a tree of bytes: node 0 is the root.
  void Insert(std::string_view name, int32_t id);
  static uint64_t Edge(int32_t node, char byte) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
  }

  const TokenTable& table_;
  absl::flat_hash_map<uint64_t, int32_t> edges_ = {};  // Edge(node, byte) to node
  std::vector<int32_t> id_of_node_ = {-1};             // -1: no name ends here
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_SPECIAL_TOKENS_H_
