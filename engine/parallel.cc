#include "engine/parallel.h"

#include <atomic>
#include <thread>
#include <vector>

#include "policies/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ebb {
namespace {

// How often a thread looks before it sleeps: tens of microseconds, about the serial work between two ops.
constexpr int kLooks = 400;

void Relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

// One word, `unclaimed`, both hands out items and starts a run: items are claimed by lowering it while it is above
// zero. Who claims one may read the fields beside it, which are written only between runs: a run lasts until
// `unfinished` is zero. A thread that comes too late finds nothing to claim and looks at nothing else.
struct Parallel::State {
  alignas(64) std::atomic<int32_t> unclaimed = 0;
  alignas(64) std::atomic<int32_t> unfinished = 0;
  alignas(64) std::atomic<bool> ending = false;
  Call call = nullptr;
  const void* context = nullptr;
  int32_t items = 0;
  std::vector<std::thread> threads = {};

  // Does items until none is left to claim.
  void Work(int32_t thread) {
    int32_t left = unclaimed.load(std::memory_order_acquire);
    while (left > 0) {
      if (!unclaimed.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        continue;
      }
      call(context, items - left, thread);
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
      left = unclaimed.load(std::memory_order_acquire);
    }
  }

  void Serve(int32_t thread) {
    while (!ending.load(std::memory_order_acquire)) {
      for (int look = 0; look < kLooks && unclaimed.load(std::memory_order_relaxed) == 0; ++look) Relax();
      unclaimed.wait(0, std::memory_order_acquire);
      Work(thread);
    }
  }
};

Parallel::Parallel(int32_t threads) : state_(std::make_unique<State>()) {
  EBB_CHECK(threads >= 1 && threads <= kThreadsMax);
  for (int32_t thread = 1; thread < threads; ++thread) {
    state_->threads.emplace_back([state = state_.get(), thread] { state->Serve(thread); });
  }
}

Parallel::~Parallel() {
  state_->ending.store(true, std::memory_order_release);
  // Anything but zero wakes the sleepers; below zero there is nothing to claim.
  state_->unclaimed.store(-1, std::memory_order_release);
  state_->unclaimed.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

int32_t Parallel::threads() const { return static_cast<int32_t>(state_->threads.size()) + 1; }

void Parallel::Run(int64_t items, Call call, const void* context) {
  EBB_CHECK(items >= 0 && items <= INT32_MAX);
  if (items <= 1 || state_->threads.empty()) {
    for (int64_t item = 0; item < items; ++item) call(context, item, 0);
    return;
  }
  state_->call = call;
  state_->context = context;
  state_->items = static_cast<int32_t>(items);
  state_->unfinished.store(static_cast<int32_t>(items), std::memory_order_relaxed);
  state_->unclaimed.store(static_cast<int32_t>(items), std::memory_order_release);
  state_->unclaimed.notify_all();
  state_->Work(0);
  for (int look = 0; look < kLooks && state_->unfinished.load(std::memory_order_relaxed) > 0; ++look) Relax();
  for (int32_t left = state_->unfinished.load(std::memory_order_acquire); left > 0;
       left = state_->unfinished.load(std::memory_order_acquire)) {
    state_->unfinished.wait(left, std::memory_order_acquire);
  }
}

}  // namespace ebb
