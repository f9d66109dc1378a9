// Linear and Embed against float64 loops over the values that GGUF's formats define; in fast arithmetic over
// activations rounded as kernels.h defines it. What is made of norms and linear layers in one go, against its parts.

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "engine/model/k_block.h"
#include "engine/model/quantization.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/hash_random.h"
#include "tests/support/test_lane.h"
#include "tests/unit/engine/ops/each_isa.h"

namespace ebb {
namespace {

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBf16, DType::kQ8_0,  DType::kQ4_0,
                            DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ4_1,  DType::kQ5_0,
                            DType::kQ5_1, DType::kQ2_K, DType::kQ3_K, DType::kIq4Nl, DType::kMxfp4};

// `cols` of a type with blocks of 32, of one with blocks of 256: as many blocks.
int64_t ColsOf(DType type, int64_t cols) { return IsKType(type) ? cols / 32 * kSuperBlock : cols; }

// A matrix of random values as a file would store it. Scales of quantised blocks lie in (0, 0.02).
struct Stored {
  std::vector<std::byte> data = {};
  TensorView view = {};
  std::vector<float> values = {};  // [rows][cols], dequantised
  std::vector<float> spans = {};   // [rows][cols] in Q4_K and Q5_K: a value is a difference of numbers up to this

  double Size(int64_t i) const {
    return static_cast<double>(spans.empty() ? std::abs(values[static_cast<size_t>(i)])
                                             : spans[static_cast<size_t>(i)]);
  }

  Stored(DType type, int64_t rows, int64_t cols, uint64_t seed) {
    data.resize(static_cast<size_t>(rows * RowBytes(type, cols)));
    HashRandom random(seed, 7);
    const int64_t block = BlockBytes(type);
    for (size_t at = 0; at < data.size(); at += static_cast<size_t>(block)) FillBlock(type, random, data.data() + at);
    view = {.name = "w", .type = type, .rows = rows, .cols = cols, .data = data};
    values.resize(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r) {
      DequantizeRow(type, data.data() + r * RowBytes(type, cols), cols, values.data() + r * cols);
    }
    if (type != DType::kQ4_K && type != DType::kQ5_K) return;
    const int codes = type == DType::kQ4_K ? 16 : 32;
    for (size_t at = 0; at < data.size(); at += static_cast<size_t>(block)) {
      const KBlock k = ReadKBlock(type, data.data() + at);
      for (size_t sub = 0; sub < 8; ++sub) {
        const float span = FloatFromF16(k.d) * static_cast<float>(codes * k.scale[sub]) +
                           FloatFromF16(k.dmin) * static_cast<float>(k.minimum[sub]);
        spans.insert(spans.end(), 32, span);
      }
    }
  }

 private:
  // Of d in a block of a K type; dmin, where there is one, comes next.
  static int64_t PlaceOfScale(DType type) {
    if (type == DType::kQ2_K) return 80;
    if (type == DType::kQ3_K) return 108;
    return type == DType::kQ6_K ? 208 : 0;
  }

  static void FillBlock(DType type, HashRandom& random, std::byte* to) {
    const float value = 2 * random.UniformFloat() - 1;
    uint16_t half = type == DType::kBf16 ? Bf16FromFloat(value) : F16FromFloat(value);
    switch (type) {
      case DType::kF32:
        std::memcpy(to, &value, 4);
        return;
      case DType::kF16:
      case DType::kBf16:
        std::memcpy(to, &half, 2);
        return;
      case DType::kQ8_0:
      case DType::kQ4_0:
      case DType::kQ4_1:
      case DType::kQ5_0:
      case DType::kQ5_1:
      case DType::kIq4Nl:
        half = F16FromFloat(0.02F * random.UniformFloat());
        std::memcpy(to, &half, 2);
        for (int64_t i = 2; i < BlockBytes(type); ++i) to[i] = static_cast<std::byte>(random.Next64());
        half = F16FromFloat(0.3F * random.UniformFloat() - 0.3F);
        if (type == DType::kQ4_1 || type == DType::kQ5_1) std::memcpy(to + 2, &half, 2);
        return;
      case DType::kMxfp4:
        for (int64_t i = 1; i < BlockBytes(type); ++i) to[i] = static_cast<std::byte>(random.Next64());
        to[0] = static_cast<std::byte>(120 + random.Next64() % 4);
        return;
      case DType::kQ2_K:
      case DType::kQ3_K:
      case DType::kQ4_K:
      case DType::kQ5_K:
      case DType::kQ6_K:
        for (int64_t i = 0; i < BlockBytes(type); ++i) to[i] = static_cast<std::byte>(random.Next64());
        half = F16FromFloat(0.001F * random.UniformFloat());
        std::memcpy(to + PlaceOfScale(type), &half, 2);
        half = F16FromFloat(0.01F * random.UniformFloat());
        if (type != DType::kQ3_K && type != DType::kQ6_K) std::memcpy(to + PlaceOfScale(type) + 2, &half, 2);
        return;
    }
  }
};

std::vector<float> Multiply(Ops& ops, const PackedMatrix& w, const std::vector<float>& x, int32_t tokens) {
  std::vector<float> y(static_cast<size_t>(tokens * w.rows()), std::nanf(""));
  ops.Linear(w, x, tokens, Ops::Into::kSet, y);
  return y;
}

// Numbers that are added to a total: one per chunk, in the K types two (of Q6_K two scaled sums, of the others one and
// the minimum) and what the value itself was rounded by.
double Additions(DType type, int64_t cols) {
  const auto chunks = static_cast<double>(cols) / 32;
  return IsKType(type) ? 2 * chunks + 2 : chunks;
}

// The products of `tokens` rows of x with w in float64, and beside each the sum of its terms' magnitudes:
// [tokens][rows].
struct Float64Products {
  std::vector<double> sums = {};
  std::vector<double> magnitudes = {};
};

Float64Products InFloat64(const Stored& w, int64_t rows, std::span<const double> x, int64_t tokens) {
  Float64Products products;
  const int64_t cols = static_cast<int64_t>(x.size()) / tokens;
  std::vector<double> sizes(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows * cols; ++i) sizes[static_cast<size_t>(i)] = w.Size(i);
  for (int64_t t = 0; t < tokens; ++t) {
    const double* const row = x.data() + t * cols;
    for (int64_t r = 0; r < rows; ++r) {
      const float* const values = w.values.data() + r * cols;
      double sum = 0;
      double magnitude = 0;
      for (int64_t c = 0; c < cols; ++c) {
        sum += row[c] * static_cast<double>(values[c]);
        magnitude += std::abs(row[c]) * sizes[static_cast<size_t>(r * cols + c)];
      }
      products.sums.push_back(sum);
      products.magnitudes.push_back(magnitude);
    }
  }
  return products;
}

void ExpectNear(std::span<const float> y, const Float64Products& expected, double halves, int64_t rows) {
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_NEAR(y[i], expected.sums[i], halves * 0x1p-24 * expected.magnitudes[i])
        << "token " << static_cast<int64_t>(i) / rows << " row " << static_cast<int64_t>(i) % rows;
  }
}

// Each product is rounded once or twice and each sum once: with sums of at most 32 terms added up by chunk, the error
// stays below (32 + additions + 2) half-ulps of the sum of magnitudes.
TEST(Linear, EqualsFloat64LoopsAtEveryShape) {
  const std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 32},  {15, 32}, {16, 64},  {17, 96},
                                                           {64, 32}, {65, 64}, {112, 96}, {70, 160}};
  constexpr int32_t kTokensMax = 13;
  for (const DType type : kTypes) {
    for (const auto& [rows, cols32] : shapes) {
      const int64_t cols = ColsOf(type, cols32);
      const Stored w(type, rows, cols, static_cast<uint64_t>(rows + cols));
      const std::vector<float> x = RandomFloats(3, 1, kTokensMax * cols);
      const Float64Products expected = InFloat64(w, rows, std::vector<double>(x.begin(), x.end()), kTokensMax);
      ForEachIsa([&](Ops& ops) {
        const auto packed = ops.Pack(w.view);
        for (const int32_t tokens : {1, 2, 3, 5, 7, kTokensMax}) {
          SCOPED_TRACE(testing::Message() << TypeName(type) << " [" << rows << ", " << cols << "] x " << tokens);
          const std::vector<float> some(x.begin(), x.begin() + tokens * cols);
          ExpectNear(Multiply(ops, *packed, some, tokens), expected, 34 + Additions(type, cols), rows);
        }
      });
    }
  }
}

TEST(Linear, HandlesColumnsThatFillNoChunk) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (int64_t cols = 1; cols <= 67; ++cols) {
      SCOPED_TRACE(testing::Message() << TypeName(type) << " cols " << cols);
      const Stored w(type, 19, cols, 11);
      const std::vector<float> x = RandomFloats(4, 1, 2 * cols);
      ForEachIsa([&](Ops& ops) {
        const std::vector<float> y = Multiply(ops, *ops.Pack(w.view), x, 2);
        for (int64_t i = 0; i < 2 * 19; ++i) {
          double sum = 0;
          for (int64_t c = 0; c < cols; ++c) {
            sum += static_cast<double>(x[static_cast<size_t>(i / 19 * cols + c)]) *
                   static_cast<double>(w.values[static_cast<size_t>(i % 19 * cols + c)]);
          }
          ASSERT_NEAR(y[static_cast<size_t>(i)], sum, 40 * 0x1p-24 * static_cast<double>(cols));
        }
      });
    }
  }
}

// What fast arithmetic makes of one row of x: bytes that share a scale per 128 columns, or BF16.
std::vector<double> Rounded(DType type, std::span<const float> x) {
  std::vector<double> rounded(x.begin(), x.end());
  if (WidenedType(type) == DType::kBf16) {
    for (size_t i = 0; i < x.size(); ++i) rounded[i] = static_cast<double>(FloatFromBf16(Bf16FromFloat(x[i])));
  }
  const DType wide = WidenedType(type);
  if (wide != DType::kQ8_0 && wide != DType::kQ4_0 && !IsKType(wide)) return rounded;
  for (size_t first = 0; first < x.size(); first += 128) {
    const size_t end = std::min(x.size(), first + 128);
    float most = 0;
    for (size_t i = first; i < end; ++i) most = std::max(most, std::abs(x[i]));
    for (size_t i = first; i < end; ++i) {
      rounded[i] = std::nearbyint(static_cast<double>(x[i]) * static_cast<double>(127.0F / most)) *
                   static_cast<double>(most * (1.0F / 127.0F));
    }
  }
  return rounded;
}

// Integer sums are exact; what rounds is one multiply-add per chunk and one per block (or, for BF16, one per product).
TEST(Linear, FastEqualsFloat64LoopsOverRoundedActivations) {
  const std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 32}, {33, 96}, {64, 128}, {65, 160}, {40, 1184}};
  constexpr int32_t kTokensMax = 13;
  for (const DType type : kTypes) {
    for (const auto& [rows, cols32] : shapes) {
      const int64_t cols = ColsOf(type, cols32);
      const Stored w(type, rows, cols, static_cast<uint64_t>(rows + cols));
      const std::vector<float> x = RandomFloats(3, 1, kTokensMax * cols);
      std::vector<double> rounded;
      for (int64_t t = 0; t < kTokensMax; ++t) {
        const std::vector<double> row =
            Rounded(type, std::span<const float>(x.data() + t * cols, static_cast<size_t>(cols)));
        rounded.insert(rounded.end(), row.begin(), row.end());
      }
      const Float64Products expected = InFloat64(w, rows, rounded, kTokensMax);
      const double roundings = WidenedType(type) == DType::kBf16 ? static_cast<double>(cols) : 34;
      ForEachIsa(
          [&](Ops& ops) {
            const auto packed = ops.Pack(w.view);
            for (const int32_t tokens : {1, 3, 8, kTokensMax}) {
              SCOPED_TRACE(testing::Message() << TypeName(type) << " [" << rows << ", " << cols << "] x " << tokens);
              const std::vector<float> some(x.begin(), x.begin() + tokens * cols);
              ExpectNear(Multiply(ops, *packed, some, tokens), expected, roundings + Additions(type, cols), rows);
            }
          },
          Accuracy::kFast);
    }
  }
}

// A block of zeros has no scale to divide by, and one of subnormals none that could be inverted.
TEST(Linear, FastTakesRowsOfZerosAndOfTinyValues) {
  const Stored w(DType::kQ8_0, 20, 64, 12);
  for (const float value : {0.0F, 1e-40F, -1e-38F}) {
    const std::vector<float> x(64, value);
    ForEachIsa(
        [&](Ops& ops) {
          for (const float y : Multiply(ops, *ops.Pack(w.view), x, 1)) EXPECT_NEAR(y, 0, 1e-35);
        },
        Accuracy::kFast);
  }
}

TEST(Linear, FastKeepsWhatIsNotANumberVisible) {
  const Stored w(DType::kQ8_0, 20, 256, 13);
  for (const float value : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    std::vector<float> x(256, 0.5F);
    x[130] = value;
    ForEachIsa(
        [&](Ops& ops) {
          for (const float y : Multiply(ops, *ops.Pack(w.view), x, 1)) EXPECT_TRUE(std::isnan(y));
        },
        Accuracy::kFast);
  }
}

// And on a GPU (GpuLinear.AnInfiniteNumberIsInfiniteInItsProducts).
TEST(Linear, AnInfiniteNumberMakesBf16ProductsInfinite) {
  const Stored w(DType::kBf16, 20, 256, 14);
  for (const Accuracy accuracy : {Accuracy::kExact, Accuracy::kFast}) {
    for (const float value : {HUGE_VALF, -HUGE_VALF}) {
      std::vector<float> x(256, 0.5F);
      x[130] = value;
      ForEachIsa(
          [&](Ops& ops) {
            const std::vector<float> y = Multiply(ops, *ops.Pack(w.view), x, 1);
            for (size_t o = 0; o < y.size(); ++o) EXPECT_EQ(y[o], w.values[o * 256 + 130] * value) << o;
          },
          accuracy);
    }
  }
}

TEST(Linear, BitsAreEqualInEveryInstructionSet) {
  for (const DType type : kTypes) {
    for (const Accuracy accuracy : {Accuracy::kExact, Accuracy::kFast}) {
      SCOPED_TRACE(TypeName(type));
      const Stored w(type, 83, ColsOf(type, 672), 5);
      const std::vector<float> x = RandomFloats(5, 1, 9 * w.view.cols);
      const auto scalar = OpsFor("scalar", 1, accuracy);
      const std::vector<float> expected = Multiply(*scalar, *scalar->Pack(w.view), x, 9);
      ForEachIsa([&](Ops& ops) { EXPECT_EQ(Multiply(ops, *ops.Pack(w.view), x, 9), expected); }, accuracy);
    }
  }
}

TEST(Linear, ARowsBitsDoNotDependOnTheOtherRowsOrThreads) {
  constexpr int32_t kTokens = 200;
  for (const DType type : kTypes) {
    for (const Accuracy accuracy : {Accuracy::kExact, Accuracy::kFast}) {
      SCOPED_TRACE(TypeName(type));
      const int64_t cols = IsKType(type) ? 768 : 544;
      const Stored w(type, 70, cols, 6);
      const std::vector<float> x = RandomFloats(6, 1, kTokens * cols);
      ForEachIsa(
          [&](Ops& ops) {
            const auto packed = ops.Pack(w.view);
            std::vector<float> alone;
            for (int32_t t = 0; t < kTokens; ++t) {
              const std::vector<float> row(x.begin() + t * cols, x.begin() + (t + 1) * cols);
              const std::vector<float> y = Multiply(ops, *packed, row, 1);
              alone.insert(alone.end(), y.begin(), y.end());
            }
            const std::string isa(ops.fingerprint().substr(0, ops.fingerprint().find(' ')));
            const auto threads = OpsFor(isa, 3, accuracy);
            for (const int32_t tokens : {2, 3, 4, 5, 6, 7, 8, 13, 16, kTokens}) {
              const std::vector<float> some(x.begin(), x.begin() + tokens * cols);
              const std::vector<float> expected(alone.begin(), alone.begin() + tokens * 70);
              EXPECT_EQ(Multiply(ops, *packed, some, tokens), expected) << tokens;
              EXPECT_EQ(Multiply(*threads, *threads->Pack(w.view), some, tokens), expected) << tokens;
            }
          },
          accuracy);
    }
  }
}

TEST(Linear, AddsToWhatIsThere) {
  const Stored w(DType::kF32, 37, 64, 8);
  const std::vector<float> x = RandomFloats(8, 1, 3 * 64);
  const std::vector<float> before = RandomFloats(8, 2, 3 * 37);
  ForEachIsa([&](Ops& ops) {
    const auto packed = ops.Pack(w.view);
    const std::vector<float> product = Multiply(ops, *packed, x, 3);
    std::vector<float> y = before;
    ops.Linear(*packed, x, 3, Ops::Into::kAdd, y);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], before[i] + product[i], 1e-5);
  });
}

TEST(Linear, ManyMatricesGiveWhatEachGivesByItself) {
  constexpr int32_t kTokens = 7;
  std::vector<Stored> stored;
  for (const DType type : kTypes) stored.emplace_back(type, 33 + static_cast<int64_t>(type), 256, 14);
  const std::vector<float> x = RandomFloats(9, 1, kTokens * 256);
  for (const Accuracy accuracy : {Accuracy::kExact, Accuracy::kFast}) {
    ForEachIsa(
        [&](Ops& ops) {
          std::vector<std::unique_ptr<PackedMatrix>> packed;
          std::vector<const PackedMatrix*> all;
          int64_t outputs = 0;
          for (const Stored& one : stored) {
            packed.push_back(ops.Pack(one.view));
            all.push_back(packed.back().get());
            outputs += one.view.rows;
          }
          std::vector<float> y(static_cast<size_t>(kTokens * outputs));
          ops.Linear(all, x, kTokens, Ops::Into::kSet, y);
          int64_t first = 0;
          for (const auto& one : packed) {
            const std::vector<float> expected = Multiply(ops, *one, x, kTokens);
            for (int64_t t = 0; t < kTokens; ++t) {
              const auto from = expected.begin() + t * one->rows();
              EXPECT_TRUE(std::equal(from, from + one->rows(), y.begin() + t * outputs + first)) << t;
            }
            first += one->rows();
          }
        },
        accuracy);
  }
}

// Row by row on one thread: a norm by the scalar kernel, then Linear.
std::vector<float> NormThenLinear(Ops& ops, const Norm& norm, std::span<const PackedMatrix* const> w,
                                  const std::vector<float>& x) {
  const auto dim = static_cast<int64_t>(norm.weight.size());
  int64_t outputs = 0;
  for (const PackedMatrix* const one : w) outputs += one->rows();
  std::vector<float> all, h(norm.weight.size()), y(static_cast<size_t>(outputs));
  for (size_t at = 0; at < x.size(); at += norm.weight.size()) {
    (*cpu::ChooseKernels("scalar"))->rms_norm(x.data() + at, norm.weight.data(), norm.eps, dim, h.data());
    ops.Linear(w, h, 1, Ops::Into::kSet, y);
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

// Of three matrices together: what each of several kinds of arithmetic reads.
constexpr DType kTogether[][3] = {
    {DType::kQ8_0, DType::kQ8_0, DType::kQ8_0}, {DType::kQ4_0, DType::kBf16, DType::kF32},
    {DType::kQ4_K, DType::kQ4_K, DType::kQ6_K}, {DType::kBf16, DType::kBf16, DType::kBf16},
    {DType::kF16, DType::kQ8_0, DType::kQ5_K},  {DType::kF32, DType::kF32, DType::kF16}};

// More than a block of 192 rows; under sanitizers, where that takes scalar kernels minutes, more than two tiles of 6.
#if defined(EBB_SANITIZED)
constexpr int32_t kManyRows = 13;
#else
constexpr int32_t kManyRows = 200;
#endif

// The ops of every instruction set and both accuracies, on one thread and on three.
void ForEachOps(const std::function<void(Ops& one, Ops& three)>& test) {
  for (const Accuracy accuracy : {Accuracy::kExact, Accuracy::kFast}) {
    for (const cpu::Kernels* kernels : cpu::AvailableKernels()) {
      SCOPED_TRACE(kernels->name);
      test(*OpsFor(kernels->name, 1, accuracy), *OpsFor(kernels->name, 3, accuracy));
    }
  }
}

TEST(NormLinear, GivesTheBitsOfANormAndALinearRowByRow) {
  constexpr int64_t kDim = 512;
  const std::vector<float> weight = RandomFloats(15, 1, kDim);
  const std::vector<float> x = RandomFloats(15, 2, kManyRows * kDim, 3);
  for (const auto& types : kTogether) {
    SCOPED_TRACE(TypeName(types[0]));
    const Stored q(types[0], 40, kDim, 1), k(types[1], 17, kDim, 2), v(types[2], 32, kDim, 3);
    ForEachOps([&](Ops& one, Ops& three) {
      const auto a = one.Pack(q.view), b = one.Pack(k.view), c = one.Pack(v.view);
      const PackedMatrix* const w[] = {a.get(), b.get(), c.get()};
      for (const int32_t tokens : {1, 7, kManyRows}) {
        const std::vector<float> some(x.begin(), x.begin() + tokens * kDim);
        const std::vector<float> expected = NormThenLinear(one, {weight, 1e-5F}, w, some);
        for (Ops* const ops : {&one, &three}) {
          std::vector<float> y(expected.size(), std::nanf(""));
          ops->NormLinear({weight, 1e-5F}, w, some, tokens, y);
          EXPECT_EQ(y, expected) << tokens;
        }
      }
    });
  }
}

// Hidden columns fill no block of rounded activations where the type allows it.
TEST(FeedForward, GivesTheBitsOfItsPartsRowByRow) {
  constexpr int64_t kDim = 256;
  const std::vector<float> weight = RandomFloats(16, 1, kDim);
  const std::vector<float> x = RandomFloats(16, 2, kManyRows * kDim, 3);
  for (const auto& types : kTogether) {
    const int64_t ffn = IsKType(types[2]) ? 512 : 416;
    SCOPED_TRACE(TypeName(types[2]));
    const Stored gate(types[0], ffn, kDim, 1), up(types[1], ffn, kDim, 2), down(types[2], kDim, ffn, 3);
    ForEachOps([&](Ops& one, Ops& three) {
      const auto a = one.Pack(gate.view), b = one.Pack(up.view), c = one.Pack(down.view);
      const PackedMatrix* const w[] = {a.get(), b.get()};
      for (const int32_t tokens : {1, 7, kManyRows}) {
        const std::vector<float> some(x.begin(), x.begin() + tokens * kDim);
        const std::vector<float> gate_up = NormThenLinear(one, {weight, 1e-5F}, w, some);
        std::vector<float> expected = some, hidden(static_cast<size_t>(ffn));
        for (int32_t t = 0; t < tokens; ++t) {
          const float* const row = gate_up.data() + t * 2 * ffn;
          (*cpu::ChooseKernels("scalar"))->activate(cpu::Curve::kSilu, row, row + ffn, ffn, hidden.data());
          one.Linear(*c, hidden, 1, Ops::Into::kAdd, std::span(expected).subspan(t * kDim, kDim));
        }
        for (Ops* const ops : {&one, &three}) {
          std::vector<float> y = some;
          const Norm norm = {weight, 1e-5F};
          ops->FeedForward(&norm, {.gate = a.get(), .up = b.get(), .down = c.get()}, y, tokens, Ops::Into::kAdd, y);
          EXPECT_EQ(y, expected) << tokens;
        }
      }
    });
  }
}

TEST(Linear, SaysHowManyBytesItReads) {
  const auto ops = OpsFor("scalar");
  EXPECT_EQ(ops->Pack(Stored(DType::kQ8_0, 128, 64, 1).view)->bytes(), 128 * 2 * 34);
  EXPECT_EQ(ops->Pack(Stored(DType::kQ4_0, 128, 64, 1).view)->bytes(), 128 * 2 * 18);
  EXPECT_EQ(ops->Pack(Stored(DType::kQ4_K, 128, 512, 1).view)->bytes(), 128 * 2 * 148);  // the file's 144
  EXPECT_EQ(ops->Pack(Stored(DType::kQ5_K, 128, 512, 1).view)->bytes(), 128 * 2 * 180);  // the file's 176
  EXPECT_EQ(ops->Pack(Stored(DType::kQ6_K, 128, 512, 1).view)->bytes(), 128 * 2 * 210);
  EXPECT_EQ(ops->Pack(Stored(DType::kBf16, 128, 64, 1).view)->bytes(), 128 * 64 * 2);
  EXPECT_EQ(ops->Pack(Stored(DType::kF32, 17, 33, 1).view)->bytes(), 32 * 64 * 4) << "padded to 16 rows, 32 columns";
}

TEST(Embed, GivesTheRowsExactly) {
  const std::vector<int32_t> tokens = {4, 0, 4, 2};
  for (const DType type : kTypes) {
    SCOPED_TRACE(TypeName(type));
    const int64_t cols = ColsOf(type, 64);
    const Stored table(type, 5, cols, 9);
    std::vector<float> x(tokens.size() * static_cast<size_t>(cols));
    OpsFor("scalar")->Embed(table.view, tokens, 1, Ops::Into::kSet, x);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(x[i], table.values[static_cast<size_t>(tokens[i / cols]) * cols + i % cols]);
    }
  }
}

}  // namespace
}  // namespace ebb
