// The methods of AdminService that tell of tenants, and change what they may have.

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/status.h"
#include "server/admin_service.h"
#include "server/convert.h"
#include "server/convert_tenant.h"
#include "server/log.h"

namespace ebb {

grpc::ServerUnaryReactor* AdminService::ListTenants(grpc::CallbackServerContext* context,
                                                    const v1::ListTenantsRequest* request,
                                                    v1::ListTenantsResponse* response) {
  using Views = std::vector<TenantView>;
  using Question = EachModel<Views>::Question;
  const absl::StatusOr<ListPage> page = PageFrom(request->page_size(), request->page_token(), "ListTenants");
  return AskAll<Views>(
      parts_, "AdminService/ListTenants", *context,
      [&](const std::string& /*tenant*/) -> absl::StatusOr<Question> {
        EBB_TRY(page.status());
        return Question([page = *page](Dispatcher& dispatcher) -> absl::StatusOr<Views> {
          return dispatcher.Tenants(page.after, page.count + 1);  // one more tells whether there is another page
        });
      },
      [this, response, page](const std::vector<ModelAnswer<Views>>& answers) {
        std::map<std::string_view, const TenantView*> by_name;  // what a tenant has in use is of all models
        for (const ModelAnswer<Views>& answer : answers) {
          for (const TenantView& view : answer.result) by_name.emplace(view.name, &view);
        }
        std::string_view last;
        for (const auto& [name, view] : by_name) {
          if (static_cast<size_t>(response->tenants_size()) == page->count) {
            response->set_next_page_token(std::string(last));
            break;
          }
          *response->add_tenants() = TenantProto(*view, parts_.tenant_settings->IsConfigured(view->name));
          last = name;
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* AdminService::SetTenant(grpc::CallbackServerContext* context,
                                                  const v1::SetTenantRequest* request, v1::Tenant* response) {
  return Reply(parts_, "AdminService/SetTenant", *context, [&](Rpc& /*rpc*/) -> absl::Status {
    EBB_TRY(CheckSize(parts_, *request));
    EBB_ASSIGN(const std::string id, TenantIdFrom(request->tenant().name()));
    EBB_ASSIGN(const TenantLimits limits, parts_.tenant_settings->Give(id, [&](const TenantLimits& before) {
      return ChangedLimits(request->tenant(), before, LimitsOf(parts_.models.main().worker().model()));
    }));
    LogInfo("tenant_set", {{"tenant", id}}, "an admin gave it other settings, until the server ends");
    *response = TenantProto(id, limits, false);
    return absl::OkStatus();
  });
}

}  // namespace ebb
