#include "engine/ops/gpu/emulation.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <variant>
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

constexpr size_t kStackBytes = (64 << 10) + 5 * 64;  // no power of 2: frames of a warp would share a set of the cache
constexpr int32_t kThreadsMax = 1024;

using Place = std::array<void*, 5>;  // where a fiber, or who runs them, goes on

enum class State { kReady, kInWarp, kInBlock, kForEarlier, kDone };

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
  Place place = {};
  std::unique_ptr<std::byte[]> stack = {};  // null until it begins
};

struct alignas(16) Aligned {
  std::array<std::byte, 16> bytes;
};

// What a block has while it runs.
struct Room {
  std::vector<std::unique_ptr<Fiber>> fibers = {};  // made once, used by launch after launch
  std::vector<Aligned> shared = {};                 // what the launch asked for
};

struct Machine {
  std::mutex mutex = {};
  Order order = Order::kAscending;
  // Of a block that runs and of two that wait: one for the launch that runs, in which it will go on, and one for that.
  std::array<Room, 3> rooms = {};
  Room* room = nullptr;  // of the block that runs
  Fiber* running = nullptr;
  Place back = {};  // to who runs the fibers
  const Kernel* kernel = nullptr;
  bool is_ahead = false;    // of the kernel before it
  bool has_waited = false;  // some thread of the launch, for the kernel before it
};
Machine machine;
std::atomic<int32_t> shared_max = 99 << 10;

// The compilers' own pair switches between stacks in a few instructions. libc's longjmp takes that for a mistake where
// it checks, and swapcontext is a system call, for each of which the address sanitizer clears what it knows of a whole
// stack. Neither must that one take the jump for the end of all frames: it does not see it, and is told of stacks.
[[noreturn, gnu::noinline, gnu::no_sanitize_address]] void Jump(Place& to) { __builtin_longjmp(to.data(), 1); }
[[gnu::noinline, gnu::no_sanitize_address]] void Switch(Place& from, Place& to) {
  if (__builtin_setjmp(from.data()) == 0) Jump(to);
}

#ifdef EBB_FOLLOWED
struct Stack {
  const void* bytes = nullptr;
  size_t count = 0;
};
Stack scheduler_stack;

void* Leave(const Stack& to) {
  void* kept = nullptr;
  __sanitizer_start_switch_fiber(&kept, to.bytes, to.count);
  return kept;
}
void* LeaveFor(const Fiber& fiber) { return Leave({.bytes = fiber.stack.get(), .count = kStackBytes}); }
void* LeaveForScheduler() { return Leave(scheduler_stack); }
void ArriveInFiber(void* kept) {
  __sanitizer_finish_switch_fiber(kept, &scheduler_stack.bytes, &scheduler_stack.count);
}
void ArriveInScheduler(void* kept) { __sanitizer_finish_switch_fiber(kept, nullptr, nullptr); }
#else
void* LeaveFor(const Fiber& /*fiber*/) { return nullptr; }
void* LeaveForScheduler() { return nullptr; }
void ArriveInFiber(void* /*kept*/) {}
void ArriveInScheduler(void* /*kept*/) {}
#endif

void LeaveFiber() {
  void* const kept = LeaveForScheduler();
  Switch(machine.running->place, machine.back);
  ArriveInFiber(kept);
}

void FiberMain() {
  ArriveInFiber(nullptr);
  for (;;) {
    LeaveFiber();
    machine.kernel->thread();
    machine.running->state = State::kDone;
  }
}

// Gives `fiber`, which runs, a stack, and lets it come to where it waits for its first kernel.
void Begin(Fiber& fiber) {
  fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, FiberMain, 0);
  void* const kept = LeaveFor(fiber);
  if (__builtin_setjmp(machine.back.data()) == 0) setcontext(&context);
  ArriveInScheduler(kept);
}

void Resume(Fiber& fiber) {
  machine.running = &fiber;
  if (fiber.stack == nullptr) Begin(fiber);
  void* const kept = LeaveFor(fiber);
  Switch(machine.back, fiber.place);
  ArriveInScheduler(kept);
}

void Wait(State state, int32_t line) {
  machine.running->state = state;
  machine.running->line = line;
  LeaveFiber();
}

// Whether fibers first .. first + count - 1 all wait in `state`, and then lets them go on. Some of them waiting there
// and others not is let pass: they may come yet.
bool Release(int32_t first, int32_t count, State state) {
  const auto& fibers = machine.room->fibers;
  for (int32_t i = first; i < first + count; ++i) {
    if (fibers[i]->state != state) return false;
  }
  for (int32_t i = first; i < first + count; ++i) {
    if (fibers[i]->line != fibers[first]->line) {
      std::fprintf(stderr, "emulation: threads %d and %d of a block wait for each other at lines %d and %d\n", first, i,
                   fibers[first]->line, fibers[i]->line);
      EBB_CHECK(!"threads diverged");
    }
  }
  for (int32_t i = first; i < first + count; ++i) fibers[i]->state = State::kReady;
  return true;
}

void RunWarp(int32_t first, int32_t warp) {
  do {
    for (int32_t i = 0; i < warp; ++i) {
      const int32_t thread = first + (machine.order == Order::kAscending ? i : warp - 1 - i);
      Fiber& fiber = *machine.room->fibers[thread];
      if (fiber.state != State::kReady) continue;
      at.thread = thread;
      Resume(fiber);
    }
  } while (Release(first, warp, State::kInWarp));
}

int64_t BlocksOf(const Kernel& kernel) { return kernel.grid.x * kernel.grid.y * kernel.grid.z; }

// In `room`, the turn-th of the kernel's blocks in order.
void Enter(Room& room, const Kernel& kernel, int64_t turn) {
  const int64_t block = machine.order == Order::kAscending ? turn : BlocksOf(kernel) - 1 - turn;
  at.block[0] = static_cast<int32_t>(block % kernel.grid.x);
  at.block[1] = static_cast<int32_t>(block / kernel.grid.x % kernel.grid.y);
  at.block[2] = static_cast<int32_t>(block / kernel.grid.x / kernel.grid.y);
  machine.kernel = &kernel;
  machine.room = &room;
}

void BeginBlock() {
  const auto threads = static_cast<size_t>(machine.kernel->threads);
  Room& room = *machine.room;
  while (room.fibers.size() < threads) room.fibers.push_back(std::make_unique<Fiber>());
  for (size_t i = 0; i < threads; ++i) {
    room.fibers[i]->state = State::kReady;
    room.fibers[i]->parity = 0;
  }
  // What is read before it was written is not a number. Exactly as much as was asked for, so that the address sanitizer
  // sees what lies past it.
  Aligned nothing = {};
  nothing.bytes.fill(std::byte{0xFF});
  room.shared.assign((static_cast<size_t>(machine.kernel->shared) + sizeof(Aligned) - 1) / sizeof(Aligned), nothing);
}

// As far as its threads come.
void RunOn() {
  const int32_t threads = machine.kernel->threads;
  const int32_t warp = machine.kernel->warp;
  do {
    for (int32_t i = 0; i < threads; i += warp) {
      RunWarp(machine.order == Order::kAscending ? i : threads - warp - i, warp);
    }
  } while (Release(0, threads, State::kInBlock));
}

void ExpectEnded() {
  for (int32_t i = 0; i < machine.kernel->threads; ++i) {
    const Fiber& fiber = *machine.room->fibers[i];
    EBB_CHECK(fiber.copies.empty());
    if (fiber.state == State::kDone) continue;
    std::fprintf(stderr, "emulation: thread %d of a block waits at line %d for threads that never come there\n", i,
                 fiber.line);
    EBB_CHECK(!"threads diverged");
  }
}

// The first block up to where its threads wait for the kernel before it.
void BeginAhead(const Kernel& kernel, Room& room) {
  Enter(room, kernel, 0);
  BeginBlock();
  machine.is_ahead = true;
  RunOn();
  machine.is_ahead = false;
}

void RunBlocks(const Kernel& kernel, Room* begun) {
  EBB_CHECK(kernel.threads > 0 && kernel.threads % 64 == 0 && kernel.threads <= kThreadsMax);
  EBB_CHECK(kernel.warp == 32 || kernel.warp == 64);
  EBB_CHECK(kernel.grid.x <= INT32_MAX && kernel.grid.y <= 65535 && kernel.grid.z <= 65535);  // what devices allow
  machine.has_waited = false;
  for (int64_t i = 0; i < BlocksOf(kernel); ++i) {
    if (i == 0 && begun != nullptr) {
      Enter(*begun, kernel, i);
      for (const auto& fiber : begun->fibers) {
        if (fiber->state != State::kForEarlier) continue;
        fiber->state = State::kReady;
        machine.has_waited = true;
      }
    } else {
      Enter(machine.rooms[0], kernel, i);
      BeginBlock();
    }
    RunOn();
    ExpectEnded();
  }
  if (kernel.begins_early && !machine.has_waited) {
    std::fprintf(stderr,
                 "emulation: a launch that may begin early waits for the kernel before it in none of its blocks\n");
    EBB_CHECK(!"nothing waits");
  }
}

}  // namespace

void SetOrder(Order order) { machine.order = order; }

void Run(const Kernel& kernel) {
  const std::lock_guard lock(machine.mutex);
  RunBlocks(kernel, nullptr);
}

void Run(const Launches& launches) {
  const std::lock_guard lock(machine.mutex);
  Room* begun = nullptr;  // where the first block of this launch waits
  for (size_t i = 0; i < launches.size(); ++i) {
    const auto* const kernel = std::get_if<Kernel>(&launches[i]);
    const auto* const later = i + 1 < launches.size() ? std::get_if<Kernel>(&launches[i + 1]) : nullptr;
    Room* const ahead =
        kernel != nullptr && later != nullptr && later->begins_early ? &machine.rooms[1 + i % 2] : nullptr;
    if (ahead != nullptr) BeginAhead(*later, *ahead);
    if (kernel != nullptr) {
      RunBlocks(*kernel, begun);
    } else {
      std::get<std::function<void()>>(launches[i])();
    }
    begun = ahead;
  }
}

void* LaunchShared() { return machine.room->shared.data(); }

void SetSharedMax(int32_t bytes) { shared_max = bytes; }
int32_t SharedMax() { return shared_max; }

void Enqueue(void* stream, Work work) {
  auto* const of = static_cast<Stream*>(stream);
  if (of != nullptr && of->records) return of->recorded.push_back(std::move(work));
  if (const auto* const kernel = std::get_if<Kernel>(&work)) return Run(*kernel);
  std::get<std::function<void()>>(work)();
}

void CopyLater(void* to, const void* from) {
  if (machine.order == Order::kDescending || machine.is_ahead) {
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

void WaitForEarlier(int32_t line) {
  machine.has_waited = true;
  if (machine.is_ahead) Wait(State::kForEarlier, line);
}

void LetLaterBegin() {
  if (!machine.is_ahead) return;
  std::fprintf(stderr,
               "emulation: thread %d of a block lets later kernels begin before it has waited for the one before\n",
               at.thread);
  EBB_CHECK(!"what came before may not be done");
}

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
  return machine.room->fibers[at.thread / kTeam * kTeam + lane]->sent[published].data();
}

void Exchange(const void* value, void* received, int32_t bytes, int32_t mask, int32_t line) {
  const int32_t parity = Publish(value, bytes, line);
  std::memcpy(received, machine.room->fibers[at.thread ^ mask]->sent[parity].data(), static_cast<size_t>(bytes));
}

}  // namespace ebb::gpu::emulation
