// An engine in this process with sessions that are fed tokens of no meaning, and what a step of theirs has to do.

#ifndef EBB_BENCH_MODEL_RUN_H_
#define EBB_BENCH_MODEL_RUN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/bench.h"
#include "bench/roofline.h"
#include "bench/shifting_ops.h"
#include "command_line/command_line.h"
#include "engine/engine.h"
#include "engine/model/gguf.h"
#include "policies/hash_random.h"
#include "policies/spec.h"

namespace ebb::bench {

// What a model's matrices cost, as the file has them: however an engine repacks them, it has so much to read.
struct ModelWork {
  Work body = {};                 // all but the head, for one token; bytes also of norms
  Work head = {};                 // logits of one token
  double attention_per_pair = 0;  // operations of one token's query heads with one cached token, all layers

  // `tokens` through the body and `logits` through the head in one step, weights read once; attention not counted.
  Work Step(double tokens, double logits) const;
};

// Matrices of Q types multiply in int8, BF16 ones in BF16, others in float32. Embeddings that are not the head are not
// read: a step wants a few rows of them. DATA_LOSS or FAILED_PRECONDITION from the file.
absl::StatusOr<ModelWork> WorkOf(const GgufFile& file);

// Tokens of a prompt in one step, and of one session in it.
inline constexpr int32_t kStepTokens = 512;
inline constexpr int32_t kBlock = 128;

// How a model is opened and its sessions bounded.
struct ModelOptions {
  std::string model = {};
  std::string isa = {};
  std::string policy = "streaming";
  int32_t slots = 512;
  KvType kv_type = KvType::kBf16;
  Accuracy accuracy = Accuracy::kFast;
  int32_t sessions = 1;    // room is reserved for so many of `tokens_max`
  int32_t tokens_max = 0;  // slots of the largest session; 0: `slots`
  int32_t step_tokens = kStepTokens;
  std::optional<Leaving> shifts = {};  // lanes keep their tokens in order (bench/shifting_ops.h)
};

// MODEL, --isa, --accuracy and --kv-dtype.
void AddModelOptions(Command command, ModelOptions& options);

// --kv-dtype of a verb that takes several, with commas.
void AddKvTypes(Command command, std::vector<KvType>& types);

struct OpenModel {
  std::unique_ptr<Engine> engine = {};
  ModelWork work = {};

  // `policy` with `slots` as its budget. What Resolve refuses.
  absl::StatusOr<ValidSpec> Policy(const std::string& policy, int32_t slots, KvType kv_type) const;
  // Bytes of K and V of one token, all lanes.
  double TokenBytes(KvType kv_type) const;
};
absl::StatusOr<OpenModel> OpenForBench(const Common& common, const ModelOptions& options);

// Sessions of one policy, in the same state.
class Sessions {
 public:
  static absl::StatusOr<std::unique_ptr<Sessions>> Open(Engine& engine, const ValidSpec& policy, int32_t count,
                                                        int32_t block, uint64_t seed);

  // Runs prompts in blocks until every log has `tokens`, and gives the logits of the last.
  void Fill(int32_t tokens);
  // The same for the first session, whose snapshot takes the place of all others: one long prompt to compute rather
  // than many. Their pages are their own. RESOURCE_EXHAUSTED without memory for them.
  absl::Status FillAlike(int32_t tokens);
  // Seconds of a step that appends a token to each of the first `count` and gives its logits.
  double Step(int32_t count);
  // Of a step with a draft of `tokens` tokens for each of the first `count`, and all their logits; and of accepting all
  // of it.
  struct VerifyTimes {
    double run = 0, keep = 0;  // seconds
  };
  VerifyTimes Verify(int32_t count, int32_t tokens);
  // Live tokens in the longest lanes of the first `count`, together.
  double LiveTokens(int32_t count) const;

 private:
  Sessions(Engine& engine, uint64_t seed) : engine_(engine), random_(seed) {}
  std::vector<int32_t> Tokens(int32_t count);
  void FillFirst(size_t count, int32_t tokens);

  Engine& engine_;
  HashRandom random_;
  std::vector<std::unique_ptr<Session>> sessions_ = {};
  int32_t block_ = 0;
};

}  // namespace ebb::bench

#endif  // EBB_BENCH_MODEL_RUN_H_
