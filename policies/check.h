// EBB_CHECK(condition): a broken invariant of ours prints what was expected and ends the process, in release builds
// too.
//
// For what a caller, a file or a peer may get wrong use absl::Status (status.h): no request, file or reply may be able
// to reach a check. One condition per check; not for inner loops of kernels.

#ifndef EBB_POLICIES_CHECK_H_
#define EBB_POLICIES_CHECK_H_

#include <cstdio>
#include <cstdlib>

namespace ebb {

[[noreturn]] inline void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
  std::abort();
}

}  // namespace ebb

#define EBB_CHECK(condition)                              \
  do {                                                    \
    if (!(condition)) [[unlikely]]                        \
      ::ebb::CheckFailed(#condition, __FILE__, __LINE__); \
  } while (false)

#endif  // EBB_POLICIES_CHECK_H_
