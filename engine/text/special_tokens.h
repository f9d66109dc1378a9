// Finds tokens by their names in a text, before it is cut into ordinary ones.

#ifndef EBB_ENGINE_TEXT_SPECIAL_TOKENS_H_
#define EBB_ENGINE_TEXT_SPECIAL_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/byte_tree.h"
#include "engine/text/tokenizer_rules.h"

namespace ebb {

class SpecialTokens {
 public:
  struct Name {
    std::string text = {};
    int32_t id = 0;
    bool control = false;  // found in trusted text alone
    AddedToken how = {};
  };
  // Which of names that overlap counts.
  enum class Overlap {
    kLongest,   // the longer, then the one that begins first: the public engine splits the whole text by each in turn
    kLeftmost,  // the one that begins first, then the longer: tokenizer.json
  };

  SpecialTokens(std::vector<Name> names, Overlap overlap);

  bool empty() const { return names_.empty(); }

  struct Match {
    size_t begin = 0;  // bytes, with spaces that the token takes along
    size_t size = 0;
    int32_t id = 0;
  };

  // A stretch of text, bytes [begin, end), whose control tokens count.
  struct Trusted {
    size_t begin = 0;
    size_t end = 0;
  };

  // Matches that do not overlap, in ascending order. Control tokens only where they lie inside one stretch of `trusted`
  // (ascending, apart), others everywhere.
  std::vector<Match> Find(std::string_view text, const std::vector<Trusted>& trusted) const;

 private:
  // Where a name stands, before it is said what overlaps.
  struct Candidate {
    size_t begin = 0;
    size_t size = 0;
    size_t name = 0;
  };

  std::vector<Candidate> FindAll(std::string_view text, const std::vector<Trusted>& trusted) const;
  std::vector<Match> Longest(size_t text_bytes, std::vector<Candidate> candidates) const;
  std::vector<Match> Leftmost(std::string_view text, const std::vector<Candidate>& candidates) const;

  std::vector<Name> names_;
  const Overlap overlap_;
  ByteTree tree_ = {};  // of indices into names_
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_SPECIAL_TOKENS_H_
