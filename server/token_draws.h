// The next tokens of a step's rows, drawn together on the threads that compute the step: a draw looks at the whole
// vocabulary, and the step waits for all of them.
//
//   for (...) EBB_TRY(draws.Add(options, logits, session, false, drawn));
//   draws.Run();

#ifndef EBB_SERVER_TOKEN_DRAWS_H_
#define EBB_SERVER_TOKEN_DRAWS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "server/last_logits.h"

namespace ebb {

class TokenDraws {
 public:
  // More do not draw, as each has a Sampler's memory, which goes by the vocabulary.
  static constexpr int32_t kThreadsMax = 16;

  explicit TokenDraws(Engine& engine);

  // Has `to` drawn from the session's last logits: at once where a device keeps them and what it said is enough, else
  // by Run. With log-probabilities where `explained`, else the token alone. What Engine::TakeLogits refuses. REQUIRES:
  // what is passed stays as it is until Run.
  absl::Status Add(const SamplingOptions& options, LastLogits& from, Session& session, bool explained, Drawn& to);

  // Draws what was added since. What a token is does not depend on who is drawn beside it.
  void Run();

  // For what is drawn alone. Not during Run.
  Sampler& sampler() { return samplers_.front(); }

 private:
  struct Draw {
    const SamplingOptions& options;
    std::span<const float> logits;  // [vocab]
    std::span<const int32_t> log;
    bool explained = false;
    Drawn& to;
  };

  Engine& engine_;
  std::vector<Sampler> samplers_;
  std::vector<Draw> draws_ = {};
};

}  // namespace ebb

#endif  // EBB_SERVER_TOKEN_DRAWS_H_
