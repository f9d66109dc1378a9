// Places for requests at a port that all tenants share: as in the scheduler's queue, who fills them leaves others as
// many (QueuePlaces), and whoever has none finds one there. Any thread.

#ifndef EBB_SERVER_FRONT_PLACES_H_
#define EBB_SERVER_FRONT_PLACES_H_

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ebb {

class FrontPlaces {
 public:
  // One of those of a tenant, until it ends.
  class Place {
   public:
    Place(FrontPlaces& places, std::string tenant) : places_(places), tenant_(std::move(tenant)) {}
    ~Place() { places_.GiveBack(tenant_); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    FrontPlaces& places_;
    const std::string tenant_;
  };

  // At most twice `most` are ever taken.
  explicit FrontPlaces(int most) : most_(most) {}

  // Null where the tenant finds none. This outlives it.
  std::shared_ptr<Place> Take(const std::string& tenant);
  int taken();

 private:
  void GiveBack(const std::string& tenant);

  const int most_;
  absl::Mutex mutex_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> of_ ABSL_GUARDED_BY(mutex_);  // those who have some
};

}  // namespace ebb

#endif  // EBB_SERVER_FRONT_PLACES_H_
