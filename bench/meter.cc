#include "bench/meter.h"

#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/machine.h"
#include "policies/check.h"

namespace ebb::bench {
namespace {

constexpr double kSeconds = 0.03;               // of one measurement
constexpr int64_t kPiece = int64_t{256} << 10;  // bytes between two looks at the clock
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kRounds = 4096;  // of arithmetic between two looks at the clock

// "2048K" as bytes.
int64_t ReadSize(const std::string& path) {
  std::ifstream file(path);
  int64_t size = 0;
  char unit = ' ';
  if (!(file >> size)) return 0;
  file >> unit;
  return size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
}

// One per cache line, since threads write them.
struct alignas(64) Tally {
  double amount = 0;
  double used = 0;  // what keeps the compiler from leaving work out
  int64_t at = 0;   // offset in the thread's part, of Read
};

struct Unmap {
  int64_t bytes = 0;
  void operator()(std::byte* pages) const { munmap(pages, static_cast<size_t>(bytes)); }
};
using Mapped = std::unique_ptr<std::byte, Unmap>;

// Null where the system does not give it.
Mapped Map(int64_t bytes) {
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return Mapped(static_cast<std::byte*>(memory), Unmap{bytes});
}

}  // namespace

Caches ReadCaches() {
  Caches caches;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    std::ifstream file(folder + "level");
    int level = 0;
    if (!(file >> level)) continue;
    if (level == 2) caches.l2 = ReadSize(folder + "size");
    if (level == 3) caches.l3 = ReadSize(folder + "size");
  }
  return caches;
}

int64_t DefaultReadBytes(const Caches& caches) {
  const int64_t wanted = std::max(int64_t{1536} << 20, 4 * caches.l3);
  const int64_t left = UsableMemory() / 4;
  return std::max(left > 0 ? std::min(wanted, left) : wanted, kHugePage);
}

struct Meter::State {
  // `pages` is threads parts, of `part_bytes` each.
  State(int32_t threads, int64_t part_bytes, Mapped pages)
      : tallies(static_cast<size_t>(threads)),
        part(part_bytes),
        memory(std::move(pages)),
        begin(threads),
        end(threads) {
    for (int32_t thread = 1; thread < threads; ++thread) crew.emplace_back([this, thread] { Follow(thread); });
    // A machine that is virtual may be given its memory only now, and reads it slowly the first time.
    All([this](Tally& tally, int32_t thread) {
      std::memset(Part(thread), 1, static_cast<size_t>(part));
      tally.used += static_cast<double>(BestReadLoop().run(Part(thread), part));
    });
  }

  ~State() {
    work = {};
    begin.arrive_and_wait();
    for (std::thread& thread : crew) thread.join();
  }

  std::byte* Part(int32_t thread) const { return memory.get() + thread * part; }

  void Follow(int32_t thread) {
    for (;;) {
      begin.arrive_and_wait();
      if (!work) return;
      work(tallies[static_cast<size_t>(thread)], thread);
      end.arrive_and_wait();
    }
  }

  void All(std::function<void(Tally&, int32_t)> what) {
    work = std::move(what);
    begin.arrive_and_wait();
    work(tallies[0], 0);
    end.arrive_and_wait();
  }

  // step(tally, thread) does a piece and returns how much that was; over and over until the time is up.
  template <typename Step>
  double Rate(const Step& step) {
    All([&step](Tally& tally, int32_t thread) {
      double done = 0;
      const double from = Now();
      double now = from;
      for (; now - from < kSeconds; now = Now()) done += step(tally, thread);
      tally.amount = done / (now - from);
    });
    double rate = 0;
    for (const Tally& tally : tallies) rate += tally.amount;
    return rate;
  }

  std::vector<Tally> tallies;
  int64_t part;
  Mapped memory;
  std::barrier<> begin, end;
  std::function<void(Tally&, int32_t)> work = {};
  std::vector<std::thread> crew = {};
};

Meter::Meter(std::unique_ptr<State> state) : state_(std::move(state)) {}
Meter::~Meter() = default;

absl::StatusOr<std::unique_ptr<Meter>> Meter::Make(int32_t threads, int64_t read_bytes) {
  const int64_t part = std::max(read_bytes / threads / kHugePage * kHugePage, kHugePage);
  // A system that gives any address space (vm.overcommit_memory 1, as Kubernetes' nodes have it) kills who fills it.
  const int64_t usable = UsableMemory();
  const bool fits = usable == 0 || part * threads <= usable;
  Mapped memory = fits ? Map(part * threads) : nullptr;
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("no memory for measuring: the system does not give %d bytes%s; ask for less with --read-mib",
                        part * threads, usable == 0 ? "" : absl::StrFormat(" (%d are usable)", usable)));
  }
  return std::unique_ptr<Meter>(new Meter(std::make_unique<State>(threads, part, std::move(memory))));
}

int32_t Meter::threads() const { return static_cast<int32_t>(state_->tallies.size()); }

double Meter::Read() {
  const ReadLoop loop = BestReadLoop();
  return state_->Rate([&](Tally& tally, int32_t thread) {
    const int64_t piece = std::min(kPiece, state_->part);
    tally.used += static_cast<double>(loop.run(state_->Part(thread) + tally.at, piece));
    tally.at = (tally.at + piece) % state_->part;
    return static_cast<double>(piece);
  });
}

double Meter::ReadAgain(int64_t bytes) {
  EBB_CHECK(bytes <= state_->part);
  EBB_CHECK(bytes % 512 == 0);
  const ReadLoop loop = BestReadLoop();
  const auto once = [&](Tally& tally, int32_t thread) {
    for (int64_t at = 0; at < bytes; at += kPiece) {
      tally.used += static_cast<double>(loop.run(state_->Part(thread) + at, std::min(kPiece, bytes - at)));
    }
    return static_cast<double>(bytes);
  };
  state_->All([&](Tally& tally, int32_t thread) { once(tally, thread); });
  return state_->Rate(once);
}

double Meter::Operations(const ArithmeticLoop& loop) {
  return state_->Rate([&](Tally& tally, int32_t) {
    tally.used += loop.run(kRounds);
    return loop.operations * static_cast<double>(kRounds);
  });
}

Rates Meter::Measure() {
  const double fma = Operations(FmaLoop());
  return {.read = Read(), .int8 = Operations(Int8Loop()), .bf16 = std::max(Operations(Bf16Loop()), fma), .fma = fma};
}

}  // namespace ebb::bench
