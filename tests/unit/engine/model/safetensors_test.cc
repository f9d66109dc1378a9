// Safetensors files, sound and damaged.

#include "engine/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/hub_folder.h"
#include "tests/support/status_matchers.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

TEST(Safetensors, GivesTensorsInTheOrderOfTheirData) {
  const Bytes file = RawSafetensors(
      R"({"b":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},"none":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
      28);
  const auto tensors = ReadSafetensors("m.safetensors", file).value();
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors[0].name, "b");
  EXPECT_EQ(tensors[0].dtype, "F16");
  EXPECT_EQ(tensors[1].name, "none");
  EXPECT_THAT(tensors[2].shape, ElementsAre(2, 3));
  EXPECT_EQ(tensors[2].data.data() + 24, file.data() + file.size());
}

TEST(Safetensors, SaysWhatIsWrongAndWhere) {
  const auto entry = [](const std::string& text) { return RawSafetensors("{\"t\":" + text + "}", 24); };
  const auto shaped = [&](const std::string& shape, const std::string& offsets) {
    return entry(R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}");
  };
  const std::pair<Bytes, std::string> kCases[] = {
      {Bytes(7), "byte 0: expected the header's length in 8 bytes, found a file of 7 bytes"},
      {Bytes(9, std::byte{0xFF}),
       "byte 0: expected a header of at most 1 bytes, found a length of 18446744073709551615"},
      {RawSafetensors("{", 0), "byte 9: expected JSON"},
      {RawSafetensors("[]", 0), "expected a JSON object, found []"},
      {RawSafetensors("{\"t\":{},\"t\":{}}", 0), "expected each name once, found t again"},
      {entry("3"), "tensor t: expected an object, found 3"},
      {entry(R"({"dtype":"F7"})"), "tensor t: expected a known dtype, found \"F7\""},
      {entry(R"({"dtype":"F32"})"), "tensor t: expected a shape of at most 8 numbers, found none"},
      {shaped("[2,-3]", "[0,24]"), "tensor t: expected extents from 0"},
      {shaped("[4611686018427387904,2]", "[0,24]"), "tensor t: expected extents from 0 and with less than 2^63 bytes"},
      {shaped("[2,3]", "[0]"), "tensor t: expected data_offsets of two numbers from 0, found [0]"},
      {shaped("[2,3]", "[8,32]"), "tensor t: expected data_offsets within the 24 bytes of data, found [8,32]"},
      {shaped("[2,3]", "[24,0]"), "tensor t: expected data_offsets within"},
      {shaped("[2,3]", "[0,20]"), "tensor t: expected 24 bytes, as its shape has, found 20"},
      {shaped("[2,2]", "[4,20]"), "tensor t: expected its data from byte 0, where that before it ends, found byte 4"},
      {shaped("[2,2]", "[0,16]"), "expected 16 bytes of data, as its tensors have, found 24"},
      {RawSafetensors(R"({"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16]},)"
                      R"("b":{"dtype":"U8","shape":[16],"data_offsets":[8,24]}})",
                      24),
       "tensor b: expected its data from byte 16, where that before it ends, found byte 8"},
  };
  for (const auto& [file, message] : kCases) {
    const auto tensors = ReadSafetensors("m.safetensors", file);
    EXPECT_THAT(tensors, IsRefusal(absl::StatusCode::kDataLoss, "MODEL_DAMAGED", "")) << message;
    EXPECT_THAT(std::string(tensors.status().message()), HasSubstr("m.safetensors: " + message));
  }
}

TEST(Safetensors, AnyCutIsAnError) {
  HubFolder folder;
  const Bytes whole = MakeSafetensors(folder.tensors);
  ASSERT_THAT(ReadSafetensors("m.safetensors", whole), IsOk());
  for (size_t size = 0; size < whole.size(); size += size < 2000 ? 1 : 97) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    ASSERT_THAT(ReadSafetensors("m.safetensors", part), IsRefusal(absl::StatusCode::kDataLoss, "MODEL_DAMAGED", ""))
        << size;
  }
}

TEST(Safetensors, AHeaderBeyondTheLimitIsRefusedBeforeItIsRead) {
  Bytes file(static_cast<size_t>(kSafetensorsHeaderMax) + 64, std::byte{' '});
  const auto length = static_cast<uint64_t>(kSafetensorsHeaderMax + 1);
  std::memcpy(file.data(), &length, sizeof(length));
  EXPECT_THAT(std::string(ReadSafetensors("m", file).status().message()),
              HasSubstr("expected a header of at most 16777216 bytes, found a length of 16777217"));
}

}  // namespace
}  // namespace ebb
