// A model larger than memory is opened, not read: its weights stay in the file until something computes with them. The
// files here are sparse, so that they take no disk.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/ggml_types.h"
#include "engine/model/gguf_header.h"
#include "engine/model/hub_model.h"
#include "tests/support/hub_folder.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace ebb {
namespace {

constexpr int64_t kDim = 1024;
constexpr int64_t kVocabulary = int64_t{1} << 20;
constexpr int64_t kMatrixBytes = kVocabulary * kDim * 2;  // 2 GiB of BF16
constexpr int64_t kLittle = kMatrixBytes / 64;            // what opening may take

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t virtual_pages = 0, resident_pages = 0;
  file >> virtual_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

// The file that is mapped at the address; empty where none is.
std::string FileAt(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t dash = line.find('-');
    const uintptr_t begin = std::stoull(line.substr(0, dash), nullptr, 16);
    const uintptr_t end = std::stoull(line.substr(dash + 1), nullptr, 16);
    if (begin <= at && at < end) return line.find('/') == std::string::npos ? "" : line.substr(line.find('/'));
  }
  return "";
}

// A file of so many bytes that begins with these, and is a hole behind them.
void WriteSparse(const std::string& path, const std::vector<std::byte>& begin, int64_t bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(begin.data()), static_cast<std::streamsize>(begin.size()));
  std::filesystem::resize_file(path, static_cast<uintmax_t>(bytes));
}

void ExpectMapped(const std::string& model, const std::string& file, const std::string& tensor) {
  const int64_t before = ResidentBytes();
  const absl::StatusOr<GgufFile> opened = OpenModel(model);
  ASSERT_THAT(opened, IsOk());
  const int64_t taken = ResidentBytes() - before;
  EXPECT_LT(taken, kLittle);
  const TensorView view = opened->GetTensor(tensor).value();
  EXPECT_EQ(static_cast<int64_t>(view.data.size()), kMatrixBytes);
  EXPECT_EQ(FileAt(view.data.data()), file);
  EXPECT_EQ(FileAt(&view.data.back()), file);
}

TEST(LargeModel, AGgufFileStaysWhereItIs) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/large.gguf";
  GgufHeader header;
  header.AddText("general.architecture", "llama");
  header.AddTensor("large", GgmlTypeId(DType::kBf16), std::vector<int64_t>{kDim, kVocabulary}, 0);
  std::vector<std::byte> bytes = header.Bytes();
  bytes.resize((bytes.size() + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment);
  WriteSparse(path, bytes, static_cast<int64_t>(bytes.size()) + kMatrixBytes);
  ExpectMapped(path, path, "large");
}

TEST(LargeModel, AFolderStaysWhereItIs) {
  const TemporaryFolder folder;
  HubFolder model;
  model.config["hidden_size"] = kDim;
  model.config["vocab_size"] = kVocabulary;
  model.config["num_hidden_layers"] = 0;
  model.config["tie_word_embeddings"] = true;
  const nlohmann::json config = model.config;
  std::ofstream(folder.path() + "/config.json") << config.dump();
  nlohmann::json header;
  header["model.embed_tokens.weight"] = {
      {"dtype", "BF16"}, {"shape", {kVocabulary, kDim}}, {"data_offsets", {0, kMatrixBytes}}};
  header["model.norm.weight"] = {
      {"dtype", "F32"}, {"shape", {kDim}}, {"data_offsets", {kMatrixBytes, kMatrixBytes + 4 * kDim}}};
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::string path = folder.path() + "/model.safetensors";
  const std::vector<std::byte> begin = RawSafetensors(text, 0);
  WriteSparse(path, begin, static_cast<int64_t>(begin.size()) + kMatrixBytes + 4 * kDim);
  ExpectMapped(folder.path(), path, "token_embd.weight");
}

}  // namespace
}  // namespace ebb
