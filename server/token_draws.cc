#include "server/token_draws.h"

#include <algorithm>
#include <optional>

#include "engine/parallel.h"
#include "policies/status.h"

namespace ebb {

TokenDraws::TokenDraws(Engine& engine) : engine_(engine) {
  const int32_t samplers = std::min(engine.threads(), kThreadsMax);
  samplers_.reserve(static_cast<size_t>(samplers));
  for (int32_t i = 0; i < samplers; ++i) samplers_.emplace_back(engine.config().vocab);
}

absl::Status TokenDraws::Add(const SamplingOptions& options, LastLogits& from, Session& session, bool explained,
                             Drawn& to) {
  if (!explained) {
    const std::optional<int32_t> token = from.DrawTokenFromFacts(options, session.log(), sampler());
    if (token) {
      to = {.token = *token};
      return absl::OkStatus();
    }
  }
  EBB_ASSIGN(const std::span<const float> logits, from.Whole(engine_, session));
  draws_.push_back({.options = options, .logits = logits, .log = session.log(), .explained = explained, .to = to});
  return absl::OkStatus();
}

void TokenDraws::Run() {
  const size_t strides = std::min(draws_.size(), samplers_.size());
  engine_.host_threads().For(static_cast<int64_t>(strides), [&](int64_t stride, int32_t /*thread*/) {
    Sampler& sampler = samplers_[static_cast<size_t>(stride)];
    for (size_t i = static_cast<size_t>(stride); i < draws_.size(); i += strides) {
      const Draw& draw = draws_[i];
      if (draw.explained) {
        draw.to = sampler.Draw(draw.options, draw.logits, draw.log);
      } else {
        draw.to = {.token = sampler.DrawToken(draw.options, draw.logits, draw.log)};
      }
    }
  });
  draws_.clear();
}

}  // namespace ebb
