// Whether a device can go on from where a session is.

#ifndef EBB_ENGINE_GPU_DONE_TO_SESSION_H_
#define EBB_ENGINE_GPU_DONE_TO_SESSION_H_

#include <string_view>

#include "engine/gpu/gpu_session.h"
#include "engine/session_on_engine.h"

namespace ebb {

// What was done to a session that a device cannot go on from, in words; empty: nothing was. `there`: what it would be
// on the device.
std::string_view DoneTo(const SessionOnEngine& session, const GpuSession::Shape& there);

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_DONE_TO_SESSION_H_
