#include "engine/ops/gpu/emulation.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "policies/check.h"

#if defined(__SANITIZE_ADDRESS__)
#define EBB_FOLLOWED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EBB_FOLLOWED
#endif
#endif
#ifdef EBB_FOLLOWED
#include <sanitizer/common_interface_defs.h>
#endif

namespace ebb::gpu::emulation {

At at;

namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr int32_t kThreadsMax = 1024;

enum class State { kReady, kInWarp, kInBlock, kDone };

struct Fiber {
  State state = State::kDone;
  int32_t line = 0;    // where it waits
  int32_t parity = 0;  // of its exchanges: who is one ahead must not overwrite what others have yet to read
  std::array<std::array<uint32_t, 8>, 2> sent = {};
  struct Copy {  // of 16 bytes, to be made
    void* to;
    const void* from;
    int64_t group;
  };
  std::vector<Copy> copies = {};
  int64_t group = 0;  // that is open
  bool begun = false;
  ucontext_t context = {};
  std::jmp_buf jump = {};
  std::unique_ptr<std::byte[]> stack = {};
};

struct alignas(16) Aligned {
  std::array<std::byte, 16> bytes;
};

struct Machine {
  std::mutex mutex = {};
  Order order = Order::kAscending;
  std::vector<std::unique_ptr<Fiber>> fibers = {};  // made once, used by launch after launch
  Fiber* running = nullptr;
  ucontext_t scheduler = {};
  std::jmp_buf back = {};
  void (*call)(const void*) = nullptr;
  const void* args = nullptr;
  std::vector<Aligned> shared = {};  // what the launch asked for
};
Machine machine;
std::atomic<int32_t> shared_max = 99 << 10;

// setjmp and longjmp switch between stacks without a system call. The address sanitizer wants to be told of each
// switch, and follows swapcontext alone.
#ifdef EBB_FOLLOWED
const void* scheduler_stack = nullptr;
size_t scheduler_stack_bytes = 0;

void Arrive(void* kept) { __sanitizer_finish_switch_fiber(kept, &scheduler_stack, &scheduler_stack_bytes); }
void LeaveFiber() {
  void* kept = nullptr;
  __sanitizer_start_switch_fiber(&kept, scheduler_stack, scheduler_stack_bytes);
  swapcontext(&machine.running->context, &machine.scheduler);
  Arrive(kept);
}
#else
void Arrive(void* /*kept*/) {}
void LeaveFiber() {
  if (_setjmp(machine.running->jump) == 0) longjmp(machine.back, 1);
}
#endif

void FiberMain() {
  Arrive(nullptr);
  for (;;) {
    machine.call(machine.args);
    machine.running->state = State::kDone;
    LeaveFiber();
  }
}

void Begin(Fiber& fiber) {
  fiber.begun = true;
  fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, FiberMain, 0);
}

void Resume(Fiber& fiber) {
  machine.running = &fiber;
#ifdef EBB_FOLLOWED
  if (!fiber.begun) Begin(fiber);
  void* kept = nullptr;
  __sanitizer_start_switch_fiber(&kept, fiber.stack.get(), kStackBytes);
  swapcontext(&machine.scheduler, &fiber.context);
  __sanitizer_finish_switch_fiber(kept, nullptr, nullptr);
#else
  if (_setjmp(machine.back) != 0) return;
  if (fiber.begun) longjmp(fiber.jump, 1);
  Begin(fiber);
  setcontext(&fiber.context);
#endif
}

void Wait(State state, int32_t line) {
  machine.running->state = state;
  machine.running->line = line;
  LeaveFiber();
}

// Whether fibers first .. first + count - 1 all wait in `state`, and then lets them go on. Some of them waiting there
// and others not is let pass: they may come yet.
bool Release(int32_t first, int32_t count, State state) {
  for (int32_t i = first; i < first + count; ++i) {
    if (machine.fibers[i]->state != state) return false;
  }
  for (int32_t i = first; i < first + count; ++i) {
    if (machine.fibers[i]->line != machine.fibers[first]->line) {
      std::fprintf(stderr, "emulation: threads %d and %d of a block wait for each other at lines %d and %d\n", first, i,
                   machine.fibers[first]->line, machine.fibers[i]->line);
      EBB_CHECK(!"threads diverged");
    }
  }
  for (int32_t i = first; i < first + count; ++i) machine.fibers[i]->state = State::kReady;
  return true;
}

void RunWarp(int32_t first, int32_t warp) {
  do {
    for (int32_t i = 0; i < warp; ++i) {
      const int32_t thread = first + (machine.order == Order::kAscending ? i : warp - 1 - i);
      Fiber& fiber = *machine.fibers[thread];
      if (fiber.state != State::kReady) continue;
      at.thread = thread;
      Resume(fiber);
    }
  } while (Release(first, warp, State::kInWarp));
}

void RunBlock(int32_t threads, int32_t warp) {
  for (int32_t i = 0; i < threads; ++i) {
    machine.fibers[i]->state = State::kReady;
    machine.fibers[i]->parity = 0;
  }
  do {
    for (int32_t i = 0; i < threads; i += warp) {
      RunWarp(machine.order == Order::kAscending ? i : threads - warp - i, warp);
    }
  } while (Release(0, threads, State::kInBlock));
  for (int32_t i = 0; i < threads; ++i) {
    const Fiber& fiber = *machine.fibers[i];
    EBB_CHECK(fiber.copies.empty());
    if (fiber.state == State::kDone) continue;
    std::fprintf(stderr, "emulation: thread %d of a block waits at line %d for threads that never come there\n", i,
                 fiber.line);
    EBB_CHECK(!"threads diverged");
  }
}

}  // namespace

void SetOrder(Order order) { machine.order = order; }

void Run(Grid grid, int32_t threads, int32_t warp, int32_t shared, void (*call)(const void*), const void* args) {
  EBB_CHECK(threads > 0 && threads % 64 == 0 && threads <= kThreadsMax);
  EBB_CHECK(warp == 32 || warp == 64);
  EBB_CHECK(grid.x <= INT32_MAX && grid.y <= 65535 && grid.z <= 65535);  // what devices allow
  const std::lock_guard lock(machine.mutex);
  while (machine.fibers.size() < static_cast<size_t>(threads)) machine.fibers.push_back(std::make_unique<Fiber>());
  machine.call = call;
  machine.args = args;
  // What is read before it was written is not a number. Exactly as much as was asked for, so that the address sanitizer
  // sees what lies past it.
  Aligned nothing = {};
  nothing.bytes.fill(std::byte{0xFF});
  machine.shared.assign((static_cast<size_t>(shared) + sizeof(Aligned) - 1) / sizeof(Aligned), nothing);
  const int64_t blocks = grid.x * grid.y * grid.z;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t block = machine.order == Order::kAscending ? i : blocks - 1 - i;
    at.block[0] = static_cast<int32_t>(block % grid.x);
    at.block[1] = static_cast<int32_t>(block / grid.x % grid.y);
    at.block[2] = static_cast<int32_t>(block / grid.x / grid.y);
    std::ranges::fill(machine.shared, nothing);
    RunBlock(threads, warp);
  }
}

void* LaunchShared() { return machine.shared.data(); }

void SetSharedMax(int32_t bytes) { shared_max = bytes; }
int32_t SharedMax() { return shared_max; }

void Enqueue(void* stream, std::function<void()> launch) {
  auto* const of = static_cast<Stream*>(stream);
  if (of == nullptr || !of->records) return launch();
  of->recorded.push_back(std::move(launch));
}

void CopyLater(void* to, const void* from) {
  if (machine.order == Order::kDescending) {
    std::memcpy(to, from, 16);
    return;
  }
  machine.running->copies.push_back({.to = to, .from = from, .group = machine.running->group});
}

void CloseCopies() { ++machine.running->group; }

void CopiesArrived(int32_t later) {
  Fiber& self = *machine.running;
  const int64_t end = later == 0 ? self.group + 1 : self.group - later;  // groups before it
  const auto waits = std::ranges::find_if(self.copies, [end](const auto& copy) { return copy.group >= end; });
  for (auto copy = self.copies.begin(); copy != waits; ++copy) std::memcpy(copy->to, copy->from, 16);
  self.copies.erase(self.copies.begin(), waits);
}

void Barrier(int32_t line) { Wait(State::kInBlock, line); }

int32_t Publish(const void* words, int32_t bytes, int32_t line) {
  Fiber& self = *machine.running;
  const int32_t parity = self.parity;
  self.parity = 1 - parity;
  EBB_CHECK(static_cast<size_t>(bytes) <= sizeof(self.sent[parity]));
  std::memcpy(self.sent[parity].data(), words, static_cast<size_t>(bytes));
  Wait(State::kInWarp, line);
  return parity;
}

const uint32_t* Published(int32_t published, int32_t lane) {
  constexpr int32_t kTeam = 32;
  return machine.fibers[at.thread / kTeam * kTeam + lane]->sent[published].data();
}

void Exchange(const void* value, void* received, int32_t bytes, int32_t mask, int32_t line) {
  const int32_t parity = Publish(value, bytes, line);
  std::memcpy(received, machine.fibers[at.thread ^ mask]->sent[parity].data(), static_cast<size_t>(bytes));
}

}  // namespace ebb::gpu::emulation
