// Replacing 64 of 1024 cached tokens in every head (EQUIP table 6): in place, against shift-and-append and against
// allocate-and-concatenate. Prints one row of a table per shape; docs/benchmarks/kv_update.md says how to read it.
//
//   build/release/tests/bench/kv_update_bench [rounds]
//
// One thread. All variants run in turn within a round, each on memory of its own, so that a shared machine's moods hit
// all of them; ratios are medians over rounds, with quartiles.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/ops/cpu/ops_cpu.h"
#include "policies/hash_random.h"
#include "tests/bench/bandwidth.h"
#include "tests/support/test_lane.h"

namespace ebb {
namespace {

constexpr int32_t kTokens = 1024;
constexpr int32_t kReplaced = 64;
constexpr int32_t kSinks = 4;

struct Shape {
  int32_t batch = 1;
  int32_t heads = 64;
  int32_t head_dim = 64;
  KvType type = KvType::kF32;
  bool random = false;  // which tokens leave: a random 64 of each head, else the oldest after the sinks, of all heads

  int32_t lanes() const { return batch * heads; }
  int64_t row_bytes() const { return int64_t{head_dim} * (type == KvType::kF32 ? 4 : 2); }
};

// Victims of one round: for each lane kReplaced slots, ascending.
std::vector<std::vector<int32_t>> ChooseVictims(const Shape& shape, uint64_t seed) {
  std::vector<std::vector<int32_t>> victims(static_cast<size_t>(shape.lanes()));
  for (size_t lane = 0; lane < victims.size(); ++lane) {
    HashRandom random(seed, lane);
    std::vector<int32_t> slots;
    for (int32_t s = kSinks; s < kTokens; ++s) slots.push_back(s);
    for (int32_t i = 0; shape.random && i < kReplaced; ++i) {
      std::swap(slots[static_cast<size_t>(i)],
                slots[static_cast<size_t>(random.Uniform(i, static_cast<int32_t>(slots.size()) - 1))]);
    }
    victims[lane].assign(slots.begin(), slots.begin() + kReplaced);
    std::ranges::sort(victims[lane]);
  }
  return victims;
}

using Victims = std::vector<std::vector<int32_t>>;

// Ours: the Store op into the engine's tiles, K with the component outside. Converts from float32 as it writes.
class InTiles {
 public:
  InTiles(Ops& ops, const Shape& shape, const std::vector<float>& rows) : ops_(ops), shape_(shape), rows_(rows) {
    const KvFormat format = {.type = shape.type, .head_dim = shape.head_dim, .page_tiles = 4};
    for (int32_t lane = 0; lane < shape.lanes(); ++lane) lanes_.emplace_back(format, kTokens);
    tasks_.resize(lanes_.size());
  }
  void Replace(const Victims& victims) {
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      tasks_[lane] = {.lane = lanes_[lane].storage(),
                      .k = rows_.data(),
                      .v = rows_.data(),
                      .stride = shape_.head_dim,
                      .tokens = kReplaced,
                      .slots = victims[lane].data()};
    }
    ops_.Store({}, tasks_);
  }

 private:
  Ops& ops_;
  Shape shape_;
  const std::vector<float>& rows_;
  std::vector<TestLane> lanes_;
  std::vector<StoreTask> tasks_;
};

// K and V as frameworks keep them: [lane][token][d]. `rows` are the new tokens, already in the cache's type.
class RowCache {
 public:
  RowCache(const Shape& shape, const std::vector<std::byte>& rows)
      : shape_(shape), rows_(rows), lane_bytes_(kTokens * shape.row_bytes()) {
    for (auto& part : parts_) {
      part = Fresh();
      std::memset(part.get(), 1, static_cast<size_t>(lane_bytes_ * shape_.lanes()));
    }
  }

  // Writes each new token over a victim.
  void InPlace(const Victims& victims) {
    for (auto& part : parts_) {
      for (size_t lane = 0; lane < victims.size(); ++lane) {
        for (size_t i = 0; i < victims[lane].size(); ++i) {
          std::memcpy(Lane(part, lane) + victims[lane][i] * shape_.row_bytes(), New(i), Bytes(1));
        }
      }
    }
  }

  // Closes the gaps by moving later tokens down, then appends.
  void Shift(const Victims& victims) {
    for (auto& part : parts_) {
      for (size_t lane = 0; lane < victims.size(); ++lane) {
        std::byte* base = Lane(part, lane);
        KeepRuns(victims[lane], [&](int64_t to, int64_t from, int64_t count) {
          std::memmove(base + to * shape_.row_bytes(), base + from * shape_.row_bytes(), Bytes(count));
        });
        std::memcpy(base + (kTokens - kReplaced) * shape_.row_bytes(), New(0), Bytes(kReplaced));
      }
    }
  }

  // Gathers what stays and the new tokens into memory fresh from the allocator, and drops the old.
  void Concatenate(const Victims& victims) {
    for (auto& part : parts_) {
      Memory next = Fresh();
      for (size_t lane = 0; lane < victims.size(); ++lane) {
        const std::byte* base = Lane(part, lane);
        std::byte* target = Lane(next, lane);
        KeepRuns(victims[lane], [&](int64_t to, int64_t from, int64_t count) {
          std::memcpy(target + to * shape_.row_bytes(), base + from * shape_.row_bytes(), Bytes(count));
        });
        std::memcpy(target + (kTokens - kReplaced) * shape_.row_bytes(), New(0), Bytes(kReplaced));
      }
      part = std::move(next);
    }
  }

 private:
  using Memory = std::unique_ptr<std::byte[]>;

  Memory Fresh() const { return Memory(new std::byte[static_cast<size_t>(lane_bytes_ * shape_.lanes())]); }
  std::byte* Lane(const Memory& part, size_t lane) const {
    return part.get() + static_cast<int64_t>(lane) * lane_bytes_;
  }
  const std::byte* New(size_t token) const { return rows_.data() + static_cast<int64_t>(token) * shape_.row_bytes(); }
  size_t Bytes(int64_t tokens) const { return static_cast<size_t>(tokens * shape_.row_bytes()); }

  // Calls copy(to, from, count) for each run of tokens between victims, `to` being where it lies once they are gone.
  template <typename Copy>
  static void KeepRuns(const std::vector<int32_t>& victims, const Copy& copy) {
    int64_t to = 0;
    int64_t from = 0;
    for (size_t i = 0; i <= victims.size(); ++i) {
      const int64_t end = i < victims.size() ? victims[i] : kTokens;
      if (end > from) copy(to, from, end - from);
      to += end - from;
      from = end + 1;
    }
  }

  Shape shape_;
  const std::vector<std::byte>& rows_;
  int64_t lane_bytes_;
  Memory parts_[2];  // K, V
};

std::string Spread(std::vector<double> ratios) {
  std::ranges::sort(ratios);
  const auto at = [&](size_t quarter) { return ratios[(ratios.size() - 1) * quarter / 4]; };
  char text[64];
  std::snprintf(text, sizeof(text), "%.1f (%.1f-%.1f)", at(2), at(1), at(3));
  return text;
}

void Compare(Ops& ops, const Shape& shape, int rounds) {
  const std::vector<float> floats = RandomFloats(1, 1, int64_t{kReplaced} * shape.head_dim);
  const std::vector<std::byte> rows(static_cast<size_t>(kReplaced * shape.row_bytes()), std::byte{1});
  InTiles tiles(ops, shape, floats);
  RowCache in_place(shape, rows), shifted(shape, rows), concatenated(shape, rows);
  std::vector<double> shift, concatenate, rows_shift;
  for (int round = -2; round < rounds; ++round) {  // two to warm up
    const Victims victims = ChooseVictims(shape, static_cast<uint64_t>(round + 2));
    const auto time = [&](const std::function<void()>& run) {
      const double begin = Seconds();
      run();
      return Seconds() - begin;
    };
    const double a = time([&] { tiles.Replace(victims); });
    const double b = time([&] { shifted.Shift(victims); });
    const double c = time([&] { concatenated.Concatenate(victims); });
    const double d = time([&] { in_place.InPlace(victims); });
    if (round < 0) continue;
    shift.push_back(b / a);
    concatenate.push_back(c / a);
    rows_shift.push_back(b / d);
  }
  std::printf("| %d, %d, %d | %s | %s | %s | %s | %s |\n", shape.batch, shape.heads, shape.head_dim,
              shape.type == KvType::kF32 ? "F32" : "BF16", shape.random ? "random per head" : "oldest after sinks",
              Spread(shift).c_str(), Spread(concatenate).c_str(), Spread(rows_shift).c_str());
  std::fflush(stdout);
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 21;
  const auto ops = *ebb::MakeCpuOps({});
  std::printf("%s, 1 thread, %d rounds\n\n", std::string(ops->fingerprint()).c_str(), rounds);
  std::printf(
      "| B, heads, d | K/V | victims | shift / in place | concatenate / in place | shift / in place, row per slot |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const bool random : {false, true}) {
    for (const ebb::KvType type : {ebb::KvType::kF32, ebb::KvType::kBf16}) {
      ebb::Compare(*ops, {.batch = 1, .heads = 64, .head_dim = 64, .type = type, .random = random}, rounds);
      ebb::Compare(*ops, {.batch = 1, .heads = 64, .head_dim = 128, .type = type, .random = random}, rounds);
      ebb::Compare(*ops, {.batch = 8, .heads = 64, .head_dim = 64, .type = type, .random = random}, rounds);
    }
  }
  return 0;
}
