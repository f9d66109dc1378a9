// A session's cache on its way between the host's pages and a device's, bit for bit: K and V of every slot, who sits
// where, scores, and the newest token's queries; components of keys and queries in the order that each has
// (GpuModel::head_order).
//
//   pages of the device   | 0 | 1 | 2 | 3 | 4 | ...     copied through two pinned buffers: while one is on its way,
//   buffers                 a   a   b   b   a           threads turn the rows of the other into tiles, or tiles into
//   rows

#ifndef EBB_ENGINE_GPU_CACHE_MOVER_H_
#define EBB_ENGINE_GPU_CACHE_MOVER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cache/lane_tiles.h"
#include "engine/gpu/gpu_engine.h"
#include "engine/gpu/gpu_session.h"
#include "engine/parallel.h"
#include "engine/session_on_engine.h"

namespace ebb {

class CacheMover {
 public:
  // `gpu` outlives it. HOST_OUT_OF_MEMORY.
  static absl::StatusOr<CacheMover> Make(GpuEngine& gpu, int32_t threads);

  // Makes `to`, to which no token came yet, what `session` is. REQUIRES: all lanes hold equally many tokens, at
  // positions that follow from the log, and CheckSettled.
  absl::Status Bring(const SessionOnEngine& session, GpuSession& to);

  // Makes the cache of `session` what `from` is, and brings the logits that it keeps; the log is its own. REQUIRES: its
  // pages are its own.
  absl::Status Fetch(const GpuSession& from, SessionOnEngine& session);

 private:
  // Of a lane, the slots that lie in one page of the device.
  struct Piece {
    int32_t lane = 0;
    int32_t first = 0, count = 0;  // slots
    int32_t page = 0;
  };
  CacheMover(GpuEngine& gpu, int32_t threads, std::array<GpuHostMemory, 2> stages)
      : gpu_(gpu), threads_(std::make_unique<Parallel>(threads)), stages_(std::move(stages)) {}

  static std::vector<Piece> PiecesOf(const GpuSession& session);
  int64_t pieces_max() const { return stages_[0].bytes() / gpu_.page_bytes(); }
  std::span<const Piece> Chunk(std::span<const Piece> pieces, size_t chunk) const;
  SlotRows RowsAt(size_t stage, int64_t piece) const;
  enum class Way { kToDevice, kHome };
  void Reorder(std::span<std::byte> heads, int64_t component_bytes, Way way) const;
  void ReorderQueries(std::vector<float>& queries, Way way) const;
  void ReorderKeys(std::byte* keys, int64_t slots, Way way) const;
  template <typename Copy>
  absl::Status CopyPages(std::span<const Piece> pieces, size_t stage, const Copy& copy) const;

  GpuEngine& gpu_;
  std::unique_ptr<Parallel> threads_;
  std::array<GpuHostMemory, 2> stages_;
};

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_CACHE_MOVER_H_
