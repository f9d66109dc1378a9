// That what goes to a device through two small buffers arrives whole, however it is cut.

#include "engine/gpu/staged_copies.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "tests/support/gpu_target.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

TEST(StagedCopies, ArriveWholeHoweverTheyAreCut) {
  const auto gpu = Gpu::Open(gpu::TableUnderTest(32), 0);
  ASSERT_THAT(gpu, IsOk());
  constexpr int64_t kStage = 96;
  auto copies = StagedCopies::Make(**gpu, kStage, "a test's bytes");
  ASSERT_THAT(copies, IsOk());
  std::vector<std::vector<std::byte>> sent;
  std::vector<GpuMemory> there;
  for (const size_t size : {size_t{1}, size_t{95}, size_t{96}, size_t{97}, size_t{192}, size_t{1000}, size_t{0}}) {
    std::vector<std::byte>& bytes = sent.emplace_back(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + size);
    std::vector<std::byte> goes = bytes;
    auto memory = copies->Upload(std::span<const std::byte>(goes), "a test's bytes");
    ASSERT_THAT(memory, IsOk());
    std::ranges::fill(goes, std::byte{0xEE});  // it may go when Upload returns
    there.push_back(*std::move(memory));
  }
  ASSERT_THAT((*gpu)->Wait(), IsOk());
  for (size_t i = 0; i < sent.size(); ++i) {
    std::vector<std::byte> back(sent[i].size());
    ASSERT_THAT((*gpu)->CopyOut(there[i].as<std::byte>(), std::span(back)), IsOk());
    ASSERT_THAT((*gpu)->Wait(), IsOk());
    EXPECT_EQ(back, sent[i]) << sent[i].size() << " bytes";
  }
}

// What a buffer holds is not written over before the device has read it: a stream that copies only when it is waited
// for, as a device may.
struct Late {
  void* to;
  const void* from;
  int64_t bytes;
};
std::vector<Late> late;

TEST(StagedCopies, ABufferIsFilledAgainOnlyWhenItWasRead) {
  gpu::Table table = gpu::TableUnderTest(32);
  if (gpu::DeviceUnderTest() != nullptr) GTEST_SKIP() << "the emulation's copies can be put off";
  table.copy_in = [](void* to, const void* from, int64_t bytes, gpu::Stream) -> gpu::Error {
    late.push_back({to, from, bytes});
    return nullptr;
  };
  table.wait = [](gpu::Stream stream) {
    for (const Late& copy : late) gpu::TableUnderTest(32).copy_in(copy.to, copy.from, copy.bytes, stream);
    late.clear();
    return gpu::TableUnderTest(32).wait(stream);
  };
  const auto gpu = Gpu::Open(table, 0);
  ASSERT_THAT(gpu, IsOk());
  std::vector<std::byte> bytes(1000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 13);
  GpuMemory memory;
  {
    auto copies = StagedCopies::Make(**gpu, 64, "a test's bytes");
    ASSERT_THAT(copies, IsOk());
    auto made = copies->Upload(std::span<const std::byte>(bytes), "a test's bytes");
    ASSERT_THAT(made, IsOk());
    memory = *std::move(made);
  }  // waits for the last
  EXPECT_TRUE(late.empty());
  std::vector<std::byte> back(bytes.size());
  ASSERT_THAT((*gpu)->CopyOut(memory.as<std::byte>(), std::span(back)), IsOk());
  EXPECT_EQ(back, bytes);
}

}  // namespace
}  // namespace ebb
