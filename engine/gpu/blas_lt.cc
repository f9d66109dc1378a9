// A product is told to these libraries column by column: y' = W' x' where M' is M, row after row, taken for columns. So
// W is their A, transposed, x their B, and y their C and D.

#include "engine/gpu/blas_lt.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr int kWaysMax = 16;

// The same in both.
constexpr int kReal32F = 0;
constexpr int kReal16Bf = 14;
constexpr int kPreferWorkspaceMax = 1;  // an uint64_t

// What they differ in: cublasLt.h of versions 12 and 13, hipblaslt.h of 0.6 to 1.0.
struct Facts {
  std::string_view kind;  // of the table of kernels
  std::string_view name;
  std::string_view prefix;  // of its functions
  std::array<const char*, 4> files;
  int compute_32f;
  int transpose;            // the operation, and the attribute of a product that
  int attribute_of_a;       // says it of A
  size_t algorithm_bytes;   // of a way as it is told, which
  size_t told_bytes;        // has so many, workspace behind the algorithm
  bool has_more_to_prefer;  // no sums over parts of the columns, and y aligned to 16 bytes
  int invalid;              // statuses of what it does
  int not_supported;        // not multiply so
};
constexpr std::array<Facts, 2> kFacts = {
    Facts{"cuda",
          "cuBLASLt",
          "cublasLt",
          {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", "/usr/local/cuda/lib64/libcublasLt.so"},
          68,
          1,
          3,
          64,
          96,
          true,
          7,
          15},
    Facts{"hip",
          "hipBLASLt",
          "hipblasLt",
          {"libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so", "/opt/rocm/lib/libhipblaslt.so"},
          2,
          112,
          0,
          24,
          56,
          false,
          3,
          7}};
constexpr int kPreferReductions = 3;  // an uint32_t, as are the next two
constexpr int kPreferAlignmentOfC = 7;
constexpr int kPreferAlignmentOfD = 8;

using Handle = void*;
struct Functions {
  int (*create)(Handle* handle) = nullptr;
  int (*destroy)(Handle handle) = nullptr;
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
  int (*multiply)(Handle handle, Handle product, const void* alpha, const void* a, Handle a_layout, const void* b,
                  Handle b_layout, const void* beta, const void* c, Handle c_layout, void* d, Handle d_layout,
                  const void* algorithm, void* workspace, size_t bytes, void* stream) = nullptr;
};

absl::Status NotUsable(const std::string& what) {
  return Refuse(absl::StatusCode::kUnavailable, what + "; set model.gpu_products to own, or install it",
                {.reason = "GPU_PRODUCTS_UNAVAILABLE", .field = "model.gpu_products"});
}

// It stays loaded.
absl::StatusOr<Functions> Load(const Facts& facts) {
  void* library = nullptr;
  for (const char* const file : facts.files) {
    if (library == nullptr) library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return NotUsable(absl::StrFormat("no %s was found: %s", facts.name, absl::StrJoin(facts.files, ", ")));
  }
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
  find("MatmulDescCreate", f.create_product);
  find("MatmulDescSetAttribute", f.set_product);
  find("MatmulDescDestroy", f.destroy_product);
  find("MatrixLayoutCreate", f.create_layout);
  find("MatrixLayoutDestroy", f.destroy_layout);
  find("MatmulPreferenceCreate", f.create_preference);
  find("MatmulPreferenceSetAttribute", f.set_preference);
  find("MatmulPreferenceDestroy", f.destroy_preference);
  find("MatmulAlgoGetHeuristic", f.find);
  find("Matmul", f.multiply);
  if (!missing.empty()) return NotUsable(absl::StrFormat("the %s that was found lacks %s", facts.name, missing));
  return f;
}

// What a function of the library made, and another takes back.
class Owned {
 public:
  Owned() = default;
  Owned(Handle handle, int (*destroy)(Handle)) : handle_(handle), destroy_(destroy) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(destroy_, other.destroy_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
  int (*destroy_)(Handle) = nullptr;
};

class BlasLt : public ProductLibrary {
 public:
  static absl::StatusOr<std::unique_ptr<ProductLibrary>> Open(const Gpu& gpu, const Facts& facts) {
    EBB_ASSIGN(const Functions f, Load(facts));
    EBB_TRY(gpu.Use());
    EBB_ASSIGN(GpuMemory workspace, gpu.Allocate(kWorkspaceBytes, absl::StrFormat("%s's workspace", facts.name)));
    auto lt = std::unique_ptr<BlasLt>(new BlasLt(gpu, facts, f, std::move(workspace)));
    const auto succeeded = [&](int status, std::string_view what) { return lt->Succeeded(status, what); };
    Handle handle = nullptr;
    EBB_TRY(succeeded(f.create(&handle), "Create"));
    lt->handle_ = Owned(handle, f.destroy);
    EBB_TRY(succeeded(f.create_product(&handle, facts.compute_32f, kReal32F), "MatmulDescCreate"));
    lt->product_ = Owned(handle, f.destroy_product);
    const int32_t transpose = facts.transpose;
    EBB_TRY(succeeded(f.set_product(lt->product_.get(), facts.attribute_of_a, &transpose, sizeof(transpose)),
                      "MatmulDescSetAttribute"));
    EBB_TRY(succeeded(f.create_preference(&handle), "MatmulPreferenceCreate"));
    lt->preference_ = Owned(handle, f.destroy_preference);
    const auto prefer = [&](int attribute, auto value) {
      return succeeded(f.set_preference(lt->preference_.get(), attribute, &value, sizeof(value)),
                       "MatmulPreferenceSetAttribute");
    };
    EBB_TRY(prefer(kPreferWorkspaceMax, static_cast<uint64_t>(kWorkspaceBytes)));
    if (facts.has_more_to_prefer) {
      EBB_TRY(prefer(kPreferReductions, uint32_t{0}));
      EBB_TRY(prefer(kPreferAlignmentOfC, uint32_t{16}));
      EBB_TRY(prefer(kPreferAlignmentOfD, uint32_t{16}));
    }
    return lt;
  }

  absl::StatusOr<std::vector<ProductWay>> Ways(const ProductShape& shape) override {
    EBB_ASSIGN(const Layouts* const layouts, LayoutsOf(shape));
    std::vector<std::byte> told(kWaysMax * facts_.told_bytes);
    int count = 0;
    const int found = f_.find(handle_.get(), product_.get(), layouts->w.get(), layouts->x.get(), layouts->y.get(),
                              layouts->y.get(), preference_.get(), kWaysMax, told.data(), &count);
    if (IsUnsupported(found)) count = 0;  // "none" is said so, too
    if (!IsUnsupported(found)) EBB_TRY(Succeeded(found, "MatmulAlgoGetHeuristic"));
    std::vector<ProductWay> ways(static_cast<size_t>(count));
    for (size_t i = 0; i < ways.size(); ++i) {
      const std::byte* const way = &told[i * facts_.told_bytes];
      std::memcpy(ways[i].algorithm.data(), way, facts_.algorithm_bytes);
      std::memcpy(&ways[i].workspace, way + facts_.algorithm_bytes, sizeof(ways[i].workspace));
    }
    std::erase_if(ways, [](const ProductWay& way) { return way.workspace > kWorkspaceBytes; });
    return ways;
  }

  absl::Status Multiply(const ProductShape& shape, const ProductWay& way, const ProductOperands& o) override {
    EBB_ASSIGN(const Layouts* const layouts, LayoutsOf(shape));
    const float one = 1;
    const float beta = shape.add ? 1 : 0;
    const int made = f_.multiply(handle_.get(), product_.get(), &one, o.w, layouts->w.get(), o.x, layouts->x.get(),
                                 &beta, o.y, layouts->y.get(), o.y, layouts->y.get(), way.algorithm.data(),
                                 workspace_.as<void>(), kWorkspaceBytes, gpu_.stream());
    if (IsUnsupported(made)) {
      return absl::UnimplementedError(absl::StrFormat("%s does not multiply %d rows so", facts_.name, shape.rows));
    }
    return Succeeded(made, "Matmul");
  }

 private:
  struct Layouts {
    Owned w = {}, x = {}, y = {};
  };

  BlasLt(const Gpu& gpu, const Facts& facts, const Functions& f, GpuMemory workspace)
      : gpu_(gpu), facts_(facts), f_(f), workspace_(std::move(workspace)) {}

  bool IsUnsupported(int status) const { return status == facts_.invalid || status == facts_.not_supported; }

  absl::Status Succeeded(int status, std::string_view what) const {
    if (status == 0) return absl::OkStatus();
    return Refuse(absl::StatusCode::kUnavailable,
                  absl::StrFormat("%s: %s%s gave status %d", facts_.name, facts_.prefix, what, status),
                  {.reason = "GPU_FAULT"});
  }

  absl::StatusOr<const Layouts*> LayoutsOf(const ProductShape& shape) {
    const auto [at, is_new] = layouts_.try_emplace({shape.rows, shape.out, shape.in, shape.y_stride});
    Layouts& layouts = at->second;
    if (!is_new) return &layouts;
    const auto make = [&](int type, int64_t rows, int64_t cols, int64_t stride, Owned& to) {
      Handle layout = nullptr;
      EBB_TRY(Succeeded(f_.create_layout(&layout, type, rows, cols, stride), "MatrixLayoutCreate"));
      to = Owned(layout, f_.destroy_layout);
      return absl::OkStatus();
    };
    EBB_TRY(make(kReal16Bf, shape.in, shape.out, shape.in, layouts.w));
    EBB_TRY(make(kReal16Bf, shape.in, shape.rows, shape.in, layouts.x));
    EBB_TRY(make(kReal32F, shape.out, shape.rows, shape.y_stride, layouts.y));
    return &layouts;
  }

  const Gpu& gpu_;
  const Facts& facts_;
  const Functions f_;
  GpuMemory workspace_;
  Owned handle_ = {}, product_ = {}, preference_ = {};
  std::map<std::tuple<int32_t, int32_t, int32_t, int64_t>, Layouts> layouts_ = {};  // rows, out, in, y_stride
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProductLibrary>> OpenBlasLt(const Gpu& gpu) {
  const std::string_view kind = gpu.table().name;
  const auto* const facts = std::ranges::find(kFacts, kind, &Facts::kind);
  if (facts == kFacts.end()) return NotUsable(absl::StrFormat("there is no library of products for %s", kind));
  return BlasLt::Open(gpu, *facts);
}

}  // namespace ebb
