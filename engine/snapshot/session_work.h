// A session's image written and opened in pieces (cache_work.h): a few lanes of K and V each.

#ifndef EBB_ENGINE_SNAPSHOT_SESSION_WORK_H_
#define EBB_ENGINE_SNAPSHOT_SESSION_WORK_H_

#include <memory>

#include "engine/cache/page_pool.h"
#include "engine/cache_work.h"
#include "engine/parallel.h"
#include "engine/session_on_engine.h"
#include "engine/snapshot/session_image.h"

namespace ebb {

// Everything but K and V is written here and now. REQUIRES: CheckSettled, and so until the work is done.
std::unique_ptr<SaveWork> BeginSaveOf(const SessionOnEngine& session, const ImageLimits& limits);

// REQUIRES: the lease has image.pages() pages. `threads` fill them, and outlive the work.
std::unique_ptr<ReopenWork> BeginReopenOf(SessionImage& image, PageLease lease, Parallel& threads);

}  // namespace ebb

#endif  // EBB_ENGINE_SNAPSHOT_SESSION_WORK_H_
