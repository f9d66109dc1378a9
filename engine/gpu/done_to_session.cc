#include "engine/gpu/done_to_session.h"

#include <algorithm>
#include <iterator>

namespace ebb {
namespace {

// Positions that follow from the log, which are all that a device knows.
bool HasNaturalPositions(const SessionOnEngine& session) {
  if (session.policy().positions == Positions::kCompacted) return true;
  if (session.next_position() != std::ssize(session.log())) return false;
  return std::ranges::all_of(session.cache().maps(), [](const SlotMap& map) {
    return std::ranges::equal(map.token(), map.position().first(map.token().size()));
  });
}

}  // namespace

std::string_view DoneTo(const SessionOnEngine& session, const GpuSession::Shape& there) {
  const SessionCache& cache = session.cache();
  const auto queries = static_cast<size_t>(session.log().empty() ? 0 : int64_t{there.lanes} * there.queries);
  const auto first_of_kind = [&](int32_t lane) { return there.kinds[there.SightOf(there.order[lane])].of_model; };
  for (int32_t lane = 0; lane < there.lanes; ++lane) {
    const int32_t first = first_of_kind(lane);
    if (cache.shape().slots(lane) != cache.shape().slots(first)) return "its lanes are of unequal size";
    if (cache.map_of(lane).live() != cache.map_of(first).live()) {
      return "its lanes hold unequally many tokens, since some left by request or in an edit";
    }
  }
  if (session.last_queries().size() != queries) return "what its newest token attended to is not known";
  return HasNaturalPositions(session) ? "" : "its tokens are no longer where they were read, since it was edited";
}

}  // namespace ebb
