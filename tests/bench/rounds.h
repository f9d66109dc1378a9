// How often a benchmark measures.

#ifndef EBB_TESTS_BENCH_ROUNDS_H_
#define EBB_TESTS_BENCH_ROUNDS_H_

#include <cstdlib>

namespace ebb {

// Whether EBB_BENCH_SHORT is set: by who wants to see that a benchmark runs, whatever it then says
// (tests/e2e/measurements_test.py).
inline bool IsShort() { return std::getenv("EBB_BENCH_SHORT") != nullptr; }

inline int Rounds(int usual) { return IsShort() ? 1 : usual; }

}  // namespace ebb

#endif  // EBB_TESTS_BENCH_ROUNDS_H_
