// The methods of AdminService that tell of tenants, and change what they may have.

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/admin_service.h"
#include "server/convert_tenant.h"
#include "server/log.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

constexpr uint32_t kTenantPage = 100;
constexpr uint32_t kTenantPageMax = 1000;

}  // namespace

grpc::ServerUnaryReactor* AdminService::ListTenants(grpc::CallbackServerContext* context,
                                                    const v1::ListTenantsRequest* request,
                                                    v1::ListTenantsResponse* response) {
  using Views = std::vector<TenantView>;
  using Question = EachModel<Views>::Question;
  const size_t count = request->page_size() == 0 ? kTenantPage : request->page_size();
  return AskAll<Views>(
      parts_, "AdminService/ListTenants", *context,
      [&](const std::string& /*tenant*/) -> absl::StatusOr<Question> {
        if (request->page_size() > kTenantPageMax) {
          return RefuseField("OUT_OF_RANGE", "page_size",
                             absl::StrFormat("%d is not in [0, %d]", request->page_size(), kTenantPageMax));
        }
        // A page token is the name of the last tenant that was listed.
        const std::string& after = request->page_token();
        if (!after.empty() && !IsResourceName(after)) {
          return RefuseField("INVALID_PAGE_TOKEN", "page_token", "it is not one that ListTenants gave");
        }
        return Question([after, count](Dispatcher& dispatcher) -> absl::StatusOr<Views> {
          return dispatcher.Tenants(after, count + 1);  // one more tells whether there is another page
        });
      },
      [this, response, count](const std::vector<ModelAnswer<Views>>& answers) {
        std::map<std::string_view, const TenantView*> by_name;  // what a tenant has in use is of all models
        for (const ModelAnswer<Views>& answer : answers) {
          for (const TenantView& view : answer.result) by_name.emplace(view.name, &view);
        }
        std::string_view last;
        for (const auto& [name, view] : by_name) {
          if (static_cast<size_t>(response->tenants_size()) == count) {
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
  return Reply(parts_, "AdminService/SetTenant", *context, [&]() -> absl::Status {
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
