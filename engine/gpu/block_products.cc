#include "engine/gpu/block_products.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
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

template <typename T>
std::vector<T> Repeated(const std::vector<T>& row, int32_t times) {
  std::vector<T> all;
  all.reserve(row.size() * static_cast<size_t>(times));
  for (int32_t i = 0; i < times; ++i) all.insert(all.end(), row.begin(), row.end());
  return all;
}

// One product, of equal rows: what they are, where they lie on the device, and what the own kernel makes of one.
struct Trial {
  const Gpu& gpu;
  gpu::LinearArgs own = {};
  std::vector<float> before = {};    // a row of y
  std::vector<float> expected = {};  // and after
  GpuMemory x = {}, y = {};          // of the largest piece

  static absl::StatusOr<Trial> Make(const Gpu& gpu, const gpu::LinearArgs& product) {
    Trial t = {.gpu = gpu, .own = product};
    HashRandom random(1);
    const auto number = [&] { return static_cast<float>(random.Uniform(0, 254) - 127) / 128; };  // exact in BF16
    std::vector<float> floats(static_cast<size_t>(product.w.cols));
    std::vector<uint16_t> halves;
    for (float& x : floats) {
      x = number();
      halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
    }
    t.before.resize(static_cast<size_t>(product.y_stride));
    for (float& y : t.before) y = number();
    EBB_ASSIGN(t.x, gpu.Upload(std::span<const uint16_t>(Repeated(halves, BlockProducts::kPieces[0])), "rows to try"));
    EBB_ASSIGN(t.y, gpu.Allocate(BlockProducts::kPieces[0] * product.y_stride * 4, "products to try"));
    EBB_ASSIGN(const GpuMemory row, gpu.Upload(std::span<const float>(floats), "a row to try"));
    EBB_TRY(gpu.CopyIn(std::span<const float>(t.before), t.y.as<float>()));
    t.own.x = row.as<float>();
    t.own.y = t.y.as<float>();
    t.own.rows = 1;
    gpu.table().linear_tiles(t.own, gpu.stream());
    t.expected.resize(static_cast<size_t>(product.w.rows));
    EBB_TRY(gpu.CopyOut(t.y.as<float>(), std::span(t.expected)));
    EBB_TRY(gpu.Wait());
    return t;
  }

  bool IsNear(std::span<const float> row) const {
    double largest = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max<double>(largest, std::abs(expected[i] - (own.add != 0 ? before[i] : 0)));
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!(std::abs(double{row[i]} - expected[i]) <= kTolerance * largest)) return false;  // also of what is no number
    }
    return true;
  }

  // The row that all of a piece became; nothing where they became different ones, or the library makes no such piece.
  absl::StatusOr<std::optional<std::vector<float>>> Run(ProductLibrary& library, ProductShape shape,
                                                        const ProductWay& way, int32_t rows) const {
    shape.rows = rows;
    EBB_TRY(gpu.CopyIn(std::span<const float>(Repeated(before, rows)), y.as<float>()));
    const absl::Status made = library.Multiply(shape, way, {.w = own.w.values, .x = x.as<void>(), .y = y.as<float>()});
    if (absl::IsUnimplemented(made)) return std::nullopt;
    EBB_TRY(made);
    std::vector<float> all(static_cast<size_t>(rows * shape.y_stride));
    EBB_TRY(gpu.CopyOut(y.as<float>(), std::span(all)));
    EBB_TRY(gpu.Wait());
    const auto row = [&](int64_t i) { return std::as_bytes(std::span(all).subspan(i * shape.y_stride, shape.out)); };
    for (int32_t i = 1; i < rows; ++i) {
      if (!std::ranges::equal(row(0), row(i))) return std::nullopt;
    }
    all.resize(static_cast<size_t>(shape.out));
    return all;
  }
};

}  // namespace

ProductShape BlockProducts::ShapeOf(const gpu::LinearArgs& args) {
  return {.out = args.w.rows, .in = args.w.cols, .y_stride = args.y_stride, .add = args.add != 0};
}

absl::StatusOr<BlockProducts> BlockProducts::Make(const Gpu& gpu, std::unique_ptr<ProductLibrary> library,
                                                  std::span<const gpu::LinearArgs> products) {
  BlockProducts made(std::move(library));
  for (const gpu::LinearArgs& product : products) {
    if (product.w.type != gpu::Element::kBf16 || product.bias != nullptr) continue;
    const auto [at, is_new] = made.fits_.try_emplace(ShapeOf(product));
    if (!is_new) continue;
    EBB_ASSIGN(at->second, made.FindFit(gpu, product));
  }
  return made;
}

absl::StatusOr<BlockProducts::Fit> BlockProducts::FindFit(const Gpu& gpu, const gpu::LinearArgs& product) {
  EBB_ASSIGN(const Trial trial, Trial::Make(gpu, product));
  ProductShape shape = ShapeOf(product);
  shape.rows = kPieces[0];
  EBB_ASSIGN(const std::vector<ProductWay> ways, library_->Ways(shape));
  for (const ProductWay& way : ways) {
    EBB_ASSIGN(const std::optional<std::vector<float>> largest, trial.Run(*library_, shape, way, kPieces[0]));
    if (!largest || !trial.IsNear(*largest)) continue;
    Fit fit = {.way = way};
    for (const int32_t piece : kPieces) {
      EBB_ASSIGN(const std::optional<std::vector<float>> row, trial.Run(*library_, shape, way, piece));
      if (row && std::ranges::equal(std::as_bytes(std::span(*row)), std::as_bytes(std::span(*largest)))) {
        fit.pieces.push_back(piece);
      }
    }
    if (!fit.pieces.empty()) return fit;
  }
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("of the library's %d ways to multiply with %d x %d weights none gives equal rows equal "
                                "bits, near the own kernel's; set model.gpu_products to own",
                                ways.size(), product.w.rows, product.w.cols),
                {.reason = "GPU_PRODUCTS_UNFIT", .field = "model.gpu_products"});
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
    const absl::Status made = library_->Multiply(
        shape, found->second.way, {.w = args.w.values, .x = x + row * shape.in, .y = args.y + row * shape.y_stride});
    if (made.ok() || !failure_.ok()) continue;
    failure_ = Refuse(absl::StatusCode::kUnavailable, std::string(made.message()), {.reason = "GPU_FAULT"});
  }
}

}  // namespace ebb
