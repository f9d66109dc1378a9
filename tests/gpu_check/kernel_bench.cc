// Kernels alone: attention, the cache's update in place, selection, products with few rows, the largest logits and
// mass.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/statistics.h"
#include "engine/gpu/device_matrix.h"
#include "policies/status.h"
#include "tests/gpu_check/bench.h"
#include "tests/gpu_check/lanes.h"

namespace ebb::gpu_check {
namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int32_t DenseSide(const Bench& b) { return b.dense_is_own && b.tiny() ? 64 : kDenseSide; }

// Operations a second of the kernel that multiplies prompts.
absl::StatusOr<double> OwnDenseRate(const Bench& b) {
  const int32_t side = DenseSide(b);
  const int64_t count = int64_t{side} * side;
  EBB_ASSIGN(const DeviceMatrix w, DeviceMatrix::Random(*b.gpu, side, side, 1));
  EBB_ASSIGN(const GpuMemory x, b.gpu->Allocate(count * 4, "x"));
  EBB_ASSIGN(const GpuMemory y, b.gpu->Allocate(count * 4, "y"));
  b.table.random({.values = x.as<void>(), .n = count, .seed = 2}, b.gpu->stream());
  EBB_ASSIGN(const double seconds, SecondsOf(b, 2, [&](int) {
               b.table.linear_tiles(
                   {.w = w.matrix(), .x = x.as<float>(), .y = y.as<float>(), .y_stride = side, .rows = side},
                   b.gpu->stream());
             }));
  return 2.0 * static_cast<double>(count) * side / seconds;
}

}  // namespace

// At least 20 ms a timing on a device, so that the host's clock and the first launch are little of it.
double MedianSeconds(const Bench& bench, const GpuRecording& recording) {
  const auto time = [&](int times) {
    const double begin = Now();
    for (int i = 0; i < times; ++i) EBB_CHECK(bench.gpu->Replay(recording).ok());
    static_cast<void>(bench.gpu->Wait());  // a fault is told by the next, which the caller makes
    return (Now() - begin) / times;
  };
  if (bench.tiny()) return time(1);
  const double first = time(1);
  const int times = std::clamp(static_cast<int>(std::ceil(0.02 / first)), 1, 1000);
  std::vector<double> all;
  for (int i = 0; i < 7; ++i) all.push_back(time(times));
  return bench::Median(all);
}

std::string Rate(double per_second, const std::string& unit) {
  if (per_second >= 1e12) return absl::StrFormat("%.2f T%s", per_second / 1e12, unit);
  if (per_second >= 1e9) return absl::StrFormat("%.2f G%s", per_second / 1e9, unit);
  return absl::StrFormat("%.2f M%s", per_second / 1e6, unit);
}

std::string Time(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.1f us", seconds * 1e6);
  return seconds < 1 ? absl::StrFormat("%.2f ms", seconds * 1e3) : absl::StrFormat("%.2f s", seconds);
}

std::string Dense(const Bench& b) {
  return absl::StrFormat("%s's product of %d^3 %s", b.dense_by, DenseSide(b), Rate(b.dense_rate, "FLOP/s"));
}

absl::Status MeasureCeilings(Bench& b) {
  const int64_t bytes = b.tiny() ? 1 << 20 : int64_t{4} << 30;
  EBB_ASSIGN(const GpuMemory from, b.gpu->Allocate(bytes, "what is copied"));
  EBB_ASSIGN(const GpuMemory to, b.gpu->Allocate(bytes, "what is copied"));
  b.table.random({.type = gpu::Element::kBf16, .values = from.as<void>(), .n = bytes / 2, .seed = 1}, b.gpu->stream());
  // Not recorded: a graph may leave a copy to the copy engines, which are slower than the multiprocessors.
  std::vector<double> all;
  for (int i = 0; i < (b.tiny() ? 1 : 6); ++i) {
    constexpr int kCopies = 8;
    EBB_TRY(b.gpu->Wait());
    const double begin = Now();
    for (int c = 0; c < kCopies; ++c) EBB_TRY(b.gpu->CopyWithin(to.as<void>(), from.as<void>(), bytes));
    EBB_TRY(b.gpu->Wait());
    if (i > 0 || b.tiny()) all.push_back((Now() - begin) / kCopies);
  }
  const double own = 2 * static_cast<double>(bytes) / bench::Median(all);
  const double of_torch = b.Peer("copy");
  b.copy_rate = std::max(own, of_torch);
  b.report.rows.push_back({.what = absl::StrFormat("ceiling: a copy on the device, bytes read and written%s",
                                                   of_torch > own ? ", PyTorch's" : ""),
                           .measured = Rate(b.copy_rate, "B/s"),
                           .against = of_torch == 0    ? "itself"
                                      : of_torch > own ? "the driver's " + Rate(own, "B/s")
                                                       : "PyTorch's " + Rate(of_torch, "B/s"),
                           .ratio = of_torch == 0 ? 1 : b.copy_rate / std::min(own, of_torch)});
  const double torch = b.Peer("matmul");
  const double cublaslt = b.Peer("cublaslt");
  b.dense_rate = std::max(torch, cublaslt);
  if (b.dense_rate == 0) {
    b.dense_by = "the own kernel";
    b.dense_is_own = true;
    EBB_ASSIGN(b.dense_rate, OwnDenseRate(b));
    b.report.missing.push_back(
        "the rate of a dense product, by which prompts are judged: neither PyTorch nor cuBLASLt was found");
    b.report.rows.push_back(
        {.what = absl::StrFormat("a product of %d^3 by the own kernel, BF16, as no other is there", DenseSide(b)),
         .measured = Rate(b.dense_rate, "FLOP/s"),
         .against = "itself",
         .ratio = 1});
    return absl::OkStatus();
  }
  b.dense_by = cublaslt > torch ? "cuBLASLt" : "PyTorch";
  const double other = std::min(torch, cublaslt);
  b.report.rows.push_back(
      {.what = absl::StrFormat("ceiling: %s's product of %d^3, BF16", b.dense_by, kDenseSide),
       .measured = Rate(b.dense_rate, "FLOP/s"),
       .against = other > 0 ? (cublaslt > torch ? "PyTorch's " : "cuBLASLt's ") + Rate(other, "FLOP/s") : "itself",
       .ratio = other > 0 ? b.dense_rate / other : 1});
  return absl::OkStatus();
}

absl::Status MeasureAttention(Bench& b) {
  struct Case {
    int32_t slots;
    double target;  // 0: none
    const char* peer;
    gpu::Element type = gpu::Element::kBf16;
  };
  const std::vector<Case> cases =
      b.tiny() ? std::vector<Case>{{64, 0, ""}, {64, 0, "", gpu::Element::kQ8}, {64, 0, "", gpu::Element::kFp8}}
               : std::vector<Case>{{4096, 0.85, "sdpa_4096"},
                                   {1024, 0.75, "sdpa_1024"},
                                   {256, 0.50, "sdpa_256"},
                                   {4096, 0, "", gpu::Element::kQ8},
                                   {4096, 0, "", gpu::Element::kFp8}};
  for (const Case& c : cases) {
    LaneShape shape = {
        .sessions = b.tiny() ? 1 : 32, .type = c.type, .slots = c.slots, .rule = gpu::ScoreRule::kSum, .drop = 1};
    if (b.tiny()) shape.kv_heads = 1;
    // One after another until what is read again has left every cache.
    shape.layers = std::clamp(static_cast<int32_t>(std::ceil(1.1e9 / shape.bytes())), 2, 32);
    if (b.tiny()) shape.layers = 2;
    EBB_ASSIGN(const Lanes lanes, Lanes::Make(*b.gpu, shape));
    const auto seconds = [&](int32_t rotary_dims, bool observes) {
      return SecondsOf(b, 1, [&](int) {
        for (int layer = 0; layer < shape.layers; ++layer) {
          const gpu::AttendArgs args = lanes.Attend(layer, rotary_dims, observes);
          b.table.attend(args, b.gpu->stream());
        }
        if (observes) b.table.evict({.cache = lanes.evicting()}, b.gpu->stream());
      });
    };
    EBB_ASSIGN(const double plain, seconds(0, false));
    EBB_ASSIGN(const double rotated, seconds(shape.head_dim, false));
    EBB_ASSIGN(const double observed, seconds(shape.head_dim, true));
    const double rate = shape.bytes() * shape.layers / plain;
    const char* const type = c.type == gpu::Element::kQ8 ? "INT8" : c.type == gpu::Element::kFp8 ? "FP8" : "BF16";
    const std::string name =
        absl::StrFormat("decode attention, %s, %.0f MB of K and V a launch", type, shape.bytes() / 1e6);
    b.report.rows.push_back({.what = name,
                             .measured = Rate(rate, "B/s"),
                             .against = "copy rate " + Rate(b.copy_rate, "B/s"),
                             .ratio = rate / b.copy_rate,
                             .target = c.target > 0 ? std::optional(c.target) : std::nullopt});
    b.report.rows.push_back({.what = name + ", RoPE on the read",
                             .measured = Time(rotated / shape.layers),
                             .against = "without " + Time(plain / shape.layers),
                             .ratio = plain / rotated,
                             .target = 0.9});
    b.report.rows.push_back({.what = name + ", RoPE, scores and the smallest",
                             .measured = Time(observed / shape.layers),
                             .against = "without scores " + Time(rotated / shape.layers),
                             .ratio = rotated / observed,
                             .target = 0.95});
    if (b.Peer(c.peer) > 0) {
      b.report.rows.push_back({.what = name + ", beside PyTorch's SDPA over contiguous K and V",
                               .measured = Time(plain / shape.layers),
                               .against = "SDPA " + Time(b.Peer(c.peer)),
                               .ratio = b.Peer(c.peer) * shape.layers / plain});
    }
  }
  return absl::OkStatus();
}

// One block of a prompt over all that came before it and itself, keys rotated, a layer; operations are those of the
// slots that a row sees.
absl::Status MeasurePromptAttention(Bench& b) {
  LaneShape shape = {.layers = 2,
                     .slots = b.tiny() ? 64 : 8192,
                     .tokens = b.tiny() ? 8 : 1024,
                     .is_prompt = true,
                     .rule = gpu::ScoreRule::kSum};
  if (b.tiny()) shape.kv_heads = 1;
  const auto seconds = [&](gpu::ScoreRule rule) -> absl::StatusOr<double> {
    shape.rule = rule;
    EBB_ASSIGN(const Lanes lanes, Lanes::Make(*b.gpu, shape));
    return SecondsOf(b, shape.layers, [&](int layer) {
      const gpu::BlockArgs block = lanes.Block(layer);
      b.table.lay(block, b.gpu->stream());
      b.table.attend_block(block, b.gpu->stream());
      b.table.attend_merge(block.attend, b.gpu->stream());
      if (rule != gpu::ScoreRule::kAge) b.table.observe_block(block, b.gpu->stream());
    });
  };
  EBB_ASSIGN(const double plain, seconds(gpu::ScoreRule::kAge));
  EBB_ASSIGN(const double last, seconds(gpu::ScoreRule::kLast));
  EBB_ASSIGN(const double sums, seconds(gpu::ScoreRule::kSum));
  const double seen = static_cast<double>(shape.tokens) * (shape.slots - shape.tokens / 2.0);
  const double rate = 4 * seen * shape.kv_heads * shape.group * shape.head_dim / plain;
  const std::string name = absl::StrFormat("prompt attention, BF16, %d rows over %d slots", shape.tokens, shape.slots);
  b.report.rows.push_back({.what = name,
                           .measured = Time(plain) + ", " + Rate(rate, "FLOP/s"),
                           .against = Dense(b),
                           .ratio = rate / b.dense_rate});
  if (const double peer = b.Peer("sdpa_prompt"); peer > 0) {
    b.report.rows.push_back({.what = name + ", beside PyTorch's SDPA over contiguous, rotated K and V",
                             .measured = Rate(rate, "FLOP/s"),
                             .against = "SDPA " + Rate(peer, "FLOP/s"),
                             .ratio = rate / peer});
  }
  b.report.rows.push_back({.what = name + ", scores of the last query",
                           .measured = Time(last),
                           .against = "without " + Time(plain),
                           .ratio = last / plain,
                           .better = Better::kSmaller});
  b.report.rows.push_back({.what = name + ", sums over all queries",
                           .measured = Time(sums),
                           .against = "without " + Time(plain),
                           .ratio = sums / plain,
                           .better = Better::kSmaller});
  return absl::OkStatus();
}

absl::Status MeasureUpdate(Bench& b) {
  const int32_t evicted = b.tiny() ? 4 : 64;
  const LaneShape shape = {.sessions = b.tiny() ? 1 : 8,
                           .layers = b.tiny() ? 2 : 32,
                           .kv_heads = b.tiny() ? 1 : 8,
                           .slots = b.tiny() ? 64 : 1024,
                           .tokens = evicted,
                           .free = evicted,
                           .rule = gpu::ScoreRule::kAge,
                           .drop = evicted};
  EBB_ASSIGN(const Lanes lanes, Lanes::Make(*b.gpu, shape));
  // The maps begin anew each time, so that every replay finds the same free slots; that is timed alone and taken off.
  EBB_ASSIGN(const GpuMemory token, b.gpu->Allocate(lanes.token().bytes(), "maps"));
  EBB_ASSIGN(const GpuMemory position, b.gpu->Allocate(lanes.position().bytes(), "maps"));
  EBB_TRY(b.gpu->CopyWithin(token.as<void>(), lanes.token().as<void>(), token.bytes()));
  EBB_TRY(b.gpu->CopyWithin(position.as<void>(), lanes.position().as<void>(), position.bytes()));
  const auto restore = [&] {
    static_cast<void>(b.gpu->CopyWithin(lanes.token().as<void>(), token.as<void>(), token.bytes()));
    static_cast<void>(b.gpu->CopyWithin(lanes.position().as<void>(), position.as<void>(), position.bytes()));
  };
  EBB_ASSIGN(const double nothing, SecondsOf(b, 4, [&](int) { restore(); }));
  EBB_ASSIGN(const double with, SecondsOf(b, 4, [&](int) {
               restore();
               b.table.place({.cache = lanes.cache()}, b.gpu->stream());
               for (int layer = 0; layer < shape.layers; ++layer) b.table.store(lanes.Store(layer), b.gpu->stream());
               b.table.evict({.cache = lanes.cache()}, b.gpu->stream());
             }));
  const double in_place = std::max(with - nothing, 1e-9) / shape.layers;
  const auto bytes = static_cast<int64_t>(shape.bytes());
  EBB_ASSIGN(const GpuMemory from, b.gpu->Allocate(bytes, "what is copied"));
  EBB_ASSIGN(const GpuMemory to, b.gpu->Allocate(bytes, "what is copied"));
  EBB_ASSIGN(const double copied, SecondsOf(b, 8, [&](int) {
               static_cast<void>(b.gpu->CopyWithin(to.as<void>(), from.as<void>(), bytes));
             }));
  const std::string name =
      absl::StrFormat("K and V updated in place, %d of %d, %d sessions, a layer", evicted, shape.slots, shape.sessions);
  b.report.rows.push_back({.what = name + ", beside one copy of all rows, the least that concatenating takes",
                           .measured = Time(in_place),
                           .against = "copy " + Time(copied),
                           .ratio = copied / in_place});
  if (b.Peer("gather_cat") > 0) {
    b.report.rows.push_back({.what = name,
                             .measured = Time(in_place),
                             .against = "PyTorch's gather and concatenate " + Time(b.Peer("gather_cat")),
                             .ratio = b.Peer("gather_cat") / in_place,
                             .target = 3.5});
  } else {
    b.report.missing.push_back("gathering and concatenating K and V: no PyTorch was found");
  }
  return absl::OkStatus();
}

absl::Status MeasureSelection(Bench& b) {
  const int32_t slots = b.tiny() ? 256 : 32768;
  const int32_t kept = b.tiny() ? 16 : 1024;
  // Narrow rows: K and V are not looked at.
  const LaneShape shape = {.layers = b.tiny() ? 1 : 32,
                           .kv_heads = b.tiny() ? 2 : 8,
                           .head_dim = 16,
                           .slots = slots,
                           .rule = gpu::ScoreRule::kSum,
                           .drop = slots - kept};
  EBB_ASSIGN(const Lanes lanes, Lanes::Make(*b.gpu, shape));
  EBB_ASSIGN(const GpuMemory token, b.gpu->Allocate(lanes.token().bytes(), "maps"));
  EBB_TRY(b.gpu->CopyWithin(token.as<void>(), lanes.token().as<void>(), token.bytes()));
  const auto restore = [&] {
    static_cast<void>(b.gpu->CopyWithin(lanes.token().as<void>(), token.as<void>(), token.bytes()));
  };
  EBB_ASSIGN(const double nothing, SecondsOf(b, 4, [&](int) { restore(); }));
  EBB_ASSIGN(const double with, SecondsOf(b, 4, [&](int) {
               restore();
               b.table.evict({.cache = lanes.cache()}, b.gpu->stream());
             }));
  const double seconds = std::max(with - nothing, 1e-9);
  b.report.rows.push_back({.what = absl::StrFormat("%d of %d kept, %d lanes at once", kept, slots, shape.lanes()),
                           .measured = Time(seconds),
                           .against = "100 us",
                           .ratio = seconds / 100e-6,
                           .target = 1,
                           .better = Better::kSmaller});
  return absl::OkStatus();
}

// The products of a decode step, whose cost is reading W, and of a prompt's block, whose cost is multiplying.
absl::Status MeasureLinear(Bench& b) {
  struct Case {
    const char* name;
    gpu::Element type;
    std::vector<int32_t> tokens;
  };
  const std::vector<Case> cases =
      b.tiny() ? std::vector<Case>{{"BF16", gpu::Element::kBf16, {1, 3}},
                                   {"Q8_0", gpu::Element::kQ8, {3, 65}},
                                   {"Q4_K", gpu::Element::kQ4K, {3, 65}},
                                   {"Q5_K", gpu::Element::kQ5K, {3, 65}}}
               : std::vector<Case>{
                     {"BF16", gpu::Element::kBf16, {1, 8, 32, 512}}, {"Q8_0", gpu::Element::kQ8, {1, 32, 512}},
                     {"Q4_0", gpu::Element::kQ4, {1, 32, 512}},      {"Q4_K", gpu::Element::kQ4K, {1, 32, 512}},
                     {"Q5_K", gpu::Element::kQ5K, {1, 32, 512}},     {"Q6_K", gpu::Element::kQ6K, {1, 32, 512}}};
  const int32_t rows = b.tiny() ? 64 : 14336;
  const int32_t cols = b.tiny() ? 256 : 4096;
  for (const Case& c : cases) {
    const int matrices = b.tiny() ? 2 : c.type == gpu::Element::kBf16 ? 10 : 20;  // more than any cache holds
    std::vector<DeviceMatrix> weights;
    for (int i = 0; i < matrices; ++i) {
      EBB_ASSIGN(DeviceMatrix made, DeviceMatrix::Random(*b.gpu, rows, cols, 8 * i, c.type));
      weights.push_back(std::move(made));
    }
    for (const int32_t tokens : c.tokens) {
      EBB_ASSIGN(const GpuMemory x, b.gpu->Allocate(int64_t{tokens} * cols * 4, "x"));
      EBB_ASSIGN(const GpuMemory y, b.gpu->Allocate(int64_t{tokens} * rows * 4, "y"));
      EBB_ASSIGN(const GpuMemory partial, b.gpu->Allocate(gpu::LinearPartials(rows, cols, tokens) * 4, "partial sums"));
      const std::vector<int32_t> none(gpu::LinearMeetings(rows, tokens), 0);
      EBB_ASSIGN(const GpuMemory arrived, b.gpu->Upload(std::span(none), "partial sums"));
      b.table.random({.values = x.as<void>(), .n = int64_t{tokens} * cols, .seed = 5}, b.gpu->stream());
      const bool is_block = tokens > 64;
      EBB_ASSIGN(const double seconds, SecondsOf(b, matrices, [&](int i) {
                   const gpu::LinearArgs args = {.w = weights[i].matrix(),
                                                 .x = x.as<float>(),
                                                 .y = y.as<float>(),
                                                 .y_stride = rows,
                                                 .rows = tokens,
                                                 .partial = partial.as<float>(),
                                                 .arrived = arrived.as<int32_t>()};
                   is_block ? b.table.linear_tiles(args, b.gpu->stream()) : b.table.linear_rows(args, b.gpu->stream());
                 }));
      const std::string name =
          absl::StrFormat("product of %d rows with %s weights of %d x %d", tokens, c.name, rows, cols);
      const double operations = 2.0 * tokens * rows * cols / seconds;
      const double bytes = static_cast<double>(weights[0].bytes()) / seconds;
      b.report.rows.push_back({.what = name,
                               .measured = is_block ? Rate(operations, "FLOP/s") : Rate(bytes, "B/s"),
                               .against = is_block ? Dense(b) : "copy rate " + Rate(b.copy_rate, "B/s"),
                               .ratio = is_block ? operations / b.dense_rate : bytes / b.copy_rate});
    }
  }
  return absl::OkStatus();
}

// Of what a step ends with: launches, copies out, and the wait for them.
template <typename Run>
absl::StatusOr<double> MedianWithItsWait(const Bench& b, const Run& run) {
  std::vector<double> all;
  for (int i = 0; i < (b.tiny() ? 1 : 30); ++i) {
    EBB_TRY(b.gpu->Wait());
    const double begin = Now();
    EBB_TRY(run());
    EBB_TRY(b.gpu->Wait());
    all.push_back(Now() - begin);
  }
  return bench::Median(all);
}

// What a decode step whose sessions sample costs behind its logits: the largest of each row found and copied out,
// beside copying out the rows.
absl::Status MeasureLargest(Bench& b) {
  constexpr int32_t kCount = 64;
  const int32_t rows = b.tiny() ? 2 : 8;
  const int32_t vocab = b.tiny() ? 5000 : 128256;
  const int64_t logits_count = int64_t{rows} * vocab;
  EBB_ASSIGN(const GpuMemory logits, b.gpu->Allocate(logits_count * 4, "logits"));
  EBB_ASSIGN(const GpuMemory scratch, b.gpu->Allocate(rows * gpu::LargestScratch(vocab, kCount) * 8, "scratch"));
  EBB_ASSIGN(const GpuMemory largest, b.gpu->Allocate(rows * kCount * 8, "the largest"));
  b.table.random({.values = logits.as<void>(), .n = logits_count, .scale = 10, .seed = 7}, b.gpu->stream());
  const auto launch = [&] {
    b.table.largest({.logits = logits.as<float>(),
                     .vocab = vocab,
                     .rows = rows,
                     .count = kCount,
                     .scratch = scratch.as<uint64_t>(),
                     .largest = largest.as<gpu::TokenLogit>()},
                    b.gpu->stream());
  };
  std::vector<float> rows_here(logits_count);
  std::vector<gpu::TokenLogit> largest_here(rows * kCount);
  EBB_ASSIGN(const double found, MedianWithItsWait(b, [&] {
               launch();
               return b.gpu->CopyOut(largest.as<gpu::TokenLogit>(), std::span(largest_here));
             }));
  EBB_ASSIGN(const double copied,
             MedianWithItsWait(b, [&] { return b.gpu->CopyOut(logits.as<float>(), std::span(rows_here)); }));
  EBB_ASSIGN(const double alone, SecondsOf(b, 4, [&](int) { launch(); }));
  const std::string name = absl::StrFormat("the %d largest of %d rows of %d logits", kCount, rows, vocab);
  const double rate = static_cast<double>(logits_count) * 4 / alone;
  b.report.rows.push_back({.what = name + ", found",
                           .measured = Time(alone) + ", " + Rate(rate, "B/s"),
                           .against = "copy rate " + Rate(b.copy_rate, "B/s"),
                           .ratio = rate / b.copy_rate});
  b.report.rows.push_back({.what = name + ", found and copied out",
                           .measured = Time(found),
                           .against = "copying the rows out " + Time(copied),
                           .ratio = copied / found});
  return absl::OkStatus();
}

// The same for draws without top_k: the mass of each row, and the token in which a share of it ends.
absl::Status MeasureMass(Bench& b) {
  const int32_t rows = b.tiny() ? 2 : 8;
  const int32_t vocab = b.tiny() ? 5000 : 128256;
  const int64_t logits_count = int64_t{rows} * vocab;
  std::vector<gpu::DrawNeeds> needs;
  for (int32_t row = 0; row < rows; ++row) needs.push_back({.temperature = 1, .share = (row + 0.5) / rows});
  EBB_ASSIGN(const GpuMemory logits, b.gpu->Allocate(logits_count * 4, "logits"));
  EBB_ASSIGN(const GpuMemory best, b.gpu->Allocate(int64_t{rows} * 4, "the best"));
  EBB_ASSIGN(const GpuMemory needed, b.gpu->Upload(std::span<const gpu::DrawNeeds>(needs), "what is needed"));
  EBB_ASSIGN(const GpuMemory parts, b.gpu->Allocate(rows * gpu::MassParts(vocab) * int64_t{8}, "sums of parts"));
  EBB_ASSIGN(const GpuMemory mass, b.gpu->Allocate(rows * int64_t{sizeof(gpu::RowMass)}, "the mass"));
  EBB_ASSIGN(const GpuMemory bests, b.gpu->Allocate(rows * gpu::GreedyParts(vocab) * int64_t{8}, "the best of parts"));
  EBB_ASSIGN(const GpuMemory arrived, b.gpu->Upload(std::span<const int32_t>(std::vector<int32_t>(rows)), "counters"));
  b.table.random({.values = logits.as<void>(), .n = logits_count, .scale = 10, .seed = 7}, b.gpu->stream());
  b.table.greedy({.logits = logits.as<float>(),
                  .vocab = vocab,
                  .rows = rows,
                  .token = best.as<int32_t>(),
                  .parts = bests.as<uint64_t>(),
                  .arrived = arrived.as<int32_t>()},
                 b.gpu->stream());
  EBB_ASSIGN(const double alone, SecondsOf(b, 4, [&](int) {
               b.table.mass({.logits = logits.as<float>(),
                             .best = best.as<int32_t>(),
                             .needs = needed.as<gpu::DrawNeeds>(),
                             .vocab = vocab,
                             .rows = rows,
                             .parts = parts.as<double>(),
                             .mass = mass.as<gpu::RowMass>()},
                            b.gpu->stream());
             }));
  const double rate = static_cast<double>(logits_count) * 4 / alone;
  b.report.rows.push_back(
      {.what = absl::StrFormat("the mass of %d rows of %d logits, and the token at a share of it", rows, vocab),
       .measured = Time(alone) + ", " + Rate(rate, "B/s"),
       .against = "copy rate " + Rate(b.copy_rate, "B/s"),
       .ratio = rate / b.copy_rate});
  return absl::OkStatus();
}

}  // namespace ebb::gpu_check
