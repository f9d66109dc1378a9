// Requests of ebb.v1 to plain structs, checked: what passes here is in range, or the refusal names the field and the
// range. By reflection where names agree: an arm of PolicySpec.scorer is a registry key and its fields are the scorer's
// parameters, so that a new scorer changes nothing here.
//
// All functions are pure; any thread may call.

#ifndef EBB_SERVER_CONVERT_H_
#define EBB_SERVER_CONVERT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ebb/v1/eviction.pb.h"
#include "ebb/v1/inference.pb.h"
#include "ebb/v1/session.pb.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/text/tokenizer.h"
#include "policies/spec.h"
#include "server/call.h"
#include "server/dispatcher.h"

namespace ebb {

// The tenant's name, `[a-z0-9][a-z0-9._-]{0,62}`; empty: `default`. INVALID_ARGUMENT INVALID_TENANT.
absl::StatusOr<std::string> TenantFrom(std::string_view metadata);

// The id of `sessions/{id}` or of a session to be. INVALID_ARGUMENT INVALID_NAME, field `field`.
absl::StatusOr<std::string> SessionIdFrom(const std::string& name, const std::string& field);
absl::Status CheckSessionId(const std::string& id, const std::string& field);
// One that nobody can guess.
std::string NewSessionId();

// INVALID_ARGUMENT TOO_LONG, field request_id.
absl::Status CheckRequestId(const std::string& id);

// A part of a list, which goes by names.
struct ListPage {
  size_t count = 0;
  std::string after = {};  // the last name that was listed before; empty: the list begins
};
// `method` is whose token it is. INVALID_ARGUMENT OUT_OF_RANGE (page_size), INVALID_PAGE_TOKEN.
absl::StatusOr<ListPage> PageFrom(uint32_t size, const std::string& token, const char* method);

// Holes stay holes, and ranges are Resolve's to check. INVALID_ARGUMENT UNKNOWN_ENUM_VALUE with a field path that
// begins with `policy`.
absl::StatusOr<PolicySpec> PolicyFrom(const v1::PolicySpec& proto);
// PolicyFrom and Resolve.
absl::StatusOr<ValidSpec> ValidPolicyFrom(const v1::PolicySpec& proto, const SpecLimits& limits);

// `defaults` with the fields that are set; checked. INVALID_ARGUMENT with a field path that begins with `sampling`.
absl::StatusOr<SamplingOptions> SamplingFrom(const v1::Sampling& proto, const SamplingOptions& defaults, int32_t vocab);

// Fills sampling.logprobs too. INVALID_ARGUMENT with a field path that begins with `stopping`.
absl::StatusOr<StoppingOptions> StoppingFrom(const v1::Stopping& proto, int32_t vocab, SamplingOptions& sampling);

// In [1, max]; absent: `preset`, cut to `max`. INVALID_ARGUMENT OUT_OF_RANGE, field block_size.
absl::StatusOr<int32_t> BlockSizeFrom(std::optional<uint32_t> proto, int32_t preset, int32_t max);

// Token ids in [0, vocab). INVALID_ARGUMENT TOKEN_OUT_OF_RANGE, field `field`[i].
absl::StatusOr<std::vector<int32_t>> TokensFrom(const google::protobuf::RepeatedField<uint32_t>& ids, int32_t vocab,
                                                const std::string& field);

// The tokens that continue a log which ends with `log_tail` (its last two tokens at least, if it has them). Never
// empty. Errors, with a field path that begins with `field`: EMPTY_PROMPT, TOKEN_OUT_OF_RANGE, those of EncodeChat.
absl::StatusOr<std::vector<int32_t>> PromptFrom(const v1::Prompt& proto, const Tokenizer& tokenizer,
                                                std::span<const int32_t> log_tail, const std::string& field);
// `draft_model`: what clients call it; empty: there is none. INVALID_ARGUMENT OUT_OF_RANGE, DRAFTS_AMBIGUOUS; NOT_FOUND
// UNKNOWN_MODEL.
absl::StatusOr<Speculation> SpeculationFrom(const v1::Speculation& proto, std::string_view draft_model);
// What Verify asks, cut behind its first end token. INVALID_ARGUMENT: TOKEN_OUT_OF_RANGE, OUT_OF_RANGE (logprobs),
// UNKNOWN_ENUM_VALUE (mode), DRAFT_PROBABILITIES where lists of one distribution differ in length, and those of
// CheckDraft.
absl::StatusOr<DraftRequest> DraftFrom(const v1::VerifyRequest& proto, const Tokenizer& tokenizer);
// Whether what PromptFrom returns depends on the log.
bool ContinuesLog(const v1::Prompt& proto);

// ValidPolicyFrom, where the cache's format may be left to the session. INVALID_ARGUMENT MISSING without a policy.
absl::StatusOr<PolicyRequest> PolicyRequestFrom(const v1::SetPolicyRequest& proto, const SpecLimits& limits);

// INVALID_ARGUMENT with a field path: MISSING, OUT_OF_RANGE. What depends on the session, the engine checks.
absl::StatusOr<EvictRequest> EvictFrom(const v1::EvictRequest& proto);

}  // namespace ebb

#endif  // EBB_SERVER_CONVERT_H_
