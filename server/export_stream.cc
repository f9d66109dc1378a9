#include "server/export_stream.h"

#include <string>
#include <utility>

#include "policies/status.h"
#include "server/convert_experiment.h"

namespace ebb {

ExportStream::ExportStream(const ServiceParts& parts, const grpc::CallbackServerContext& context)
    : parts_(parts), context_(context), rpc_(parts, "AdminService/ExportExperiment", context) {
  parts_.streams.Add(context_);
}

absl::StatusOr<ExperimentExport> ExportStream::Open(const v1::ExportExperimentRequest& request) const {
  EBB_TRY(rpc_.tenant().status());
  EBB_ASSIGN(const std::string id, ExperimentIdFrom(request.name()));
  return ExperimentExport::Of(*parts_.experiments, id);
}

void ExportStream::Start(const v1::ExportExperimentRequest& request) {
  absl::StatusOr<ExperimentExport> opened = Open(request);
  if (!opened.ok()) return Finish(rpc_.Finish(opened.status()));
  export_ = *std::move(opened);
  WriteNext();
}

void ExportStream::WriteNext() {
  absl::StatusOr<std::optional<v1::ExperimentPart>> next = export_->Next();
  if (!next.ok() || !*next) return Finish(rpc_.Finish(next.status()));
  part_ = **std::move(next);
  StartWrite(&part_);
}

void ExportStream::OnWriteDone(bool ok) {
  if (ok) return WriteNext();
  Finish(rpc_.Finish(CheckWaits(context_)));
}

}  // namespace ebb
