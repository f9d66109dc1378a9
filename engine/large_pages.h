// Large buffers on large pages. A hundred megabytes that are written once cost more in faults of small pages than in
// writing.

#ifndef EBB_ENGINE_LARGE_PAGES_H_
#define EBB_ENGINE_LARGE_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace ebb {

// Reserves room for `bytes`, on large pages where the system allows: advice only.
inline void ReserveLarge(std::string& text, size_t bytes) {
  constexpr uintptr_t kSmallPage = 4096;
  text.reserve(bytes);
  const auto begin = (reinterpret_cast<uintptr_t>(text.data()) + kSmallPage - 1) / kSmallPage * kSmallPage;
  const auto end = (reinterpret_cast<uintptr_t>(text.data()) + text.capacity()) / kSmallPage * kSmallPage;
  if (bytes >= size_t{8} << 20) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace ebb

#endif  // EBB_ENGINE_LARGE_PAGES_H_
