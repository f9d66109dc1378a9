#include "server/convert_edit.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/spec.h"
#include "policies/status.h"
#include "server/convert.h"

namespace ebb {
namespace {

constexpr int kSpansMax = 4096;
constexpr uint32_t kWindow = 64;

// An index beyond any log is as good as the largest one.
int32_t Index(uint64_t value) {
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::min(value, kMost));
}

absl::StatusOr<EditSpan> SpanFrom(const v1::EditSpan& proto, const Tokenizer& tokenizer, const std::string& field) {
  EditSpan span = {.start = Index(proto.start()), .end = Index(proto.end())};
  if (proto.has_tokens()) {
    EBB_ASSIGN(span.tokens, TokensFrom(proto.tokens().ids(), tokenizer.size(), field + ".tokens.ids"));
  } else if (!proto.text().empty()) {
    const Start start = span.start == 0 ? Start::kSequence : Start::kContinuation;
    span.tokens = tokenizer.Encode(proto.text(), Special::kPlain, start);
  }
  if (span.tokens.size() > static_cast<size_t>(kBudgetMax)) {
    return RefuseField("PROMPT_TOO_LONG", field,
                       absl::StrFormat("%d tokens; at most %d", span.tokens.size(), kBudgetMax));
  }
  return span;
}

absl::StatusOr<EditMode> ModeFrom(v1::EditMode mode) {
  switch (mode) {
    case v1::EDIT_MODE_UNSPECIFIED:
    case v1::EDIT_MODE_RECOMPUTE_TAIL:
      return EditMode::kRecomputeTail;
    case v1::EDIT_MODE_REPOSITION:
      return EditMode::kReposition;
    case v1::EDIT_MODE_RECOMPUTE_SPAN:
      return EditMode::kRecomputeSpan;
    default:
      return RefuseField("UNKNOWN_ENUM_VALUE", "mode", absl::StrFormat("%d is no value of this enum", mode));
  }
}

v1::EditExactness ExactnessProto(EditExactness exactness) {
  switch (exactness) {
    case EditExactness::kExact:
      return v1::EDIT_EXACTNESS_EXACT;
    case EditExactness::kEvicted:
      return v1::EDIT_EXACTNESS_EVICTED;
    case EditExactness::kStale:
      return v1::EDIT_EXACTNESS_STALE;
  }
  return v1::EDIT_EXACTNESS_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<EditJob> EditFrom(const v1::EditRequest& proto, const Tokenizer& tokenizer) {
  EditJob job = {.edit = {.restore = proto.restore()}, .require_exact = proto.require_exact()};
  EBB_ASSIGN(job.edit.mode, ModeFrom(proto.mode()));
  if (proto.has_window() && job.edit.mode != EditMode::kRecomputeSpan) {
    return RefuseField("WINDOW_NEEDS_SPAN", "window", "only RECOMPUTE_SPAN has one; leave it out");
  }
  const uint32_t window = proto.has_window() ? proto.window() : kWindow;
  if (window > static_cast<uint32_t>(kBudgetMax)) {
    return RefuseField("OUT_OF_RANGE", "window", absl::StrFormat("%d is not in [0, %d]", window, kBudgetMax));
  }
  job.edit.window = static_cast<int32_t>(window);
  if (proto.spans_size() > kSpansMax) {
    return RefuseField("TOO_MANY", "spans", absl::StrFormat("%d spans; at most %d", proto.spans_size(), kSpansMax));
  }
  for (int i = 0; i < proto.spans_size(); ++i) {
    EBB_ASSIGN(EditSpan span, SpanFrom(proto.spans(i), tokenizer, absl::StrFormat("spans[%d]", i)));
    job.edit.spans.push_back(std::move(span));
  }
  return job;
}

void FillEdit(const EditDone& done, v1::EditResponse& response) {
  const EditPlan& plan = done.plan;
  response.set_tokens_recomputed(static_cast<uint32_t>(plan.work.size()));
  response.set_tokens_reused(static_cast<uint32_t>(plan.reused));
  response.set_tokens_stale(static_cast<uint32_t>(plan.stale));
  response.set_tokens_inserted(static_cast<uint32_t>(plan.inserted));
  response.set_tokens_removed(static_cast<uint32_t>(plan.removed));
  response.set_exactness(ExactnessProto(plan.exactness));
  response.set_elapsed_ms(absl::ToDoubleMilliseconds(done.elapsed));
}

}  // namespace ebb
