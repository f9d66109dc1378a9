// Models in several files, sound and damaged.

#include "engine/model/gguf_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/model/architecture.h"
#include "engine/model/fingerprint.h"
#include "policies/status.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr int32_t kParts = 3;

// A tiny model's tensors dealt to three files in order; the first has the keys. `change` may alter a part.
class Parts {
 public:
  using Change = std::function<void(int32_t part, GgufWriter& writer)>;

  explicit Parts(const Change& change = {}, const std::string& name = "split.gguf", int32_t stated = kParts)
      : whole_bytes_(MakeTinyModel({.layers = 1}).Bytes()) {
    const GgufFile whole = GgufFile::Parse("whole.gguf", whole_bytes_).value();
    const auto tensors = static_cast<int32_t>(whole.tensors().size());
    for (int32_t part = 0; part < kParts; ++part) {
      GgufWriter writer;
      for (const GgufValue& value : whole.metadata()) {
        if (part == 0) AddPair(writer, value);
      }
      writer.Add("split.no", static_cast<uint16_t>(part));
      writer.Add("split.count", static_cast<uint16_t>(stated));
      writer.Add("split.tensors.count", tensors);
      if (change) change(part, writer);
      for (int32_t i = part * tensors / kParts; i < (part + 1) * tensors / kParts; ++i) {
        const GgufTensor& tensor = whole.tensors()[static_cast<size_t>(i)];
        std::vector<uint64_t> shape;
        for (int32_t d = 0; d < tensor.dims; ++d) shape.push_back(static_cast<uint64_t>(tensor.shape[d]));
        writer.AddRawTensor(std::string(tensor.name), tensor.type_id, shape, tensor.data);
      }
      files_[Name(name, part)] = writer.Bytes();
    }
    first_ = Name(name, 0);
  }

  static std::string Name(const std::string& name, int32_t part) {
    return name.substr(0, name.size() - 5) + SplitSuffix(part, kParts);
  }

  absl::StatusOr<GgufFile> Join(const std::string& name) const {
    EBB_ASSIGN(GgufFile first, Open(name));
    return JoinSplit(std::move(first), [this](const std::string& part) { return Open(part); });
  }
  absl::StatusOr<GgufFile> Join() const { return Join(first_); }

  void Write(const std::string& folder) const {
    for (const auto& [name, bytes] : files_) {
      std::ofstream(folder + "/" + name, std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
  }

  std::map<std::string, Bytes>& files() { return files_; }
  GgufFile whole() const { return GgufFile::Parse("whole.gguf", whole_bytes_).value(); }

 private:
  static void AddPair(GgufWriter& writer, const GgufValue& value) {
    Bytes encoded;
    if (value.type == GgufType::kArray) {
      AppendBytes(encoded, static_cast<uint32_t>(value.element));
      AppendBytes(encoded, value.count);
    } else if (value.type == GgufType::kString) {
      AppendBytes(encoded, static_cast<uint64_t>(value.bytes.size()));
    }
    encoded.insert(encoded.end(), value.bytes.begin(), value.bytes.end());
    writer.AddRaw(std::string(value.key), value.type, encoded);
  }

  absl::StatusOr<GgufFile> Open(const std::string& name) const {
    const auto file = files_.find(name);
    if (file == files_.end()) return absl::NotFoundError(name + ": not there");
    return GgufFile::Parse(name, file->second);
  }

  Bytes whole_bytes_;
  std::map<std::string, Bytes> files_ = {};
  std::string first_ = {};
};

TEST(GgufSplit, IsTheModelThatWasSplit) {
  const Parts parts;
  const GgufFile file = parts.Join().value();
  const GgufFile whole = parts.whole();
  const ModelConfig config = ReadConfig(file).value();
  EXPECT_THAT(FindWeights(file, config), IsOk());
  ASSERT_EQ(file.tensors().size(), whole.tensors().size());
  for (const GgufTensor& tensor : whole.tensors()) {
    const TensorView found = file.GetTensor(tensor.name).value();
    EXPECT_TRUE(std::ranges::equal(found.data, tensor.data)) << tensor.name;
  }
  EXPECT_EQ(ModelFingerprint(file, config), ModelFingerprint(whole, ReadConfig(whole).value()));
  EXPECT_EQ(file.parts().size(), 3U);
  EXPECT_GT(file.file_bytes(), whole.file_bytes());
}

TEST(GgufSplit, AFingerprintIsOverAllParts) {
  Parts parts;
  const GgufFile sound = parts.Join().value();
  const std::string before = ModelFingerprint(sound, ReadConfig(sound).value());
  Bytes& last = parts.files().rbegin()->second;
  const uint64_t data = GgufFile::Parse("p", last).value().tensors()[0].data_offset;
  last[data] ^= std::byte{1};
  const GgufFile changed = parts.Join().value();
  EXPECT_NE(ModelFingerprint(changed, ReadConfig(changed).value()), before);
}

TEST(GgufSplit, IsOpenedByTheFirstFile) {
  const TemporaryFolder folder;
  Parts().Write(folder.path());
  const std::string first = folder.path() + "/split-00001-of-00003.gguf";
  GgufFile opened = GgufFile::Open(first).value();
  const GgufFile file = std::move(opened);  // mappings and names move along
  EXPECT_EQ(file.name(), first);
  EXPECT_THAT(FindWeights(file, ReadConfig(file).value()), IsOk());
}

TEST(GgufSplit, NamesAPartThatIsMissing) {
  const TemporaryFolder folder;
  Parts().Write(folder.path());
  std::filesystem::remove(folder.path() + "/split-00002-of-00003.gguf");
  const auto file = GgufFile::Open(folder.path() + "/split-00001-of-00003.gguf");
  EXPECT_THAT(file, IsRefusal(absl::StatusCode::kNotFound, "FILE_UNREADABLE", ""));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("split-00001-of-00003.gguf: part 2 of 3 is missing: "));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("split-00002-of-00003.gguf: open failed"));
}

TEST(GgufSplit, SaysWhichFileIsToBeOpened) {
  const Parts parts;
  const auto second = parts.Join("split-00002-of-00003.gguf");
  EXPECT_THAT(second, IsRefusal(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_MODEL_FORMAT", ""));
  EXPECT_EQ(second.status().message(),
            "split-00002-of-00003.gguf: is part 2 of 3; open the first, whose name ends in -00001-of-00003.gguf");
  Parts renamed;
  renamed.files()["m.gguf"] = renamed.files().begin()->second;
  const auto file = renamed.Join("m.gguf");
  EXPECT_THAT(file, IsRefusal(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_MODEL_FORMAT", ""));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("it should end in -00001-of-00003.gguf"));
}

void ExpectDamage(const Parts& parts, const std::string& message) {
  const auto file = parts.Join();
  EXPECT_THAT(file, IsRefusal(absl::StatusCode::kDataLoss, "MODEL_DAMAGED", ""));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(message));
}

TEST(GgufSplit, RefusesPartsThatDoNotBelongTogether) {
  // The third where the second should be.
  Parts swapped;
  swapped.files()["split-00002-of-00003.gguf"] = swapped.files()["split-00003-of-00003.gguf"];
  ExpectDamage(swapped, "split-00002-of-00003.gguf: byte ");
  ExpectDamage(swapped, "expected split.no to be 1, found 2");
  // A tensor that two parts have, and one too many.
  const Parts twice([](int32_t part, GgufWriter& writer) {
    if (part == 1) writer.AddTensor("token_embd.weight", DType::kF32, 0, 1, std::vector<float>(1));
  });
  ExpectDamage(twice, "split-00002-of-00003.gguf: byte ");
  ExpectDamage(
      twice,
      "expected each tensor name in one part, found token_embd.weight, which split-00001-of-00003.gguf has, too");
  const Parts more([](int32_t part, GgufWriter& writer) {
    if (part == 2) writer.AddTensor("more", DType::kF32, 0, 1, std::vector<float>(1));
  });
  ExpectDamage(more, "tensors in the 3 parts, as split.tensors.count says, found 13");
  // A part of another model.
  const Parts foreign([](int32_t part, GgufWriter& writer) {
    if (part == 2) writer.Add("general.architecture", "qwen2");
  });
  ExpectDamage(foreign, "expected general.architecture as in split-00001-of-00003.gguf, \"llama\", found \"qwen2\"");
}

TEST(GgufSplit, RefusesCountsThatCannotBe) {
  ExpectDamage(Parts({}, "split.gguf", 0), "expected split.count from 1 to 99999, found 0");
  const Parts other({}, "split.gguf", 2);  // the names say three
  EXPECT_THAT(other.Join(), IsRefusal(absl::StatusCode::kFailedPrecondition, "UNSUPPORTED_MODEL_FORMAT", ""));
}

TEST(GgufSplit, ATruncatedPartIsNamed) {
  Parts parts;
  Bytes& part = parts.files()["split-00002-of-00003.gguf"];
  const Bytes sound = part;
  for (size_t size = 0; size < sound.size(); size += 7) {
    part.assign(sound.begin(), sound.begin() + static_cast<std::ptrdiff_t>(size));
    const auto file = parts.Join();
    ASSERT_THAT(file, IsRefusal(absl::StatusCode::kDataLoss, "MODEL_DAMAGED", "")) << size;
    ASSERT_THAT(std::string(file.status().message()), HasSubstr("split-00002-of-00003.gguf: byte ")) << size;
  }
}

// What is wrong with a tensor is told by the file that has it.
TEST(GgufSplit, ATensorOfAnotherShapeIsFoundInItsPart) {
  const Parts parts([](int32_t part, GgufWriter& writer) {
    if (part == 0) writer.Add("llama.vocab_size", uint32_t{261});
  });
  const GgufFile file = parts.Join().value();
  const GgufTensor& last = file.tensors().back();
  EXPECT_EQ(last.part, 2);
  EXPECT_THAT(std::string(file.Damaged(last, "a", "b").message()), HasSubstr("split-00003-of-00003.gguf: byte "));
}

}  // namespace
}  // namespace ebb
