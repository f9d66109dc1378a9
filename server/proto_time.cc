#include "server/proto_time.h"

namespace ebb {

google::protobuf::Duration DurationProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  absl::Duration rest;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &rest));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  return proto;
}

google::protobuf::Timestamp TimestampProto(absl::Time time) {
  const google::protobuf::Duration since = DurationProto(time - absl::UnixEpoch());
  google::protobuf::Timestamp proto;
  proto.set_seconds(since.seconds());
  proto.set_nanos(since.nanos());
  return proto;
}

absl::Time TimeFrom(const google::protobuf::Timestamp& proto) {
  return absl::FromUnixSeconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

}  // namespace ebb
