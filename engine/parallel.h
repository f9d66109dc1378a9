// A fixed pool of compute threads, the only place in the engine where threads meet.
//
// Work is a number of items split by index; which thread runs which item is left open, so an item's result must not
// depend on it: every item writes memory of its own. Each thread begins with a range of neighbouring items, the same
// for the same number of items, so that what it wrote or touched first lies near it; then it takes what others have not
// begun, so that a thread whose core is taken away delays no more than the item it holds. Threads spin briefly between
// two calls and then sleep, so that an idle server costs nothing and a shared core is given back.

#ifndef EBB_ENGINE_PARALLEL_H_
#define EBB_ENGINE_PARALLEL_H_

#include <cstdint>
#include <memory>
#include <type_traits>

namespace ebb {

inline constexpr int32_t kThreadsMax = 256;  // also the maximum of model.threads

class Parallel {
 public:
  // `threads` in 1..kThreadsMax, the caller's own included: 1 starts none.
  explicit Parallel(int32_t threads);
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  int32_t threads() const;

  // Calls work(item, thread) for item = 0..items-1, each exactly once, and returns when all are done; thread in
  // 0..threads()-1 names the scratch memory that the call may use. Not reentrant; one caller at a time. Allocates
  // nothing.
  template <typename Work>
  void For(int64_t items, const Work& work) {
    Run(
        items,
        [](const void* context, int64_t item, int32_t thread) { (*static_cast<const Work*>(context))(item, thread); },
        &work);
  }

 private:
  using Call = void (*)(const void* context, int64_t item, int32_t thread);
  void Run(int64_t items, Call call, const void* context);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ebb

#endif  // EBB_ENGINE_PARALLEL_H_
