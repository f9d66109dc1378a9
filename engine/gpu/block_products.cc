#include "engine/gpu/block_products.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/gpu/device_matrix.h"
#include "engine/model/quantization.h"
#include "policies/check.h"
#include "policies/hash_random.h"
#include "policies/status.h"

namespace ebb {
namespace {

// Beside the largest number of a row: orders of summation differ by far less, another matrix or a transposed one by far
// more.
constexpr double kTolerance = 1e-2;

// No more than a quarter of a piece is for nothing, but of the smallest.
int32_t NextPiece(std::span<const int32_t> pieces, int64_t rows) {
  for (const int32_t piece : pieces) {
    if (4 * rows >= 3 * int64_t{piece}) return piece;
  }
  return pieces.back();
}

int64_t RowsOf(std::span<const int32_t> pieces, int64_t rows) {
  int64_t all = 0;
  while (all < rows) all += NextPiece(pieces, rows - all);
  return all;
}

bool HasBitsOf(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Different rows, in such an order that neighbours and rows a tile apart differ.
constexpr int32_t kKinds = 3;
int32_t KindOf(int32_t row) { return static_cast<int32_t>(HashBits(1, 0, row) % kKinds); }

// Floats behind which y begins the second time: no row of a step begins at less than 64 bytes.
constexpr int64_t kOffset = 16;

// One shape, of rows of a few kinds: what they are, where they lie on the device, and what the own kernel makes of
// each.
class Trial {
 public:
  static absl::StatusOr<Trial> Make(const Gpu& gpu, const ProductShape& shape) {
    Trial t(gpu, shape);
    EBB_ASSIGN(t.w_, DeviceMatrix::Random(gpu, shape.out, shape.in, 1));
    // Of many sizes, so that each order of adding has a sum of its own; exact in BF16.
    std::vector<uint16_t> kinds;
    for (int64_t i = 0; i < int64_t{kKinds} * shape.in; ++i) {
      const uint64_t bits = HashBits(2, 0, i);
      kinds.push_back(static_cast<uint16_t>((bits & 1) << 15 | (113 + (bits >> 1) % 15) << 7 | (bits >> 8 & 127)));
    }
    std::vector<uint16_t> x;
    for (int32_t row = 0; row < kMost; ++row) {
      const auto kind = kinds.begin() + int64_t{KindOf(row)} * shape.in;
      x.insert(x.end(), kind, kind + shape.in);
    }
    EBB_ASSIGN(t.x_, gpu.Upload(std::span<const uint16_t>(x), "rows to try"));
    // What y holds before: numbers to add to, or what must not be looked at.
    t.before_.resize(static_cast<size_t>(shape.y_stride));
    for (size_t i = 0; i < t.before_.size(); ++i) {
      t.before_[i] = shape.add ? static_cast<float>(HashUniform(3, 0, i)) : std::numeric_limits<float>::quiet_NaN();
    }
    EBB_ASSIGN(t.y_, gpu.Allocate((kMost * shape.y_stride + kOffset) * 4, "products to try"));
    EBB_TRY(t.MakeExpected(kinds));
    return t;
  }

  // What each kind became, one after another, wherever its rows stood in a piece of that size; nothing where a kind
  // became different rows, or something was written beside them, or the library did not multiply so.
  absl::StatusOr<std::optional<std::vector<float>>> Run(ProductLibrary& library, const GpuMemory& workspace,
                                                        const ProductWay& way, int32_t rows, int64_t offset) const {
    ProductShape shape = shape_;
    shape.rows = rows;
    const std::vector<float> blank = Blank(kMost, offset);
    EBB_TRY(gpu_.CopyIn(std::span<const float>(blank), y_.as<float>()));
    const absl::Status made = library.Multiply(
        shape, way,
        {.w = w_.matrix().values, .x = x_.as<void>(), .y = y_.as<float>() + offset, .workspace = workspace.as<void>()});
    EBB_TRY(gpu_.Wait());  // also of a way that was refused: is the device well?
    if (!made.ok()) return std::nullopt;
    std::vector<float> all(blank.size());
    EBB_TRY(gpu_.CopyOut(y_.as<float>(), std::span(all)));
    EBB_TRY(gpu_.Wait());
    return Kinds(all, blank, rows, offset);
  }

  bool IsNear(std::span<const float> kinds) const {
    double largest = 0;
    for (size_t i = 0; i < expected_.size(); ++i) {
      const double old = shape_.add ? before_[i % static_cast<size_t>(shape_.out)] : 0;
      largest = std::max(largest, std::abs(expected_[i] - old));
    }
    for (size_t i = 0; i < expected_.size(); ++i) {
      if (!(std::abs(double{kinds[i]} - expected_[i]) <= kTolerance * largest)) return false;  // also of no number
    }
    return true;
  }

 private:
  static constexpr int32_t kMost = BlockProducts::kPieces[0];

  Trial(const Gpu& gpu, const ProductShape& shape) : gpu_(gpu), shape_(shape) {}

  std::vector<float> Blank(int32_t rows, int64_t offset) const {
    std::vector<float> blank(static_cast<size_t>(offset), 0.0F);
    for (int32_t row = 0; row < rows; ++row) blank.insert(blank.end(), before_.begin(), before_.end());
    blank.resize(static_cast<size_t>(kMost * shape_.y_stride + kOffset));
    return blank;
  }

  // By the own kernel.
  absl::Status MakeExpected(const std::vector<uint16_t>& kinds) {
    std::vector<float> x;
    for (const uint16_t bits : kinds) x.push_back(FloatFromBf16(bits));
    EBB_ASSIGN(const GpuMemory rows, gpu_.Upload(std::span<const float>(x), "rows to try"));
    EBB_TRY(gpu_.CopyIn(std::span<const float>(Blank(kKinds, 0)), y_.as<float>()));
    gpu_.table().linear_tiles({.w = w_.matrix(),
                               .x = rows.as<float>(),
                               .y = y_.as<float>(),
                               .y_stride = shape_.y_stride,
                               .rows = kKinds,
                               .add = shape_.add ? 1 : 0},
                              gpu_.stream());
    std::vector<float> all(static_cast<size_t>(kKinds * shape_.y_stride));
    EBB_TRY(gpu_.CopyOut(y_.as<float>(), std::span(all)));
    EBB_TRY(gpu_.Wait());
    for (int64_t kind = 0; kind < kKinds; ++kind) {
      const auto row = all.begin() + kind * shape_.y_stride;
      expected_.insert(expected_.end(), row, row + shape_.out);
    }
    return absl::OkStatus();
  }

  std::optional<std::vector<float>> Kinds(std::span<const float> all, std::span<const float> blank, int32_t rows,
                                          int64_t offset) const {
    const auto out = static_cast<size_t>(shape_.out);
    std::array<std::span<const float>, kKinds> kinds;
    if (!HasBitsOf(all.first(offset), blank.first(offset))) return std::nullopt;
    for (int32_t row = 0; row < rows; ++row) {
      const size_t first = static_cast<size_t>(offset + row * shape_.y_stride);
      const size_t behind = static_cast<size_t>(shape_.y_stride) - out;
      if (!HasBitsOf(all.subspan(first + out, behind), blank.subspan(first + out, behind))) return std::nullopt;
      std::span<const float>& kind = kinds[KindOf(row)];
      if (kind.empty()) kind = all.subspan(first, out);
      if (!HasBitsOf(all.subspan(first, out), kind)) return std::nullopt;
    }
    const size_t end = static_cast<size_t>(offset + rows * shape_.y_stride);
    if (!HasBitsOf(all.subspan(end), blank.subspan(end))) return std::nullopt;
    std::vector<float> of_kinds;
    for (const std::span<const float> kind : kinds) of_kinds.insert(of_kinds.end(), kind.begin(), kind.end());
    return of_kinds;
  }

  const Gpu& gpu_;
  ProductShape shape_;
  DeviceMatrix w_ = {};
  GpuMemory x_ = {}, y_ = {};         // of the largest piece
  std::vector<float> before_ = {};    // a row of y
  std::vector<float> expected_ = {};  // of each kind
};

}  // namespace

ProductShape BlockProducts::ShapeOf(const gpu::LinearArgs& args) {
  return {.out = args.w.rows, .in = args.w.cols, .y_stride = args.y_stride, .add = args.add != 0};
}

absl::StatusOr<BlockProducts> BlockProducts::Make(const Gpu& gpu, std::unique_ptr<ProductLibrary> library,
                                                  std::span<const gpu::LinearArgs> products) {
  BlockProducts made(std::move(library));
  for (const gpu::LinearArgs& product : products) {
    if (product.w.type == gpu::Element::kBf16 && product.bias == nullptr) made.fits_.try_emplace(ShapeOf(product));
  }
  if (made.empty()) return made;
  EBB_ASSIGN(made.workspace_, gpu.Allocate(made.library_->workspace_bytes(), made.library_->name() + "'s workspace"));
  for (auto& [shape, fit] : made.fits_) {
    EBB_ASSIGN(fit, made.FindFit(gpu, shape));
  }
  return made;
}

absl::StatusOr<BlockProducts::Fit> BlockProducts::FindFit(const Gpu& gpu, const ProductShape& shape) {
  const auto unfit = [&](const std::string& why) {
    return Refuse(
        absl::StatusCode::kFailedPrecondition,
        absl::StrFormat("products with %d x %d weights: %s; set model.gpu_products to own", shape.out, shape.in, why),
        {.reason = "GPU_PRODUCTS_UNFIT", .field = "model.gpu_products"});
  };
  EBB_ASSIGN(const Trial trial, Trial::Make(gpu, shape));
  const auto run = [&](const ProductWay& way, int32_t rows, int64_t offset) {
    return trial.Run(*library_, workspace_, way, rows, offset);
  };
  ProductShape most = shape;
  most.rows = kPieces[0];
  const absl::StatusOr<std::vector<ProductWay>> ways = library_->Ways(most);
  if (!ways.ok()) return unfit(std::string(ways.status().message()));
  for (const ProductWay& way : *ways) {
    EBB_ASSIGN(const std::optional<std::vector<float>> largest, run(way, most.rows, 0));
    if (!largest || !trial.IsNear(*largest)) continue;
    const auto is_equal = [&](const std::optional<std::vector<float>>& kinds) {
      return kinds && HasBitsOf(*kinds, *largest);
    };
    Fit fit = {.way = way};
    for (const int32_t piece : kPieces) {
      EBB_ASSIGN(const std::optional<std::vector<float>> first, run(way, piece, 0));
      EBB_ASSIGN(const std::optional<std::vector<float>> again, run(way, piece, kOffset));
      if (is_equal(first) && is_equal(again)) fit.pieces.push_back(piece);
      // The piece that was right a moment ago: what differs from call to call is no way.
      if (piece == most.rows && fit.pieces.empty()) break;
    }
    if (!fit.pieces.empty()) return fit;
  }
  return unfit(
      absl::StrFormat("none of the library's %d ways gives equal rows equal bits near the own kernel's", ways->size()));
}

std::string BlockProducts::Describe() const {
  std::string text = library_->name();
  for (const auto& [shape, fit] : fits_) {
    absl::StrAppendFormat(&text, "%s %d x %d%s by %s in pieces of %s", &fit == &fits_.begin()->second ? ":" : ";",
                          shape.out, shape.in, shape.add ? " added" : "", library_->Describe(fit.way),
                          absl::StrJoin(fit.pieces, ", "));
  }
  return text;
}

bool BlockProducts::Takes(const gpu::LinearArgs& args) const {
  return args.w.type == gpu::Element::kBf16 && args.bias == nullptr && fits_.contains(ShapeOf(args));
}

int64_t BlockProducts::RoomFor(int64_t rows) const {
  int64_t room = rows;
  for (const auto& [shape, fit] : fits_) room = std::max(room, RowsOf(fit.pieces, rows));
  return room;
}

void BlockProducts::Multiply(const gpu::LinearArgs& args, const uint16_t* x) {
  ProductShape shape = ShapeOf(args);
  const auto found = fits_.find(shape);
  EBB_CHECK(found != fits_.end());
  for (int64_t row = 0; row < args.rows; row += shape.rows) {
    shape.rows = NextPiece(found->second.pieces, args.rows - row);
    const absl::Status made = library_->Multiply(shape, found->second.way,
                                                 {.w = args.w.values,
                                                  .x = x + row * shape.in,
                                                  .y = args.y + row * shape.y_stride,
                                                  .workspace = workspace_.as<void>()});
    if (made.ok() || !failure_.ok()) continue;
    failure_ = Refuse(absl::StatusCode::kUnavailable, std::string(made.message()), {.reason = "GPU_FAULT"});
  }
}

}  // namespace ebb
