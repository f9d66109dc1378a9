// The output of a WatchEvictions call: events become messages while there is room for them, and are counted where there
// is none.

#ifndef EBB_SERVER_WATCH_STREAM_H_
#define EBB_SERVER_WATCH_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "ebb/v1/eviction.pb.h"
#include "server/model_hold.h"
#include "server/rpc.h"
#include "server/stream_reactor.h"
#include "server/watchers.h"

namespace ebb {

class WatchStream final : public StreamReactor<v1::WatchEvictionsResponse>, public EvictionWatcher {
 public:
  WatchStream(const ServiceParts& parts, const grpc::CallbackServerContext& context);
  ~WatchStream() override { parts_.streams.Remove(context_); }

  const Rpc& rpc() const { return rpc_; }
  // Asks a model's worker for the watch, or ends with the refusal. The stream may be gone when this returns.
  void Start(const absl::StatusOr<OfModel<WatchRequest>>& watch);

 private:
  void Begin() override { StartSendInitialMetadata(); }
  bool OnEviction(const EvictionEvent& event, bool with_victims) override;
  void End(const absl::Status& status) override;

  void OnCaughtUp() override {}
  void OnCancel() override {
    if (hold_.was_taken()) hold_.worker().Unwatch(hold_.id());
  }
  void OnWrite(v1::WatchEvictionsResponse& message, uint64_t sequence) override { message.set_sequence(sequence); }
  bool Merge(v1::WatchEvictionsResponse& /*waiting*/, v1::WatchEvictionsResponse& /*next*/) override { return false; }

  const ServiceParts& parts_;
  const grpc::CallbackServerContext& context_;
  ModelHold hold_;
  Rpc rpc_;
  uint64_t lost_ = 0;  // not yet told of; the worker's thread's
};

}  // namespace ebb

#endif  // EBB_SERVER_WATCH_STREAM_H_
