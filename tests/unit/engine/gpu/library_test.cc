// That the compiled kernels are libraries this program can load, on any machine; and that a device, where there is one,
// can be opened. Says which of the two it was: a library that was only loaded has run nothing. EBB_GPU_KINDS names what
// was compiled: "cuda hip".

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "engine/gpu/gpu.h"
#include "policies/status.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

TEST(GpuLibrary, LoadsAndOpensADeviceWhereThereIsOne) {
  const char* const kinds = std::getenv("EBB_GPU_KINDS");
  ASSERT_NE(kinds, nullptr);
  for (const std::string& kind : std::vector<std::string>(absl::StrSplit(kinds, ' '))) {
    const auto table = LoadGpuTable(kind, EBB_BIN_DIR);
    if (!table.ok()) {
      EXPECT_EQ(GetRefusal(table.status()).reason, "GPU_UNAVAILABLE");
      EXPECT_NE(table.status().message().find("no device with a driver"), std::string::npos) << table.status();
      std::printf("%s: compiled and loaded, NOT RUN: there is no device with a driver\n", kind.c_str());
      continue;
    }
    const auto gpu = Gpu::Open(**table, 0);
    ASSERT_THAT(gpu, IsOk());
    const auto code = Gpu::Code(**table, 0);
    ASSERT_THAT(code, IsOk());
    EXPECT_FALSE(code->empty());
    std::vector<int32_t> numbers(1000);
    std::iota(numbers.begin(), numbers.end(), 0);
    const auto memory = (*gpu)->Upload(std::span<const int32_t>(numbers), "numbers");
    ASSERT_THAT(memory, IsOk());
    std::vector<int32_t> back(numbers.size());
    ASSERT_THAT((*gpu)->CopyOut(memory->as<int32_t>(), std::span(back)), IsOk());
    ASSERT_THAT((*gpu)->Wait(), IsOk());
    EXPECT_EQ(back, numbers);
    std::printf("%s: compiled and loaded; memory of the device copied, kernels NOT RUN; it runs code of %s\n",
                kind.c_str(), code->c_str());
  }
}

}  // namespace
}  // namespace ebb
