#include "tests/support/attend_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"

namespace ebb {

std::string AttendShape::ToString() const {
  return absl::StrFormat(
      "seed %d: type %d%s, d %d, rotary %d %s, window %d, cap %g%s, group %d, %d tokens of %d live in %d slots", seed,
      static_cast<int>(format.type), format.rope_cache == RopeCache::kRk ? " rk" : "", format.head_dim, rotary_dims,
      pairs == RopePairs::kHalves ? "halves" : "neighbours", window, cap, alibi ? ", slopes" : "", group, tokens, live,
      slots);
}

AttendShape RandomShape(HashRandom& random, int32_t slots) {
  AttendShape shape;
  constexpr int32_t kDims[] = {8, 16, 24, 40, 64, 80, 96, 128};
  shape.format.head_dim = kDims[random.Uniform(0, 7)];
  shape.format.type = static_cast<KvType>(random.Uniform(0, 4));
  shape.format.rope_cache = random.Uniform(0, 3) == 0 ? RopeCache::kRk : RopeCache::kFused;
  shape.format.page_tiles = random.Uniform(1, 5);
  shape.pairs = random.Uniform(0, 1) == 0 ? RopePairs::kNeighbours : RopePairs::kHalves;
  shape.rotary_dims =
      random.Uniform(0, 1) == 0 ? shape.format.head_dim : 2 * random.Uniform(0, shape.format.head_dim / 2);
  shape.group = random.Uniform(1, 8);
  shape.slots = random.Uniform(1, slots);
  shape.live = random.Uniform((shape.slots + 1) / 2, shape.slots);
  shape.tokens = random.Uniform(0, 1) == 0 ? 1 : random.Uniform(1, std::min(shape.live, 20));
  shape.seed = random.Next64() >> 40;
  if (random.Uniform(0, 2) == 0) shape.window = random.Uniform(1, slots);
  if (random.Uniform(0, 3) == 0) shape.cap = random.Uniform(1, 20);
  shape.alibi = random.Uniform(0, 3) == 0;
  return shape;
}

namespace {

ReferenceRope ReferenceOf(const AttendShape& shape) {
  ReferenceRope rope = TestRope(shape.pairs, shape.rotary_dims);
  rope.window = shape.window;
  rope.cap = shape.cap;
  for (int32_t g = 0; shape.alibi && g < shape.group; ++g) rope.slopes.push_back(std::ldexp(1.0, -1 - g));
  return rope;
}

}  // namespace

AttendCase::AttendCase(Ops& ops, const AttendShape& shape)
    : shape_(shape),
      reference_rope_(ReferenceOf(shape)),
      rope_(MakeRope(reference_rope_)),
      lane_(shape.format, shape.slots) {
  HashRandom random(shape.seed, 1);
  slots_ = RandomOrder(random, shape.slots);
  slots_.resize(static_cast<size_t>(shape.live));
  int32_t position = random.Uniform(0, 3);
  for (int32_t i = 0; i < shape.live; ++i) {
    positions_.push_back(position);
    position += random.Uniform(0, 4) == 0 ? random.Uniform(1, 40) : 1;
  }
  const int64_t d = shape.format.head_dim;
  k_ = RandomFloats(shape.seed, 2, shape.live * d);
  v_ = RandomFloats(shape.seed, 3, shape.live * d);
  q_ = RandomFloats(shape.seed, 4, shape.tokens * shape.group * d, 5);  // logits then spread over several units
  lane_.Write(ops, rope_, slots_, positions_, k_, v_);
}

AttendResult AttendCase::Run(Ops& ops, int32_t window_rows, const float* angles) const {
  const auto slots = static_cast<size_t>(shape_.slots);
  AttendResult result = {.out = std::vector<float>(q_.size())};
  AttendTask task = {.lane = lane_.storage(),
                     .q = q_.data(),
                     .out = result.out.data(),
                     .stride = int64_t{shape_.group} * shape_.format.head_dim,
                     .tokens = shape_.tokens,
                     .q_position = q_position()};
  task.lane.angles = angles;
  if (window_rows >= 0) {
    result.column_sums.assign(slots, -1);
    result.last_row.assign(slots, -1);
    result.window.assign(slots * static_cast<size_t>(window_rows), -1);
    task.column_sums = result.column_sums.data();
    task.last_row = result.last_row.data();
    task.window = window_rows > 0 ? result.window.data() : nullptr;
    task.window_rows = window_rows;
  }
  ops.Attend(rope_, shape_.group, {&task, 1});
  return result;
}

ReferenceAttention AttendCase::Reference() const {
  const std::vector<double> q(q_.begin(), q_.end());
  return AttendReference(reference_rope_, lane_.Reference(), q, {q_position(), static_cast<size_t>(shape_.tokens)},
                         shape_.group);
}

std::vector<int32_t> RandomOrder(HashRandom& random, int32_t n) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (int32_t i = n - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(random.Uniform(0, i))]);
  }
  return order;
}

}  // namespace ebb
