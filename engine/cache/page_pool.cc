#include "engine/cache/page_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "absl/strings/str_format.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {

PageLease& PageLease::operator=(PageLease&& other) noexcept {
  if (this != &other) {
    GiveBack();
    pool_ = std::exchange(other.pool_, nullptr);
    pages_ = std::exchange(other.pages_, {});
  }
  return *this;
}

PageLease::~PageLease() { GiveBack(); }

void PageLease::GiveBack() {
  for (const int32_t page : pages_) pool_->Return(page);
  pool_ = nullptr;
  pages_.clear();
}

KeptPages::~KeptPages() {
  for (const int32_t page : pages_) pool_->LetGo(page);
}

void PageLease::Give(int64_t count, PageLease& to) {
  EBB_CHECK(count >= 0);
  EBB_CHECK(count <= size());
  EBB_CHECK(to.pool_ == nullptr || to.pool_ == pool_);
  to.pool_ = pool_;
  to.pages_.insert(to.pages_.end(), pages_.end() - count, pages_.end());
  pages_.resize(pages_.size() - count);
}

int32_t PageLease::page(int64_t index) const {
  EBB_CHECK(index >= 0);
  EBB_CHECK(index < size());
  return pages_[index];
}

std::byte* PageLease::address(int64_t index) const { return pool_->address(page(index)); }

int32_t PageLease::TakeLast() {
  EBB_CHECK(size() > 0);
  const int32_t last = pages_.back();
  pages_.pop_back();
  return last;
}

PageLease PageLease::Share() const {
  for (const int32_t page : pages_) {
    if (++pool_->pages_[page].holders == 2) ++pool_->shared_;
  }
  if (pool_ != nullptr) pool_->again_ += size();
  return PageLease(pool_, pages_);
}

bool PageLease::shared(int64_t index) const { return pool_->pages_[page(index)].holders > 1; }

void PageLease::Keep(int64_t index, KeptPages& to) const {
  EBB_CHECK(to.pool_ == nullptr || to.pool_ == pool_);
  to.pool_ = pool_;
  to.pages_.push_back(page(index));
  if (pool_->pages_[page(index)].kept++ == 0) ++pool_->kept_;
}

void PageLease::Take(int64_t index, const KeptPages& from, int64_t at) {
  EBB_CHECK(writable(index));
  const int32_t kept = from.pages_[at];
  PagePool::Page& of = pool_->pages_[kept];
  if (of.holders > 0) {
    std::memcpy(address(index), pool_->address(kept), static_cast<size_t>(pool_->page_bytes_));
    return;
  }
  pool_->Return(page(index));
  of.holders = 1;
  --pool_->kept_alone_;
  pages_[index] = kept;
}

bool PageLease::writable(int64_t index) const {
  const PagePool::Page& of = pool_->pages_[page(index)];
  return of.holders == 1 && of.kept == 0;
}

void PageLease::LeaveKept(int64_t index) {
  EBB_CHECK(!shared(index));
  const int32_t original = page(index);
  while (pool_->pages_[original].kept > 0 && pool_->free_.empty()) pool_->let_go_();
  if (pool_->pages_[original].kept == 0) return;
  pages_[index] = pool_->TakeFree();
  std::memcpy(address(index), pool_->address(original), static_cast<size_t>(pool_->page_bytes_));
  pool_->Return(original);
}

int64_t PageLease::PagesToCopy(int64_t index) const {
  return shared(index) && pool_->pages_[page(index)].promised == 0 ? 1 : 0;
}

void PageLease::Copy(int64_t index, PageLease& from) {
  EBB_CHECK(shared(index));
  const int32_t original = page(index);
  const bool promised = pool_->pages_[original].promised > 0;
  pages_[index] = promised ? pool_->TakePromised(original) : from.TakeLast();
  std::memcpy(address(index), pool_->address(original), static_cast<size_t>(pool_->page_bytes_));
  pool_->Return(original);
  ++pool_->copied_;
}

void PageLease::Replace(int64_t index, PageLease& from) {
  pool_->Return(page(index));
  pages_[index] = from.TakeLast();
}

int64_t PageLease::PagesToPromise(int64_t index) const {
  const PagePool::Page& of = pool_->pages_[page(index)];
  return of.holders - 1 - of.promised;
}

void PageLease::Promise(int64_t index) {
  const int64_t more = PagesToPromise(index);
  EBB_CHECK(more <= pool_->pages_free());
  pool_->pages_[page(index)].promised += static_cast<int32_t>(more);
  pool_->promised_ += more;
}

bool PageLease::lacks_one_promise(int64_t index) const {
  return pool_->pages_[page(index)].holders > 2 && PagesToPromise(index) == 1;
}

absl::StatusOr<std::unique_ptr<PagePool>> PagePool::Create(int64_t arena_bytes, int64_t page_bytes) {
  EBB_CHECK(page_bytes > 0);
  EBB_CHECK(page_bytes % 64 == 0);
  const int64_t pages = arena_bytes / page_bytes;
  if (pages < 1) {
    return Refuse(absl::StatusCode::kInvalidArgument,
                  absl::StrFormat("an arena of %d bytes holds no page of %d bytes", arena_bytes, page_bytes),
                  {.reason = "ARENA_TOO_SMALL", .field = "cache.arena"});
  }
  if (pages > std::numeric_limits<int32_t>::max()) {
    return Refuse(absl::StatusCode::kInvalidArgument,
                  absl::StrFormat("an arena of %d bytes has more than 2^31 pages of %d bytes", arena_bytes, page_bytes),
                  {.reason = "ARENA_TOO_LARGE", .field = "cache.arena"});
  }
  void* memory = mmap(nullptr, static_cast<size_t>(pages * page_bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Refuse(absl::StatusCode::kUnavailable,
                  absl::StrFormat("the system has no %d bytes of address space for the cache", arena_bytes),
                  {.reason = "ARENA_UNAVAILABLE"});
  }
  // A lane's tiles are 4 KB or so each: on small pages every one of them would be a walk. Advice only.
  madvise(memory, static_cast<size_t>(pages * page_bytes), MADV_HUGEPAGE);
  return std::unique_ptr<PagePool>(new PagePool(static_cast<std::byte*>(memory), page_bytes, pages));
}

PagePool::PagePool(std::byte* arena, int64_t page_bytes, int64_t pages_total)
    : arena_(arena), page_bytes_(page_bytes), pages_total_(pages_total), free_(pages_total), pages_(pages_total) {
  std::iota(free_.begin(), free_.end(), 0);  // ascending: already a heap
}

PagePool::~PagePool() {
  EBB_CHECK(pages_free() == pages_total_);
  munmap(arena_, static_cast<size_t>(pages_total_ * page_bytes_));
}

absl::Status PagePool::CheckFree(int64_t pages) const {
  EBB_CHECK(pages >= 0);
  if (pages <= pages_free()) return absl::OkStatus();
  return Refuse(absl::StatusCode::kUnavailable,
                absl::StrFormat("%d pages are needed and %d of %d are free", pages, pages_free(), pages_total_),
                {.reason = "NO_PAGES",
                 .metadata = {{"pages_needed", absl::StrFormat("%d", pages)},
                              {"pages_free", absl::StrFormat("%d", pages_free())}}});
}

absl::StatusOr<PageLease> PagePool::Reserve(int64_t pages) {
  EBB_TRY(CheckFree(pages));
  std::vector<int32_t> taken(pages);
  for (int32_t& page : taken) page = TakeFree();
  return PageLease(this, std::move(taken));
}

PagePool::Freed PagePool::FreedBy(std::span<const PageLease* const> leases) const {
  std::unordered_map<int32_t, int32_t> lost;  // of shared pages, so many of the holders
  Freed freed;
  for (const PageLease* const lease : leases) {
    for (const int32_t page : lease->pages_) {
      if (pages_[page].holders == 1) {
        ++freed.pages;
      } else {
        ++lost[page];
      }
    }
  }
  const auto comes_free = [this](int32_t page, int32_t holders) {
    const Page& of = pages_[page];
    const int32_t left = of.holders - holders;
    return (left == 0 ? 1 : 0) + of.promised - std::min(of.promised, std::max(left - 1, 0));
  };
  for (const auto& [page, holders] : lost) freed.pages += comes_free(page, holders);
  for (const PageLease* const lease : leases) {
    freed.by.push_back(std::ranges::any_of(
        lease->pages_, [&](int32_t page) { return pages_[page].holders == 1 || comes_free(page, lost.at(page)) > 0; }));
  }
  return freed;
}

int32_t PagePool::TakeFree() {
  while (free_.empty()) let_go_();
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const int32_t page = free_.back();
  free_.pop_back();
  pages_[page].holders = 1;
  return page;
}

int32_t PagePool::TakePromised(int32_t page) {
  --pages_[page].promised;
  --promised_;
  return TakeFree();
}

void PagePool::Return(int32_t page) {
  Page& of = pages_[page];
  EBB_CHECK(of.holders > 0);
  if (--of.holders == 0) {
    if (of.kept == 0) return Free(page);
    ++kept_alone_;
    return;
  }
  --again_;
  if (of.holders == 1) --shared_;
  const int32_t needed = std::min(of.promised, of.holders - 1);
  promised_ -= std::exchange(of.promised, needed) - needed;
}

void PagePool::LetGo(int32_t page) {
  Page& of = pages_[page];
  EBB_CHECK(of.kept > 0);
  if (--of.kept > 0) return;
  --kept_;
  if (of.holders > 0) return;
  --kept_alone_;
  Free(page);
}

void PagePool::Free(int32_t page) {
  free_.push_back(page);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

}  // namespace ebb
