// Runs a kernel on the host, thread by thread, to test what it computes and how its threads meet; not how fast it is.
//
// Each thread of a block is a fiber with a stack of its own that runs until it meets the others: at a barrier of its
// block or at an exchange within its warp. Blocks run one after another. So a run is deterministic, and a kernel that
// forgets a barrier gives other results when blocks and threads take turns in the opposite order (SetOrder). Where
// threads of a warp or of a block wait at different lines, or some ended while others wait, the program ends and says
// which lines: on a device that hangs, or worse, does not.
//
// A stream runs what is launched at once, or, while it records, keeps it to be run later, again and again: what a graph
// is to a device. What may begin before the kernel ahead of it has ended (device.h, LaunchEarly) does so when it is run
// again: its first block runs up to its wait before any block of that kernel begins, which is the earliest that a
// device may choose. So a kernel that reads too early gives another result than when it was launched the first time.
// One launch, or recording, at a time in the process.

#ifndef EBB_ENGINE_OPS_GPU_EMULATION_H_
#define EBB_ENGINE_OPS_GPU_EMULATION_H_

#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

namespace ebb::gpu::emulation {

struct Grid {
  int64_t x = 1, y = 1, z = 1;
};

// Where the running thread is.
struct At {
  int32_t thread = 0;
  int32_t block[3] = {};
};
extern At at;

enum class Order { kAscending, kDescending };
void SetOrder(Order order);

// thread() is called once by every thread; each block has `shared` bytes of LaunchShared, all ones at first. REQUIRES:
// threads is a multiple of 64, at most 1024; warp is 32 or 64; no number of blocks is 0.
struct Kernel {
  Grid grid = {};
  int32_t threads = 0, warp = 0, shared = 0;
  bool begins_early = false;
  std::function<void()> thread = {};
};
void Run(const Kernel& kernel);
void* LaunchShared();

// Bytes that a launch may ask for, as a rehearsal sees it (kernels.h): NVIDIA's 99 KB unless set. Of all threads.
void SetSharedMax(int32_t bytes);
int32_t SharedMax();

using Work = std::variant<Kernel, std::function<void()>>;  // of the latter kind are copies
using Launches = std::vector<Work>;
void Run(const Launches& launches);
struct Stream {
  bool records = false;
  Launches recorded = {};
};
// Runs it, or has `stream`, a Stream or null, keep it.
void Enqueue(void* stream, Work work);

// Of 16 bytes, by a thread: a device does it at any time until that thread calls CopiesArrived for its group
// (device.h). Here it is done then, and no sooner; in descending order, and before a WaitForEarlier that waits, at
// once, so that what somebody still reads is overwritten, and what is not yet written is read. A block whose threads
// end without waiting is an error.
void CopyLater(void* to, const void* from);
void CloseCopies();
void CopiesArrived(int32_t later);

// Called by threads alone; `line` says which barrier it is.
void Barrier(int32_t line);
// As device.h has them. It is an error that of a launch that begins early no thread waits, or that one lets others
// begin before it has waited.
void WaitForEarlier(int32_t line);
void LetLaterBegin();
// `bytes` <= 8 from the thread of the warp whose number differs by `mask` < 32.
void Exchange(const void* value, void* received, int32_t bytes, int32_t mask, int32_t line);
// `bytes` <= 32 for the team of 32 to read until its threads meet again, and what to read them by.
int32_t Publish(const void* words, int32_t bytes, int32_t line);
const uint32_t* Published(int32_t published, int32_t lane);

}  // namespace ebb::gpu::emulation

#endif  // EBB_ENGINE_OPS_GPU_EMULATION_H_
