// A product is told to these libraries column by column: y' = W' x' where M' is M, row after row, taken for columns. So
// W is their A, transposed, x their B, and y their C and D.

#include "engine/gpu/blas_lt.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr int kWaysMax = 16;

// The same in both.
constexpr int kReal32F = 0;
constexpr int kReal16Bf = 14;
constexpr int kPreferWorkspaceMax = 1;  // an uint64_t

// What they differ in: cublasLt.h of versions 11 to 13, hipblaslt.h from 0.6 on.
struct Facts {
  std::string_view kind;  // of the table of kernels
  std::string_view name;
  std::string_view prefix;  // of its functions
  std::array<const char*, 4> files;
  int compute_32f;         // sums in floats
  int transpose;           // the operation,
  int attribute_of_a;      // and what says it of A
  size_t algorithm_bytes;  // of a way as it is told,
  size_t state_at;         // where its status is,
  size_t told_bytes;       // and where the next one begins
  bool has_more_to_prefer;
  int version_min;  // as it tells it; 0: any has these numbers
  // What it calls a way's number, which it tells if asked for attribute 0; else that is a way's first four bytes.
  std::string_view number;
  bool is_asked_for_number;
};
constexpr std::array<Facts, 2> kFacts = {
    Facts{.kind = "cuda",
          .name = "cuBLASLt",
          .prefix = "cublasLt",
          .files = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", "/usr/local/cuda/lib64/libcublasLt.so"},
          .compute_32f = 68,
          .transpose = 1,
          .attribute_of_a = 3,
          .algorithm_bytes = 64,
          .state_at = 72,
          .told_bytes = 96,
          .has_more_to_prefer = true,
          .version_min = 0,
          .number = "algorithm",
          .is_asked_for_number = true},
    Facts{.kind = "hip",
          .name = "hipBLASLt",
          .prefix = "hipblasLt",
          .files = {"libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so", "/opt/rocm/lib/libhipblaslt.so"},
          .compute_32f = 2,
          .transpose = 112,
          .attribute_of_a = 0,
          .algorithm_bytes = 24,
          .state_at = 32,
          .told_bytes = 56,
          .has_more_to_prefer = false,
          .version_min = 600,
          .number = "solution",
          .is_asked_for_number = false}};
// No sums over parts of the columns, and y aligned to 64 bytes: each an uint32_t.
constexpr int kPreferReductions = 3;
constexpr int kPreferAlignmentOfC = 7;
constexpr int kPreferAlignmentOfD = 8;
constexpr uint32_t kAlignment = 64;
constexpr int kAlgorithmNumber = 0;  // an int32_t

using Handle = void*;
struct Functions {
  int (*create)(Handle* handle) = nullptr;
  int (*destroy)(Handle handle) = nullptr;
  int (*version)(Handle handle, int* version) = nullptr;  // where it is asked
  int (*create_product)(Handle* product, int compute, int scale) = nullptr;
  int (*set_product)(Handle product, int attribute, const void* value, size_t bytes) = nullptr;
  int (*destroy_product)(Handle product) = nullptr;
  int (*create_layout)(Handle* layout, int type, uint64_t rows, uint64_t cols, int64_t stride) = nullptr;
  int (*destroy_layout)(Handle layout) = nullptr;
  int (*create_preference)(Handle* preference) = nullptr;
  int (*set_preference)(Handle preference, int attribute, const void* value, size_t bytes) = nullptr;
  int (*destroy_preference)(Handle preference) = nullptr;
  int (*find)(Handle handle, Handle product, Handle a, Handle b, Handle c, Handle d, Handle preference, int wanted,
              void* found, int* count) = nullptr;
  int (*ask)(const void* way, int attribute, void* value, size_t bytes,
             size_t* written) = nullptr;  // where it is asked
  int (*multiply)(Handle handle, Handle product, const void* alpha, const void* a, Handle a_layout, const void* b,
                  Handle b_layout, const void* beta, const void* c, Handle c_layout, void* d, Handle d_layout,
                  const void* algorithm, void* workspace, size_t bytes, void* stream) = nullptr;
};

absl::Status NotUsable(const std::string& what) {
  return Refuse(absl::StatusCode::kUnavailable, what + "; install one, or set model.gpu_products to own",
                {.reason = "GPU_PRODUCTS_UNAVAILABLE", .field = "model.gpu_products"});
}

absl::Status Succeeded(const Facts& facts, int status, std::string_view what) {
  if (status == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%s%s gave status %d", facts.prefix, what, status));
}

// Of a file that stays loaded.
absl::StatusOr<Functions> Load(const Facts& facts, const char* file) {
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError("it is not there");
  Functions f;
  std::string missing;
  const auto find = [&](std::string_view name, auto& function) {
    const std::string whole = absl::StrFormat("%s%s", facts.prefix, name);
    void* const symbol = dlsym(library, whole.c_str());
    if (symbol == nullptr) missing = whole;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find("Create", f.create);
  find("Destroy", f.destroy);
  if (facts.version_min > 0) find("GetVersion", f.version);
  find("MatmulDescCreate", f.create_product);
  find("MatmulDescSetAttribute", f.set_product);
  find("MatmulDescDestroy", f.destroy_product);
  find("MatrixLayoutCreate", f.create_layout);
  find("MatrixLayoutDestroy", f.destroy_layout);
  find("MatmulPreferenceCreate", f.create_preference);
  find("MatmulPreferenceSetAttribute", f.set_preference);
  find("MatmulPreferenceDestroy", f.destroy_preference);
  find("MatmulAlgoGetHeuristic", f.find);
  if (facts.is_asked_for_number) find("MatmulAlgoConfigGetAttribute", f.ask);
  find("Matmul", f.multiply);
  if (!missing.empty()) return absl::FailedPreconditionError("it lacks " + missing);
  return f;
}

// What a function of the library made, and another takes back.
using Owned = std::unique_ptr<void, int (*)(Handle)>;

class BlasLt : public ProductLibrary {
 public:
  static absl::StatusOr<std::unique_ptr<ProductLibrary>> Open(const Gpu& gpu, const Facts& facts, const char* file) {
    EBB_ASSIGN(const Functions f, Load(facts, file));
    EBB_TRY(gpu.Use());
    auto lt = std::unique_ptr<BlasLt>(new BlasLt(gpu, facts, f, file));
    Handle handle = nullptr;
    EBB_TRY(Succeeded(facts, f.create(&handle), "Create"));
    lt->handle_ = Owned(handle, f.destroy);
    if (facts.version_min > 0) {
      int version = 0;
      EBB_TRY(Succeeded(facts, f.version(lt->handle_.get(), &version), "GetVersion"));
      if (version < facts.version_min) {
        return absl::FailedPreconditionError(
            absl::StrFormat("it is of version %d, and %d is the first with these numbers", version, facts.version_min));
      }
    }
    EBB_TRY(Succeeded(facts, f.create_product(&handle, facts.compute_32f, kReal32F), "MatmulDescCreate"));
    lt->product_ = Owned(handle, f.destroy_product);
    const int32_t transpose = facts.transpose;
    EBB_TRY(Succeeded(facts, f.set_product(lt->product_.get(), facts.attribute_of_a, &transpose, sizeof(transpose)),
                      "MatmulDescSetAttribute"));
    EBB_TRY(Succeeded(facts, f.create_preference(&handle), "MatmulPreferenceCreate"));
    lt->preference_ = Owned(handle, f.destroy_preference);
    const auto prefer = [&](int attribute, auto value) {
      return Succeeded(facts, f.set_preference(lt->preference_.get(), attribute, &value, sizeof(value)),
                       "MatmulPreferenceSetAttribute");
    };
    EBB_TRY(prefer(kPreferWorkspaceMax, static_cast<uint64_t>(kWorkspaceBytes)));
    if (facts.has_more_to_prefer) {
      EBB_TRY(prefer(kPreferReductions, uint32_t{0}));
      EBB_TRY(prefer(kPreferAlignmentOfC, kAlignment));
      EBB_TRY(prefer(kPreferAlignmentOfD, kAlignment));
    }
    return lt;
  }

  std::string name() const override { return absl::StrFormat("%s (%s)", facts_.name, file_); }
  int64_t workspace_bytes() const override { return kWorkspaceBytes; }
  std::string Describe(const ProductWay& way) const override {
    int32_t number = -1;
    if (!facts_.is_asked_for_number) {
      std::memcpy(&number, way.data(), sizeof(number));
    } else if (size_t written = 0; f_.ask(way.data(), kAlgorithmNumber, &number, sizeof(number), &written) != 0) {
      number = -1;
    }
    return absl::StrFormat("%s %d", facts_.number, number);
  }

  absl::StatusOr<std::vector<ProductWay>> Ways(const ProductShape& shape) override {
    EBB_ASSIGN(const Layouts* const layouts, LayoutsOf(shape));
    std::vector<std::byte> told(kWaysMax * facts_.told_bytes);
    int count = 0;
    EBB_TRY(Succeeded(facts_,
                      f_.find(handle_.get(), product_.get(), layouts->w.get(), layouts->x.get(), layouts->y.get(),
                              layouts->y.get(), preference_.get(), kWaysMax, told.data(), &count),
                      "MatmulAlgoGetHeuristic"));
    std::vector<ProductWay> ways;
    for (size_t at = 0; at < static_cast<size_t>(count) * facts_.told_bytes; at += facts_.told_bytes) {
      int state = 0;
      std::memcpy(&state, &told[at + facts_.state_at], sizeof(state));
      if (state != 0) continue;
      std::memcpy(ways.emplace_back().data(), &told[at], facts_.algorithm_bytes);
    }
    return ways;
  }

  absl::Status Multiply(const ProductShape& shape, const ProductWay& way, const ProductOperands& o) override {
    EBB_ASSIGN(const Layouts* const layouts, LayoutsOf(shape));
    const float one = 1;
    const float beta = shape.add ? 1 : 0;
    return Succeeded(
        facts_,
        f_.multiply(handle_.get(), product_.get(), &one, o.w, layouts->w.get(), o.x, layouts->x.get(), &beta, o.y,
                    layouts->y.get(), o.y, layouts->y.get(), way.data(), o.workspace, kWorkspaceBytes, gpu_.stream()),
        "Matmul");
  }

 private:
  struct Layouts {
    Owned w = {nullptr, nullptr}, x = {nullptr, nullptr}, y = {nullptr, nullptr};
  };

  BlasLt(const Gpu& gpu, const Facts& facts, const Functions& f, const char* file)
      : gpu_(gpu), facts_(facts), f_(f), file_(file) {}

  absl::StatusOr<const Layouts*> LayoutsOf(const ProductShape& shape) {
    const std::tuple key(shape.rows, shape.out, shape.in, shape.y_stride);
    if (const auto found = layouts_.find(key); found != layouts_.end()) return &found->second;
    const auto make = [&](int type, int64_t rows, int64_t cols, int64_t stride, Owned& to) {
      Handle layout = nullptr;
      EBB_TRY(Succeeded(facts_, f_.create_layout(&layout, type, rows, cols, stride), "MatrixLayoutCreate"));
      to = Owned(layout, f_.destroy_layout);
      return absl::OkStatus();
    };
    Layouts layouts;
    EBB_TRY(make(kReal16Bf, shape.in, shape.out, shape.in, layouts.w));
    EBB_TRY(make(kReal16Bf, shape.in, shape.rows, shape.in, layouts.x));
    EBB_TRY(make(kReal32F, shape.out, shape.rows, shape.y_stride, layouts.y));
    return &layouts_.emplace(key, std::move(layouts)).first->second;
  }

  const Gpu& gpu_;
  const Facts& facts_;
  const Functions f_;
  const char* const file_;
  Owned handle_ = {nullptr, nullptr}, product_ = {nullptr, nullptr}, preference_ = {nullptr, nullptr};
  std::map<std::tuple<int32_t, int32_t, int32_t, int64_t>, Layouts> layouts_ = {};  // rows, out, in, y_stride
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProductLibrary>> OpenBlasLt(const Gpu& gpu) {
  const std::string_view kind = gpu.table().name;
  const auto* const facts = std::ranges::find(kFacts, kind, &Facts::kind);
  if (facts == kFacts.end()) return NotUsable(absl::StrFormat("there is no library of products for %s", kind));
  std::string tried;
  for (const char* const file : facts->files) {
    absl::StatusOr<std::unique_ptr<ProductLibrary>> library = BlasLt::Open(gpu, *facts, file);
    if (library.ok() || !GetRefusal(library.status()).reason.empty()) return library;  // no memory, a fault
    absl::StrAppendFormat(&tried, "%s%s: %s", tried.empty() ? "" : ", ", file, library.status().message());
  }
  return NotUsable(absl::StrFormat("no %s can be used: %s", facts->name, tried));
}

}  // namespace ebb
