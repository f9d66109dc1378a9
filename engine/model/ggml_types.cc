#include "engine/model/ggml_types.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"
#include "policies/check.h"

namespace ebb {
namespace {

// Numbers that are missing were given up (4, 5, 31-33, 36-38).
constexpr auto kGgmlTypes = std::to_array<GgmlType>({
    {.id = 0, .name = "F32", .values = 1, .bytes = 4, .type = DType::kF32},
    {.id = 1, .name = "F16", .values = 1, .bytes = 2, .type = DType::kF16},
    {.id = 2, .name = "Q4_0", .values = 32, .bytes = 18, .type = DType::kQ4_0},
    {.id = 3, .name = "Q4_1", .values = 32, .bytes = 20, .type = DType::kQ4_1},
    {.id = 6, .name = "Q5_0", .values = 32, .bytes = 22, .type = DType::kQ5_0},
    {.id = 7, .name = "Q5_1", .values = 32, .bytes = 24, .type = DType::kQ5_1},
    {.id = 8, .name = "Q8_0", .values = 32, .bytes = 34, .type = DType::kQ8_0},
    {.id = 9, .name = "Q8_1", .values = 32, .bytes = 36},
    {.id = 10, .name = "Q2_K", .values = 256, .bytes = 84, .type = DType::kQ2_K},
    {.id = 11, .name = "Q3_K", .values = 256, .bytes = 110, .type = DType::kQ3_K},
    {.id = 12, .name = "Q4_K", .values = 256, .bytes = 144, .type = DType::kQ4_K},
    {.id = 13, .name = "Q5_K", .values = 256, .bytes = 176, .type = DType::kQ5_K},
    {.id = 14, .name = "Q6_K", .values = 256, .bytes = 210, .type = DType::kQ6_K},
    {.id = 15, .name = "Q8_K", .values = 256, .bytes = 292},
    {.id = 16, .name = "IQ2_XXS", .values = 256, .bytes = 66},
    {.id = 17, .name = "IQ2_XS", .values = 256, .bytes = 74},
    {.id = 18, .name = "IQ3_XXS", .values = 256, .bytes = 98},
    {.id = 19, .name = "IQ1_S", .values = 256, .bytes = 50},
    {.id = 20, .name = "IQ4_NL", .values = 32, .bytes = 18, .type = DType::kIq4Nl},
    {.id = 21, .name = "IQ3_S", .values = 256, .bytes = 110},
    {.id = 22, .name = "IQ2_S", .values = 256, .bytes = 82},
    {.id = 23, .name = "IQ4_XS", .values = 256, .bytes = 136},
    {.id = 24, .name = "I8", .values = 1, .bytes = 1},
    {.id = 25, .name = "I16", .values = 1, .bytes = 2},
    {.id = 26, .name = "I32", .values = 1, .bytes = 4},
    {.id = 27, .name = "I64", .values = 1, .bytes = 8},
    {.id = 28, .name = "F64", .values = 1, .bytes = 8},
    {.id = 29, .name = "IQ1_M", .values = 256, .bytes = 56},
    {.id = 30, .name = "BF16", .values = 1, .bytes = 2, .type = DType::kBf16},
    {.id = 34, .name = "TQ1_0", .values = 256, .bytes = 54},
    {.id = 35, .name = "TQ2_0", .values = 256, .bytes = 66},
    {.id = 39, .name = "MXFP4", .values = 32, .bytes = 17, .type = DType::kMxfp4},
});

}  // namespace

std::span<const GgmlType> GgmlTypes() { return kGgmlTypes; }

const GgmlType* FindGgmlType(uint32_t id) {
  const auto row = std::ranges::find(kGgmlTypes, id, &GgmlType::id);
  return row == kGgmlTypes.end() ? nullptr : &*row;
}

std::string GgmlTypeName(uint32_t id) {
  const GgmlType* const row = FindGgmlType(id);
  return row == nullptr ? absl::StrFormat("type %d", id) : std::string(row->name);
}

uint32_t GgmlTypeId(DType type) {
  const auto row = std::ranges::find(kGgmlTypes, std::optional<DType>(type), &GgmlType::type);
  EBB_CHECK(row != kGgmlTypes.end());
  return row->id;
}

}  // namespace ebb
