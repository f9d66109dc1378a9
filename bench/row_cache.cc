#include "bench/row_cache.h"

#include <cstring>
#include <utility>

namespace ebb::bench {
namespace {

// Calls copy(to, from, count) for each run of tokens between victims, `to` being where it lies once they are gone.
template <typename Copy>
void KeepRuns(const std::vector<int32_t>& victims, int64_t tokens, const Copy& copy) {
  int64_t to = 0;
  int64_t from = 0;
  for (size_t i = 0; i <= victims.size(); ++i) {
    const int64_t end = i < victims.size() ? victims[i] : tokens;
    if (end > from) copy(to, from, end - from);
    to += end - from;
    from = end + 1;
  }
}

}  // namespace

RowCache::RowCache(int64_t lanes, int32_t tokens, int64_t row_bytes)
    : lanes_(lanes), tokens_(tokens), row_bytes_(row_bytes), parts_{Fresh(), Fresh()} {
  for (cpu::AlignedBytes& part : parts_) std::memset(part.data(), 1, static_cast<size_t>(part.size()));
}

std::span<std::byte> RowCache::Row(int part, int64_t lane, int64_t token) {
  return {parts_[part].data() + (lane * tokens_ + token) * row_bytes_, static_cast<size_t>(row_bytes_)};
}

void RowCache::ShiftAndAppend(Parallel& parallel, const Victims& victims, std::span<const std::byte> rows) {
  parallel.For(lanes_, [&](int64_t lane, int32_t) {
    for (cpu::AlignedBytes& part : parts_) {
      std::byte* const base = part.data() + lane * tokens_ * row_bytes_;
      KeepRuns(victims[static_cast<size_t>(lane)], tokens_, [&](int64_t to, int64_t from, int64_t count) {
        // What stays before the first victim is where it belongs.
        if (to == from) return;
        std::memmove(base + to * row_bytes_, base + from * row_bytes_, static_cast<size_t>(count * row_bytes_));
      });
      std::memcpy(base + tokens_ * row_bytes_ - static_cast<int64_t>(rows.size()), rows.data(), rows.size());
    }
  });
}

void RowCache::Concatenate(Parallel& parallel, const Victims& victims, std::span<const std::byte> rows) {
  for (cpu::AlignedBytes& part : parts_) {
    cpu::AlignedBytes next = Fresh();
    parallel.For(lanes_, [&](int64_t lane, int32_t) {
      const std::byte* const base = part.data() + lane * tokens_ * row_bytes_;
      std::byte* const target = next.data() + lane * tokens_ * row_bytes_;
      KeepRuns(victims[static_cast<size_t>(lane)], tokens_, [&](int64_t to, int64_t from, int64_t count) {
        std::memcpy(target + to * row_bytes_, base + from * row_bytes_, static_cast<size_t>(count * row_bytes_));
      });
      std::memcpy(target + tokens_ * row_bytes_ - static_cast<int64_t>(rows.size()), rows.data(), rows.size());
    });
    part = std::move(next);
  }
}

double RowCache::ShiftBytes(const Victims& victims) const {
  double bytes = 0;
  for (const std::vector<int32_t>& lane : victims) {
    KeepRuns(lane, tokens_, [&](int64_t to, int64_t from, int64_t count) {
      if (to != from) bytes += 2.0 * 2 * static_cast<double>(count * row_bytes_);  // K and V, each read and written
    });
    bytes += 2.0 * 2 * static_cast<double>(lane.size()) * static_cast<double>(row_bytes_);
  }
  return bytes;
}

}  // namespace ebb::bench
