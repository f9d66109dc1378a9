// The engine of a model on a host with a device: sessions go where they can be computed.
//
// A session that the device can compute is computed there, always: whether it can follows from its policy, its size and
// what was done to it, never from who else is there, so that it yields the same tokens alone and in company. Others,
// and what the device does not do (drafts, edits, changes of policy, evictions by request, snapshots), are the host's
// engine's. Every session has its pages in the host's arena; the device's arena holds the caches of those that run, and
// what is longest unused goes home when pages are wanted there. A cache moves bit for bit, either way.
//
//   Run(rows) ─┬─ rows that the device computes ── Bring those that are not there ── GpuEngine, in waves that fit ─┐
//              └─ the others ── Fetch those that are there ── the host's engine, while the first wave computes ────┴─
//              rows
//
// A device that fails takes with it the caches that were newer there: their sessions are lost (Session::is_lost), all
// others go on, and from then on the host computes everybody.

#ifndef EBB_ENGINE_GPU_PLACED_ENGINE_H_
#define EBB_ENGINE_GPU_PLACED_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/gpu/device_options.h"
#include "engine/gpu/gpu_engine.h"

namespace ebb {

// As Engine::Open, LoadGpuTable and GpuEngine::Open.
absl::StatusOr<std::unique_ptr<Engine>> OpenPlacedEngine(const EngineOptions& options, const DeviceOptions& device);

// Of an engine that Engine::Open has opened, and of a device's of the same model. HOST_OUT_OF_MEMORY.
absl::StatusOr<std::unique_ptr<Engine>> PlaceOn(std::unique_ptr<GpuEngine> gpu, std::unique_ptr<Engine> host);

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_PLACED_ENGINE_H_
