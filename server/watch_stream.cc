#include "server/watch_stream.h"

#include <utility>

#include "server/reply.h"

namespace ebb {

WatchStream::WatchStream(const ServiceParts& parts, const grpc::CallbackServerContext& context)
    : StreamReactor(parts.stream_buffer),
      parts_(parts),
      context_(context),
      hold_(context),
      rpc_(parts, "EvictionService/WatchEvictions", context) {
  parts_.streams.Add(context_);
}

void WatchStream::Start(const absl::StatusOr<OfModel<WatchRequest>>& watch) {
  if (!watch.ok()) return End(watch.status());
  const ModelLease model = hold_.Take(watch->model);
  rpc_.About(watch->question.session, model->name());
  model->worker().Watch(hold_.id(), watch->question, *this);
}

bool WatchStream::OnEviction(const EvictionEvent& event, bool with_victims) {
  if (!HasRoom()) {
    ++lost_;
    return false;
  }
  v1::WatchEvictionsResponse message;
  message.set_events_lost(std::exchange(lost_, 0));
  *message.mutable_eviction() = EvictionProto(event, with_victims);
  Push(std::move(message));
  return true;
}

// One message more than there is room for: nobody else would say what was lost at last.
void WatchStream::End(const absl::Status& status) {
  if (lost_ > 0) {
    v1::WatchEvictionsResponse message;
    message.set_events_lost(lost_);
    Push(std::move(message));
  }
  Close(rpc_.Finish(status), false);
}

}  // namespace ebb
