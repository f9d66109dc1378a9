// ebb.v1.SessionService: check, convert, ask the worker.

#ifndef EBB_SERVER_SESSION_SERVICE_H_
#define EBB_SERVER_SESSION_SERVICE_H_

#include "ebb/v1/session.grpc.pb.h"
#include "server/rpc.h"

namespace ebb {

class SessionService final : public v1::SessionService::CallbackService {
 public:
  explicit SessionService(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* context, const v1::CreateSessionRequest* request,
                                          v1::Session* response) override;
  grpc::ServerUnaryReactor* ForkSession(grpc::CallbackServerContext* context, const v1::ForkSessionRequest* request,
                                        v1::Session* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context, const v1::GetSessionRequest* request,
                                       v1::Session* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context, const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* context, const v1::DeleteSessionRequest* request,
                                          v1::DeleteSessionResponse* response) override;

  // session_snapshots.cc
  grpc::ServerUnaryReactor* SaveSession(grpc::CallbackServerContext* context, const v1::SaveSessionRequest* request,
                                        v1::SaveSessionResponse* response) override;
  grpc::ServerUnaryReactor* RestoreSession(grpc::CallbackServerContext* context,
                                           const v1::RestoreSessionRequest* request, v1::Session* response) override;
  grpc::ServerUnaryReactor* ListSnapshots(grpc::CallbackServerContext* context, const v1::ListSnapshotsRequest* request,
                                          v1::ListSnapshotsResponse* response) override;
  grpc::ServerUnaryReactor* DeleteSnapshot(grpc::CallbackServerContext* context,
                                           const v1::DeleteSnapshotRequest* request,
                                           v1::DeleteSnapshotResponse* response) override;

 private:
  const ServiceParts& parts_;
};

}  // namespace ebb

#endif  // EBB_SERVER_SESSION_SERVICE_H_
