// ebb.v1.InferenceService: check, convert, start a call on the worker.

#ifndef EBB_SERVER_INFERENCE_SERVICE_H_
#define EBB_SERVER_INFERENCE_SERVICE_H_

#include <string>

#include "absl/status/statusor.h"
#include "ebb/v1/inference.grpc.pb.h"
#include "server/call.h"
#include "server/rpc.h"

namespace ebb {

class InferenceService final : public v1::InferenceService::CallbackService {
 public:
  explicit InferenceService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerWriteReactor<v1::PrefillResponse>* Prefill(grpc::CallbackServerContext* context,
                                                         const v1::PrefillRequest* request) override;
  grpc::ServerWriteReactor<v1::DecodeResponse>* Decode(grpc::CallbackServerContext* context,
                                                       const v1::DecodeRequest* request) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Verify(grpc::CallbackServerContext* context, const v1::VerifyRequest* request,
                                   v1::VerifyResponse* response) override;
  grpc::ServerUnaryReactor* Accept(grpc::CallbackServerContext* context, const v1::AcceptRequest* request,
                                   v1::AcceptResponse* response) override;
  grpc::ServerUnaryReactor* Edit(grpc::CallbackServerContext* context, const v1::EditRequest* request,
                                 v1::EditResponse* response) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context, const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ReportOutcome(grpc::CallbackServerContext* context, const v1::ReportOutcomeRequest* request,
                                          v1::ReportOutcomeResponse* response) override;

 private:
  absl::StatusOr<ModelCall> PrefillCall(const std::string& tenant, const v1::PrefillRequest& request) const;
  absl::StatusOr<ModelCall> DecodeCall(const std::string& tenant, const v1::DecodeRequest& request) const;
  absl::StatusOr<ModelCall> GenerateCall(const std::string& tenant, const v1::GenerateRequest& request) const;
  absl::StatusOr<ModelCall> GenerateOnce(const std::string& tenant, const v1::GenerateRequest& request) const;
  absl::StatusOr<ModelCall> VerifyCall(const std::string& tenant, const v1::VerifyRequest& request) const;
  absl::StatusOr<ModelCall> EditCall(const std::string& tenant, const v1::EditRequest& request) const;
  absl::StatusOr<ModelCall> ScoreCall(const std::string& tenant, const v1::ScoreRequest& request) const;

  const ServiceParts& parts_;
};

}  // namespace ebb

#endif  // EBB_SERVER_INFERENCE_SERVICE_H_
