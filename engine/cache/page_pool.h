// The arena: one stretch of memory per engine, cut into equal pages, handed out as leases; a page may be in several.
//
// Memory is reserved from the system at once and touched only when a page is first written, so an idle server is small.
// Pages are not cleared between owners: a slot can be seen only once its K, V and position are in place (slot_map.h),
// so what another session left there is never read.
//
// A page that several leases hold is shared, and nobody writes to it: who would puts a copy in its place first. Where
// that must not fail the copy is promised while there is still room: a promise is a number beside the page, not a page,
// and any of those who share the page may redeem it.
//
// A page may also be kept: its bytes may be wanted again, by whoever finds them (prefix_cache.h). Nobody writes to it
// while it is, and it costs nothing: without a lease it counts as free, and is let go when pages run out.
//
// Invariants: a page is free exactly when no lease holds it; at most holders - 1 copies of a page are promised; as many
// pages are free as copies are promised, and more. Lowest-numbered pages are handed out first. Not thread safe: the
// engine's thread alone.

#ifndef EBB_ENGINE_CACHE_PAGE_POOL_H_
#define EBB_ENGINE_CACHE_PAGE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ebb {

class PagePool;

// Pages whose bytes stay as they are; move-only. Losing it lets go of them.
class KeptPages {
 public:
  KeptPages() = default;
  KeptPages(KeptPages&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), pages_(std::exchange(other.pages_, {})) {}
  KeptPages& operator=(KeptPages&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(pages_, other.pages_);
    return *this;
  }
  ~KeptPages();

  int64_t size() const { return static_cast<int64_t>(pages_.size()); }

 private:
  friend class PageLease;
  PagePool* pool_ = nullptr;
  std::vector<int32_t> pages_ = {};
};

// Holds pages; move-only. Losing it gives them back, exactly once. The pool outlives its leases.
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

  // Another lease on the same pages, which are shared from then on.
  PageLease Share() const;
  bool shared(int64_t index) const;

  // Keeps a page's bytes, at the end of `to`, which is empty or of the same pool.
  void Keep(int64_t index, KeptPages& to) const;
  // The bytes of a kept page in the place of one that is not shared, which takes them over or copies them.
  void Take(int64_t index, const KeptPages& from, int64_t at);
  // Whether the page may be written: neither shared nor kept.
  bool writable(int64_t index) const;
  // Makes a page that is not shared writable, without another page: a kept one stays as it is, and a copy takes its
  // place, or where there is no room for both, what is kept is let go until it no longer is.
  void LeaveKept(int64_t index);

  // Copy puts a copy in the place of a shared page: a promised one, or the last page of `from`, which holds at least
  // PagesToCopy: 0 or 1, and 0 for a page that is not shared.
  int64_t PagesToCopy(int64_t index) const;
  void Copy(int64_t index, PageLease& from);
  // The same with whatever bytes the last page of `from` has, and no promise is redeemed.
  void Replace(int64_t index, PageLease& from);

  // Promises so many copies of a page that all who share it may have their own, and takes them from what is free.
  // REQUIRES: PagesToPromise are free.
  int64_t PagesToPromise(int64_t index) const;
  void Promise(int64_t index);
  // Whether another lease's sharing broke what Promise gave: all but one of the copies needed are promised.
  bool lacks_one_promise(int64_t index) const;

 private:
  friend class PagePool;
  PageLease(PagePool* pool, std::vector<int32_t> pages) : pool_(pool), pages_(std::move(pages)) {}
  int32_t page(int64_t index) const;
  int32_t TakeLast();
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
  absl::Status CheckFree(int64_t pages) const;

  // What comes free, promised copies included, when all leases are lost; and which of them have a part in that. Pages
  // that other leases hold stay. O(pages of the leases).
  struct Freed {
    int64_t pages = 0;
    std::vector<bool> by = {};  // each lease
  };
  Freed FreedBy(std::span<const PageLease* const> leases) const;

  // `let_go` loses some KeptPages, if there are any; called when there are and a page is wanted.
  void SetLetGo(absl::AnyInvocable<void()> let_go) { let_go_ = std::move(let_go); }

  int64_t page_bytes() const { return page_bytes_; }
  int64_t pages_total() const { return pages_total_; }
  // Neither held nor promised; kept ones are among them.
  int64_t pages_free() const { return static_cast<int64_t>(free_.size()) + kept_alone_ - promised_; }
  int64_t pages_kept() const { return kept_; }  // held by leases or not
  int64_t pages_shared() const { return shared_; }
  int64_t pages_promised() const { return promised_; }
  // Pages that leases would hold more if each held its own, less those that are promised for it.
  int64_t pages_spared() const { return again_ - promised_; }
  int64_t pages_copied() const { return copied_; }  // since the pool was made

 private:
  friend class KeptPages;
  friend class PageLease;
  struct Page {
    int32_t holders = 0;   // leases
    int32_t promised = 0;  // copies
    int32_t kept = 0;      // times
  };
  PagePool(std::byte* arena, int64_t page_bytes, int64_t pages_total);
  std::byte* address(int32_t page) const { return arena_ + page * page_bytes_; }
  int32_t TakeFree();
  int32_t TakePromised(int32_t page);
  void Return(int32_t page);
  void LetGo(int32_t page);
  void Free(int32_t page);

  std::byte* arena_ = nullptr;
  int64_t page_bytes_ = 0;
  int64_t pages_total_ = 0;
  std::vector<int32_t> free_ = {};  // min-heap of page numbers: neither held nor kept
  std::vector<Page> pages_ = {};
  int64_t shared_ = 0;    // pages of several holders
  int64_t again_ = 0;     // holders of all pages but the first of each
  int64_t promised_ = 0;  // copies of all pages
  int64_t copied_ = 0;
  int64_t kept_ = 0;        // pages
  int64_t kept_alone_ = 0;  // of these, those without a lease
  absl::AnyInvocable<void()> let_go_ = {};
};

}  // namespace ebb

#endif  // EBB_ENGINE_CACHE_PAGE_POOL_H_
