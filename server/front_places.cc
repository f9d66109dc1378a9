#include "server/front_places.h"

#include "policies/check.h"
#include "server/scheduler.h"

namespace ebb {

std::shared_ptr<FrontPlaces::Place> FrontPlaces::Take(const std::string& tenant) {
  const absl::MutexLock lock(&mutex_);
  const auto found = of_.find(tenant);
  const int own = found == of_.end() ? 0 : found->second;
  if (taken_ >= QueuePlaces(most_, own)) return nullptr;
  ++taken_;
  ++of_[tenant];
  return std::make_shared<Place>(*this, tenant);
}

int FrontPlaces::taken() {
  const absl::MutexLock lock(&mutex_);
  return taken_;
}

void FrontPlaces::GiveBack(const std::string& tenant) {
  const absl::MutexLock lock(&mutex_);
  const auto found = of_.find(tenant);
  EBB_CHECK(found != of_.end());
  --taken_;
  if (--found->second == 0) of_.erase(found);
}

}  // namespace ebb
