// Plain structs to messages of ebb.v1.

#ifndef EBB_SERVER_REPLY_H_
#define EBB_SERVER_REPLY_H_

#include "absl/status/status.h"
#include "ebb/v1/eviction.pb.h"
#include "ebb/v1/inference.pb.h"
#include "ebb/v1/session.pb.h"
#include "engine/text/tokenizer.h"
#include "policies/spec.h"
#include "server/call.h"
#include "server/dispatcher.h"
#include "server/watchers.h"

namespace ebb {

// Every field filled in. The inverse of PolicyFrom.
v1::PolicySpec PolicyProto(const ValidSpec& spec);
v1::Sampling SamplingProto(const SamplingOptions& options);
v1::Session SessionProto(const SessionInfo& info, const std::string& model);

v1::FinishReason FinishProto(FinishReason reason);
v1::Usage UsageProto(const CallUsage& usage);
v1::Timings TimingsProto(const CallTimings& timings);
v1::TokenLogprob LogprobProto(const TokenLogprob& logprob, const Tokenizer& tokenizer);
// With what was as likely.
v1::TokenLogprob LogprobProto(const Drawn& drawn, const Tokenizer& tokenizer);

// `dry_run`: the policy in force is left out.
v1::PolicyChange PolicyChangeProto(const PolicyOutcome& outcome, bool dry_run);
// Of a session that kept its policy. REQUIRES: not OK.
v1::PolicyRefusal PolicyRefusalProto(const absl::Status& status);
// `with_victims`: who they were, too.
v1::EvictResponse EvictProto(const EvictOutcome& outcome, bool with_victims);
// `with_victims`: who left, too, unless they are too many for one message.
v1::Eviction EvictionProto(const EvictionEvent& event, bool with_victims);
// Every `stride`-th entry of each lane, from the first.
v1::LaneDescription LaneProto(const LaneReport& lane, int32_t stride);

}  // namespace ebb

#endif  // EBB_SERVER_REPLY_H_
