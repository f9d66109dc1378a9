// What a session did, as its journal keeps it: all that decides its cache, in the order in which it happened. Tokens
// are kept as they were drawn, so that nothing is drawn when they are run again; block boundaries, since eviction
// follows them; and who asked for how much, for what no record tells any more.

#ifndef EBB_SERVER_JOURNAL_RECORD_H_
#define EBB_SERVER_JOURNAL_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/edit.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "policies/spec.h"

namespace ebb {

// An answer that is being written: how its tokens are drawn, and the log's length beyond which none is told.
struct AnswerPlan {
  SamplingOptions sampling = {};
  int64_t until = 0;
};

struct JournalRecord {
  // Without defaults of their own, since the list of them is made before this struct is whole.
  struct Block {  // of a prompt
    std::vector<int32_t> tokens;
    bool prompt_ends;
  };
  struct Token {  // of an answer
    int32_t token;
  };
  struct Draft {
    std::vector<int32_t> tokens;
    std::optional<int32_t> accepted;  // empty: it waits
  };
  struct Accept {  // of the draft that waits
    int32_t count;
  };
  struct Edit {  // it is over; abandoned where the blocks are fewer tokens than its plan's
    EditRequest edit;
    std::vector<int32_t> blocks;  // tokens of each
  };
  struct Evict {
    EvictRequest request;
  };
  struct Policy {
    ValidSpec policy;
  };
  struct AnswerBegins {
    AnswerPlan plan;
  };
  struct AnswerEnds {};
  using What = std::variant<Block, Token, Draft, Accept, Edit, Evict, Policy, AnswerBegins, AnswerEnds>;

  uint64_t generation = 0;  // of the session, after it
  What what = {};

  // Whether it comes from a client, and so cannot be made again from the others: all but the tokens of an answer.
  bool is_input() const { return !std::holds_alternative<Token>(what); }
  // Tokens that are run when it is replayed.
  int64_t tokens() const;
};

std::string EncodeRecord(const JournalRecord& record, const ModelConfig& model);

// DATA_LOSS JOURNAL_DAMAGED when a field is missing, left over or out of range, a token's being the vocabulary's; what
// ReadPolicy refuses.
absl::StatusOr<JournalRecord> DecodeRecord(std::string_view bytes, const ModelConfig& model);

}  // namespace ebb

#endif  // EBB_SERVER_JOURNAL_RECORD_H_
