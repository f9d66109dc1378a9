// The arena: one stretch of memory per engine, cut into equal pages, handed out as leases.
//
// Memory is reserved from the system at once and touched only when a page is first written, so an idle server is small.
// Pages are not cleared between owners: a slot can be seen only once its K, V and position are in place (slot_map.h),
// so what another session left there is never read.
//
// Invariant: every page is either free or in exactly one lease. Lowest-numbered pages are handed out first. Not thread
// safe: the engine's thread alone.

#ifndef EBB_ENGINE_CACHE_PAGE_POOL_H_
#define EBB_ENGINE_CACHE_PAGE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb {

class PagePool;

// Owns pages; move-only. Losing it gives them back, exactly once. The pool outlives its leases.
class PageLease {
 public:
  PageLease() = default;
  PageLease(PageLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), pages_(std::exchange(other.pages_, {})) {}
  PageLease& operator=(PageLease&& other) noexcept;
  ~PageLease();

  int64_t size() const { return static_cast<int64_t>(pages_.size()); }
  std::byte* address(int64_t index) const;

  // Moves the last `count` pages to the end of `to`, which is empty or of the same pool.
  void Give(int64_t count, PageLease& to);

 private:
  friend class PagePool;
  PageLease(PagePool* pool, std::vector<int32_t> pages) : pool_(pool), pages_(std::move(pages)) {}
  void GiveBack();

  PagePool* pool_ = nullptr;
  std::vector<int32_t> pages_ = {};
};

class PagePool {
 public:
  // `page_bytes` is a multiple of 64. UNAVAILABLE ARENA_UNAVAILABLE, naming the size, when the system refuses;
  // INVALID_ARGUMENT ARENA_TOO_SMALL when not even one page fits.
  static absl::StatusOr<std::unique_ptr<PagePool>> Create(int64_t arena_bytes, int64_t page_bytes);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // `pages` >= 0. UNAVAILABLE NO_PAGES when fewer are free, naming both numbers: it is our limit, another server may
  // have room.
  absl::StatusOr<PageLease> Reserve(int64_t pages);

  int64_t page_bytes() const { return page_bytes_; }
  int64_t pages_total() const { return pages_total_; }
  int64_t pages_free() const { return static_cast<int64_t>(free_.size()); }

 private:
  friend class PageLease;
  PagePool(std::byte* arena, int64_t page_bytes, int64_t pages_total);
  void Return(std::span<const int32_t> pages);

  std::byte* arena_ = nullptr;
  int64_t page_bytes_ = 0;
  int64_t pages_total_ = 0;
  std::vector<int32_t> free_ = {};  // min-heap of page numbers
};

}  // namespace ebb

#endif  // EBB_ENGINE_CACHE_PAGE_POOL_H_
