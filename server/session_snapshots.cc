// SaveSession, RestoreSession and the list of snapshots. A session is copied by the worker in pieces between steps, and
// all that takes a disk's time, or a checksum's, is the store's thread's.

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/convert.h"
#include "server/proto_time.h"
#include "server/reply.h"
#include "server/resource_name.h"
#include "server/saved_session.h"
#include "server/session_service.h"

namespace ebb {
namespace {

constexpr char kSnapshots[] = "snapshots/";

// A call that ends on another thread than it began.
struct Pending {
  Rpc rpc;
  grpc::CallbackServerContext* context = nullptr;
  grpc::ServerUnaryReactor* reactor = nullptr;

  grpc::ServerUnaryReactor* End(const absl::Status& status) {
    reactor->Finish(rpc.Finish(status));
    return reactor;
  }
  // Whoever asked is gone, or no longer waits: nothing more is to be done for them.
  absl::Status CheckWaits() const { return ebb::CheckWaits(*context); }
};

Pending Begin(const ServiceParts& parts, std::string_view method, grpc::CallbackServerContext* context) {
  return {.rpc = Rpc(parts, method, *context), .context = context, .reactor = context->DefaultReactor()};
}

// The caller's, where there is a store. Who calls comes first: a stranger is not told what this server keeps.
absl::StatusOr<std::string> TenantWithStore(const Rpc& rpc, const ServiceParts& parts) {
  if (!rpc.tenant().ok() || parts.store != nullptr) return rpc.tenant();
  return Refuse(absl::StatusCode::kFailedPrecondition, "this server keeps nothing; start it with store.dir",
                {.reason = "NO_STORE"});
}

// Runs `job(call, files)` on the store's thread; it ends the call.
template <typename Job>
void OnStore(const ServiceParts& parts, Pending call, Job job) {
  auto run = [call, job = std::move(job)](SnapshotStore& files) mutable {
    try {
      job(call, files);
    } catch (const std::bad_alloc&) {
      call.End(Refuse(absl::StatusCode::kUnavailable, "no memory for the snapshot",
                      {.reason = "NO_MEMORY", .retry = absl::Seconds(1)}));
    }
  };
  if (parts.store->Offer(std::move(run))) return;
  call.End(Refuse(absl::StatusCode::kUnavailable, "too many calls wait for the store",
                  {.reason = "QUEUE_FULL", .retry = absl::Seconds(1)}));
}

absl::StatusOr<std::string> SnapshotIdFrom(const std::string& name, const std::string& field) {
  const std::string_view prefix = kSnapshots;
  if (!name.starts_with(prefix) || !IsResourceName(std::string_view(name).substr(prefix.size()))) {
    return RefuseField("INVALID_NAME", field,
                       absl::StrFormat("a snapshot's name is %s%s", kSnapshots, kResourceNamePattern));
  }
  return name.substr(prefix.size());
}

v1::Snapshot SnapshotProto(const SnapshotStore::Entry& entry) {
  v1::Snapshot proto;
  proto.set_name(kSnapshots + entry.id);
  proto.set_bytes(static_cast<uint64_t>(entry.bytes));
  *proto.mutable_create_time() = TimestampProto(entry.saved);
  return proto;
}

struct SaveRequest {
  std::string tenant = {};
  std::string session = {};
  std::string snapshot = {};
  std::optional<uint64_t> expected = {};
};

absl::StatusOr<SaveRequest> SaveFrom(const v1::SaveSessionRequest& proto, const Rpc& rpc, const ServiceParts& parts) {
  EBB_ASSIGN(const std::string tenant, TenantWithStore(rpc, parts));
  EBB_ASSIGN(const std::string session, SessionIdFrom(proto.session(), "session"));
  SaveRequest request = {
      .tenant = tenant, .session = session, .snapshot = proto.snapshot_id().empty() ? session : proto.snapshot_id()};
  EBB_TRY(CheckSessionId(request.snapshot, "snapshot_id"));
  if (proto.has_expected_generation()) request.expected = proto.expected_generation();
  return request;
}

// The session to be; `snapshot` gets the id of what it comes from.
absl::StatusOr<SessionRequest> RestoreFrom(const v1::RestoreSessionRequest& proto, const Rpc& rpc,
                                           const ServiceParts& parts, std::string& snapshot) {
  EBB_ASSIGN(const std::string tenant, TenantWithStore(rpc, parts));
  EBB_ASSIGN(snapshot, SnapshotIdFrom(proto.snapshot(), "snapshot"));
  SessionRequest request = {.tenant = tenant,
                            .id = proto.session_id().empty() ? NewSessionId() : proto.session_id(),
                            .request_id = proto.request_id()};
  EBB_TRY(CheckSessionId(request.id, "session_id"));
  EBB_TRY(CheckRequestId(request.request_id));
  return request;
}

}  // namespace

grpc::ServerUnaryReactor* SessionService::SaveSession(grpc::CallbackServerContext* context,
                                                      const v1::SaveSessionRequest* request,
                                                      v1::SaveSessionResponse* response) {
  Pending call = Begin(parts_, "SessionService/SaveSession", context);
  absl::StatusOr<SaveRequest> wanted = SaveFrom(*request, call.rpc, parts_);
  if (!wanted.ok()) return call.End(wanted.status());
  const absl::StatusOr<ModelLease> model = parts_.models.Of(wanted->tenant, wanted->session);
  if (!model.ok()) return call.End(model.status());
  call.rpc.About(wanted->session, (*model)->name());
  auto keep = [this, call, response, model = *model, wanted = *wanted](absl::StatusOr<SaveOutcome> outcome) mutable {
    if (!outcome.ok()) {
      call.End(outcome.status());
      return;
    }
    response->set_generation(outcome->generation);
    response->set_tokens(static_cast<uint64_t>(outcome->tokens));
    OnStore(parts_, call,
            [this, response, wanted = std::move(wanted), saved = *std::move(outcome)](Pending& to_end,
                                                                                      SnapshotStore& files) mutable {
              if (const absl::Status waits = to_end.CheckWaits(); !waits.ok()) {
                to_end.End(waits);
                return;
              }
              const absl::Time start = parts_.clock.Now();
              const auto entry =
                  files.Write(Shelf::kSnapshots, wanted.tenant, wanted.snapshot, SnapshotOf(std::move(saved)),
                              LimitsOf(parts_, wanted.tenant).snapshot_bytes_max);
              if (entry.ok()) {
                parts_.metrics.store().saved_bytes.Add(static_cast<double>(entry->bytes));
                parts_.metrics.store().save_seconds.Observe(parts_.clock.Now() - start);
                *response->mutable_snapshot() = SnapshotProto(*entry);
              }
              to_end.End(entry.status());
            });
  };
  (*model)->worker().Undertake<SaveOutcome>(
      [wanted = *wanted](Dispatcher& dispatcher, Asker<SaveOutcome> asker) {
        dispatcher.Save(wanted.tenant, wanted.session, wanted.expected, std::move(asker));
      },
      {.answer = std::move(keep), .is_gone = [context] { return context->IsCancelled(); }});
  return call.reactor;
}

grpc::ServerUnaryReactor* SessionService::RestoreSession(grpc::CallbackServerContext* context,
                                                         const v1::RestoreSessionRequest* request,
                                                         v1::Session* response) {
  Pending call = Begin(parts_, "SessionService/RestoreSession", context);
  std::string snapshot;
  absl::StatusOr<SessionRequest> session = RestoreFrom(*request, call.rpc, parts_, snapshot);
  if (!session.ok()) return call.End(session.status());
  const absl::StatusOr<ModelLease> found = parts_.models.Find(request->model());
  if (!found.ok()) return call.End(found.status());
  call.rpc.About(session->id, (*found)->name());
  OnStore(parts_, call,
          [this, response, snapshot, model = *found, session = *session](Pending& to_end, SnapshotStore& files) {
            const absl::Time start = parts_.clock.Now();
            auto read = files.Read(Shelf::kSnapshots, session.tenant, snapshot);
            auto loaded = read.ok() ? LoadSession(model->worker(), *std::move(read)) : read.status();
            if (!loaded.ok()) {
              to_end.End(loaded.status());
              return;
            }
            SessionRequest& request_of = (*loaded)->past.saved.request;
            request_of.tenant = session.tenant;
            request_of.id = session.id;
            request_of.request_id = session.request_id;
            (*loaded)->past.saved.past.reset();  // another session, which begins here
            parts_.metrics.store().restored_bytes.Add(static_cast<double>((*loaded)->bytes.size()));
            model->worker().Undertake<SessionInfo>(
                [loaded = *std::move(loaded)](Dispatcher& dispatcher, Asker<SessionInfo> asker) mutable {
                  dispatcher.Restore(std::move(loaded), std::move(asker));
                },
                {.answer =
                     [this, to_end, response, start, model](absl::StatusOr<SessionInfo> info) mutable {
                       if (info.ok()) {
                         parts_.metrics.store().restore_seconds.Observe(parts_.clock.Now() - start);
                         *response = SessionProto(*info, model->name());
                       }
                       to_end.End(info.status());
                     },
                 .is_gone = [to_end] { return !to_end.CheckWaits().ok(); }});  // nobody would know of the session
          });
  return call.reactor;
}

grpc::ServerUnaryReactor* SessionService::ListSnapshots(grpc::CallbackServerContext* context,
                                                        const v1::ListSnapshotsRequest* request,
                                                        v1::ListSnapshotsResponse* response) {
  Pending call = Begin(parts_, "SessionService/ListSnapshots", context);
  const absl::StatusOr<std::string> tenant = TenantWithStore(call.rpc, parts_);
  if (!tenant.ok()) return call.End(tenant.status());
  const absl::StatusOr<ListPage> page = PageFrom(request->page_size(), request->page_token(), "ListSnapshots");
  if (!page.ok()) return call.End(page.status());
  OnStore(parts_, call, [response, page = *page, tenant = *tenant](Pending& to_end, SnapshotStore& files) {
    const auto entries = files.List(Shelf::kSnapshots, tenant, page.after,
                                    page.count + 1);  // one more tells whether there is another page
    for (size_t i = 0; entries.ok() && i < entries->size() && i < page.count; ++i) {
      *response->add_snapshots() = SnapshotProto((*entries)[i]);
    }
    if (entries.ok() && entries->size() > page.count) {
      response->set_next_page_token((*entries)[page.count - 1].id);
    }
    to_end.End(entries.status());
  });
  return call.reactor;
}

grpc::ServerUnaryReactor* SessionService::DeleteSnapshot(grpc::CallbackServerContext* context,
                                                         const v1::DeleteSnapshotRequest* request,
                                                         v1::DeleteSnapshotResponse* /*response*/) {
  Pending call = Begin(parts_, "SessionService/DeleteSnapshot", context);
  const absl::StatusOr<std::string> tenant = TenantWithStore(call.rpc, parts_);
  if (!tenant.ok()) return call.End(tenant.status());
  const auto id = SnapshotIdFrom(request->name(), "name");
  if (!id.ok()) return call.End(id.status());
  OnStore(parts_, call, [tenant = *tenant, id = *id](Pending& to_end, SnapshotStore& files) {
    to_end.End(files.Delete(Shelf::kSnapshots, tenant, id));
  });
  return call.reactor;
}

}  // namespace ebb
