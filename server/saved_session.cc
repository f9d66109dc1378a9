#include "server/saved_session.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "ebb/store/v1/snapshot.pb.h"
#include "policies/status.h"
#include "server/convert.h"
#include "server/proto_time.h"
#include "server/reply.h"

namespace ebb {
namespace {

// The server's record of a snapshot.
std::string SavedText(const SavedSession& saved) {
  store::v1::SavedSession proto;
  *proto.mutable_sampling() = SamplingProto(saved.request.sampling);
  if (saved.request.ttl != absl::InfiniteDuration()) *proto.mutable_ttl() = DurationProto(saved.request.ttl);
  proto.set_prompt_tokens(saved.prompt_tokens);
  proto.set_completion_tokens(saved.completion_tokens);
  proto.set_evicting_steps(saved.evicting_steps);
  proto.set_past_context(saved.past_context);
  proto.mutable_logits()->Add(saved.logits.begin(), saved.logits.end());
  if (saved.past) {
    proto.set_generation(saved.past->generation);
    *proto.mutable_create_time() = TimestampProto(saved.past->created);
    proto.set_request_id(saved.request.request_id);
  }
  return proto.SerializeAsString();
}

absl::StatusOr<SavedSession> SavedFrom(std::span<const SnapshotRecord> records, int32_t vocab) {
  const auto record = std::ranges::find(records, RecordKind::kServer, &SnapshotRecord::kind);
  store::v1::SavedSession proto;
  if (record == records.end() ||
      !proto.ParseFromArray(record->payload.data(), static_cast<int>(record->payload.size()))) {
    return SnapshotDamaged("a record of the server is expected");
  }
  SavedSession saved = {.logits = {proto.logits().begin(), proto.logits().end()},
                        .prompt_tokens = proto.prompt_tokens(),
                        .completion_tokens = proto.completion_tokens(),
                        .evicting_steps = proto.evicting_steps(),
                        .past_context = proto.past_context()};
  const auto sampling = SamplingFrom(proto.sampling(), {}, vocab);
  if (!sampling.ok()) return SnapshotDamaged(std::string(sampling.status().message()));
  saved.request.sampling = *sampling;
  if (proto.has_ttl()) {
    saved.request.ttl = absl::Seconds(proto.ttl().seconds()) + absl::Nanoseconds(proto.ttl().nanos());
    if (saved.request.ttl < absl::Seconds(1)) return SnapshotDamaged("its ttl is below a second");
  }
  if (saved.prompt_tokens < 0 || saved.completion_tokens < 0 || saved.evicting_steps < 0) {
    return SnapshotDamaged("a count is below 0");
  }
  if (proto.generation() > 0) {
    saved.past = {.generation = proto.generation(), .created = TimeFrom(proto.create_time())};
    saved.request.request_id = proto.request_id();
  }
  return saved;
}

}  // namespace

std::string SnapshotOf(SaveOutcome outcome) {
  outcome.snapshot.Begin(RecordKind::kServer);
  outcome.snapshot.AddRaw(SavedText(outcome.session));
  std::string bytes = outcome.snapshot.Finish();
  SealSnapshot(bytes);
  return bytes;
}

absl::StatusOr<std::unique_ptr<LoadedSession>> LoadSession(const ImageLimits& limits, int32_t vocab,
                                                           SnapshotBytes snapshot) {
  auto loaded = std::make_unique<LoadedSession>();
  loaded->bytes = std::move(snapshot.bytes);
  EBB_ASSIGN(const std::vector<SnapshotRecord> records, snapshot.check.Finish(std::as_bytes(std::span(loaded->bytes))));
  EBB_ASSIGN(loaded->past.image, ReadSession(records, limits));
  EBB_ASSIGN(loaded->past.saved, SavedFrom(records, vocab));
  return loaded;
}

}  // namespace ebb
