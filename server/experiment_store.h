// Where experiments are that outlive their server: in a folder of its own (server/experiment_folder.h) or in a Redis
// that servers share (server/redis_experiments.h). Each is an image (server/experiment_image.h); what is in one is none
// of a store's business. One thread at a time.

#ifndef EBB_SERVER_EXPERIMENT_STORE_H_
#define EBB_SERVER_EXPERIMENT_STORE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ebb {

class ExperimentStore {
 public:
  // An experiment that a server left when it ended.
  struct Left {
    std::string id = {};      // a resource name
    std::string place = {};   // where it is, of which only the store knows more; the same as long as it is there
    std::string beside = {};  // an id that no other has, for who has another experiment of that name

    bool operator==(const Left&) const = default;
  };
  using Lefts = std::vector<Left>;

  virtual ~ExperimentStore() = default;

  // What is there of servers that are gone: from now on nobody else's. Errors of all of these: UNAVAILABLE
  // STORE_FAILED, and of a folder STORE_FULL.
  virtual absl::StatusOr<Lefts> Find() = 0;
  // NOT_FOUND, too: it is no longer there.
  virtual absl::StatusOr<std::string> Read(const Left& left) = 0;
  // Nobody finds it any more; whoever looks after the store does, by the name that is returned.
  virtual absl::StatusOr<std::string> SetAside(const Left& left) = 0;
  // Other servers may find what is in this place.
  virtual absl::Status Leave(const std::string& place) = 0;

  // This server's own. In one step takes the place of what it had of it and of `merged`, which is in it. ABORTED:
  // another server took what this one had written, since it seemed to be gone; what it writes from now on is kept, as
  // that of a server that has just started.
  virtual absl::Status Write(const std::string& id, std::string_view image, const Lefts& merged) = 0;
  virtual absl::Status Remove(const std::string& id, const Lefts& merged) = 0;

  // Since this was last asked the store may have forgotten what it had acknowledged.
  virtual bool HasBeenAway() = 0;
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENT_STORE_H_
