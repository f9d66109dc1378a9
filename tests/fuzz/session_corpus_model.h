// The model of the sessions in corpus/snapshot: what the fuzzer reads them for, and what they were made with. So small
// that a snapshot has a few kilobytes.

#ifndef EBB_TESTS_FUZZ_SESSION_CORPUS_MODEL_H_
#define EBB_TESTS_FUZZ_SESSION_CORPUS_MODEL_H_

#include <memory>

#include "engine/engine.h"
#include "tests/support/test_engine.h"
#include "tests/support/tiny_model.h"

namespace ebb {

inline constexpr int32_t kCorpusBlock = 8;  // tokens of a step, at most

// On one thread, with instructions that every machine has: both are part of a snapshot's "arithmetic".
inline std::unique_ptr<Engine> OpenCorpusEngine() {
  const TinyModelFile file({.layers = 2,
                            .dim = 16,
                            .heads = 2,
                            .kv_heads = 2,
                            .head_dim = 8,
                            .ffn_dim = 16,
                            .context = 64,
                            .calibrated = false});
  return OpenTestEngine(file.path(), {.arena_bytes = 1 << 20, .step_tokens_max = kCorpusBlock, .isa = "scalar"});
}

}  // namespace ebb

#endif  // EBB_TESTS_FUZZ_SESSION_CORPUS_MODEL_H_
