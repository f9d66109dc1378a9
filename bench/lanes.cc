#include "bench/lanes.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "policies/hash_random.h"

namespace ebb::bench {
namespace {

constexpr double kBase = 10000;
constexpr int32_t kPageTiles = 4;

int64_t PagesOf(const KvFormat& format, int32_t slots) {
  const int64_t tiles = (slots + kTileSlots - 1) / kTileSlots;
  return (tiles + format.page_tiles - 1) / format.page_tiles;
}

KvFormat WithPages(KvFormat format) {
  if (format.page_tiles == 0) format.page_tiles = kPageTiles;
  return format;
}

}  // namespace

std::vector<float> RandomFloats(uint64_t seed, uint64_t purpose, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  HashRandom random(seed, purpose);
  for (float& value : values) value = 2 * random.UniformFloat() - 1;
  return values;
}

Rope RopeOf(int32_t rotary_dims) {
  ModelConfig config;
  config.rotary_dims = rotary_dims;
  for (int32_t i = 0; i < rotary_dims / 2; ++i) {
    config.rope_frequencies.push_back(std::pow(kBase, -2.0 * i / rotary_dims));
  }
  return MakeRope(config);
}

int64_t Lanes::BytesOf(const KvFormat& format, int32_t slots) {
  const KvFormat with_pages = WithPages(format);
  return PagesOf(with_pages, slots) * with_pages.page_tiles * with_pages.tile_bytes();
}

Lanes::Lanes(Ops& ops, const KvFormat& format, int32_t slots, int64_t count, uint64_t seed)
    : format_(WithPages(format)), slots_(slots), count_(count), memory_(BytesOf(format, slots) * count) {
  const int64_t pages = PagesOf(format_, slots) * count;
  for (int64_t page = 0; page < pages; ++page) {
    pages_.push_back(memory_.data() + page * format_.page_tiles * format_.tile_bytes());
  }
  position_.assign(static_cast<size_t>((slots + kTileSlots - 1) / kTileSlots * kTileSlots), -1);
  std::iota(position_.begin(), position_.begin() + slots, 0);
  scattered_ = position_;
  HashRandom order(seed, 5);
  for (int32_t s = slots - 1; s > 0; --s) {
    std::swap(scattered_[static_cast<size_t>(s)], scattered_[static_cast<size_t>(order.Uniform(0, s))]);
  }
  const std::vector<float> k = RandomFloats(seed, 1, int64_t{slots} * format_.head_dim);
  const std::vector<float> v = RandomFloats(seed, 2, int64_t{slots} * format_.head_dim);
  const Rope rope = RopeOf(format_.head_dim);
  std::vector<StoreTask> tasks;
  for (int64_t index = 0; index < count; ++index) {
    tasks.push_back({.lane = lane(index),
                     .k = k.data(),
                     .v = v.data(),
                     .stride = format_.head_dim,
                     .tokens = slots,
                     .slots = position_.data()});
  }
  ops.Store(rope, tasks);
}

LaneStorage Lanes::lane(int64_t index) const {
  return {.format = format_,
          .pages = pages_.data() + index * PagesOf(format_, slots_),
          .position = position_.data(),
          .slots = slots_};
}

LaneStorage Lanes::scattered_lane(int64_t index) const {
  LaneStorage storage = lane(index);
  storage.position = scattered_.data();
  return storage;
}

double Lanes::lane_bytes() const {
  return static_cast<double>(slots_) / kTileSlots * static_cast<double>(format_.tile_bytes());
}

}  // namespace ebb::bench
