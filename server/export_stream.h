// The stream of an ExportExperiment call. The next part is made when the last is written, so that a slow reader costs
// one part's memory and nobody else's time.

#ifndef EBB_SERVER_EXPORT_STREAM_H_
#define EBB_SERVER_EXPORT_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <optional>

#include "ebb/v1/admin.pb.h"
#include "server/experiment_export.h"
#include "server/rpc.h"

namespace ebb {

class ExportStream final : public grpc::ServerWriteReactor<v1::ExperimentPart> {
 public:
  ExportStream(const ServiceParts& parts, const grpc::CallbackServerContext& context);
  ~ExportStream() override { parts_.streams.Remove(context_); }

  // Begins, or ends with the refusal. The stream may be gone when this returns.
  void Start(const v1::ExportExperimentRequest& request);

 private:
  absl::StatusOr<ExperimentExport> Open(const v1::ExportExperimentRequest& request) const;
  void WriteNext();
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

  const ServiceParts& parts_;
  const grpc::CallbackServerContext& context_;
  Rpc rpc_;
  std::optional<ExperimentExport> export_ = {};
  v1::ExperimentPart part_ = {};  // on its way
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPORT_STREAM_H_
