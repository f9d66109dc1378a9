#include "engine/text/unigram.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include "engine/text/byte_tokens.h"
#include "engine/text/byte_tree.h"
#include "engine/text/utf8.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr double kUnknownPenalty = 10;
constexpr int32_t kUnknown = -1;

// The best way to the end of a stretch from the word's beginning.
struct Best {
  double score = -std::numeric_limits<double>::infinity();
  size_t begin = 0;  // of its last piece
  int32_t id = kUnknown;
};

class Unigram final : public WordEncoder {
 public:
  Unigram(const TokenTable& table, const UnigramRules& rules) : table_(table), rules_(rules) {}

  absl::Status Read() {
    const std::vector<float>& scores = table_.vocabulary().scores;
    if (scores.empty()) return VocabularyDamaged("scores", "expected one score per token, found none");
    double worst = std::numeric_limits<double>::infinity();
    for (int32_t id = 0; id < table_.size(); ++id) {
      if (table_.text(id).empty()) continue;
      worst = std::min(worst, static_cast<double>(scores[id]));
      if (table_.CanBeMade(id)) pieces_.Insert(table_.text(id), id);
    }
    unknown_score_ = worst - kUnknownPenalty;
    if (rules_.byte_tokens) {
      EBB_ASSIGN(byte_ids_, FindByteTokens(table_));
    } else if (!rules_.unk) {
      return VocabularyDamaged("tokens", "expected tokens for bytes, or one for the unknown, found neither");
    }
    return absl::OkStatus();
  }

  void Encode(std::string_view word, std::vector<int32_t>& ids) const override {
    const std::vector<Best> best = FindBest(word);
    std::vector<std::pair<size_t, size_t>> pieces;  // [begin, end) from the last to the first
    for (size_t end = word.size(); end > 0; end = best[end].begin) {
      if (!pieces.empty() && best[end].id == kUnknown && best[pieces.back().second].id == kUnknown) {
        pieces.back().first = best[end].begin;
      } else {
        pieces.emplace_back(best[end].begin, end);
      }
    }
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
      const auto [begin, end] = *piece;
      if (best[end].id != kUnknown) {
        ids.push_back(best[end].id);
      } else if (!rules_.byte_tokens) {
        ids.push_back(*rules_.unk);
      } else {
        for (const char byte : word.substr(begin, end - begin)) {
          ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
        }
      }
    }
  }

 private:
  // By the end of the stretch, in bytes.
  std::vector<Best> FindBest(std::string_view word) const {
    const std::vector<float>& scores = table_.vocabulary().scores;
    std::vector<Best> best(word.size() + 1);
    best[0].score = 0;
    for (size_t begin = 0; begin < word.size();) {
      const double till_here = best[begin].score;
      const size_t next = begin + static_cast<size_t>(FirstUtf8(word.substr(begin)).size);
      bool alone = false;  // the character is a piece
      const auto consider = [&](size_t end, double score, int32_t id) {
        if (till_here + score > best[end].score) best[end] = {till_here + score, begin, id};
      };
      pieces_.ForEachPrefix(word.substr(begin), [&](size_t size, int32_t id) {
        consider(begin + size, static_cast<double>(scores[id]), id);
        alone = alone || begin + size == next;
      });
      if (!alone) consider(next, unknown_score_, kUnknown);
      begin = next;
    }
    return best;
  }

  const TokenTable& table_;
  const UnigramRules rules_;
  ByteTree pieces_ = {};
  double unknown_score_ = 0;
  ByteTokens byte_ids_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<const WordEncoder>> MakeUnigram(const TokenTable& table, const UnigramRules& rules) {
  auto unigram = std::make_unique<Unigram>(table, rules);
  EBB_TRY(unigram->Read());
  return unigram;
}

}  // namespace ebb
