// Times and durations as protobuf has them.

#ifndef EBB_SERVER_PROTO_TIME_H_
#define EBB_SERVER_PROTO_TIME_H_

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace ebb {

google::protobuf::Duration DurationProto(absl::Duration duration);
google::protobuf::Timestamp TimestampProto(absl::Time time);
// The same time, to the nanosecond.
absl::Time TimeFrom(const google::protobuf::Timestamp& proto);

}  // namespace ebb

#endif  // EBB_SERVER_PROTO_TIME_H_
