// Any bytes as a model file: opened, its metadata shown, its configuration and weights read, rows of every tensor
// decoded. Whatever is wrong must come back as a status.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/architecture.h"
#include "engine/model/gguf.h"
#include "engine/model/quantization.h"

namespace {

constexpr int64_t kRowsMax = 3;
constexpr int64_t kColsMax = 1 << 16;

void DecodeRows(const ebb::TensorView& view) {
  if (view.cols > kColsMax) return;  // only time would be lost: the row is as sound as a shorter one
  std::vector<float> out(static_cast<size_t>(view.cols));
  const int64_t row_bytes = ebb::RowBytes(view.type, view.cols);
  for (int64_t row = 0; row < std::min(view.rows, kRowsMax); ++row) {
    ebb::DequantizeRow(view.type, view.data.data() + row * row_bytes, view.cols, out.data());
  }
  // The last row ends with the data, so a wrong size would be read past the end.
  ebb::DequantizeRow(view.type, view.data.data() + (view.rows - 1) * row_bytes, view.cols, out.data());
}

void ReadMetadata(const ebb::GgufFile& file) {
  for (const ebb::GgufValue& value : file.metadata()) {
    ebb::FormatValue(value);
    ebb::GgufTypeName(value);
    file.GetInt(value.key).IgnoreError();
    file.GetDouble(value.key).IgnoreError();
    file.GetBool(value.key).IgnoreError();
    file.GetString(value.key).IgnoreError();
    file.GetStrings(value.key).IgnoreError();
    file.GetFloats(value.key).IgnoreError();
    file.GetInts(value.key).IgnoreError();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = ebb::GgufFile::Parse("fuzz.gguf", std::as_bytes(std::span(data, size)));
  if (!file.ok()) return 0;
  ReadMetadata(*file);
  for (const ebb::GgufTensor& tensor : file->tensors()) {
    if (const auto view = file->GetTensor(tensor.name); view.ok()) DecodeRows(*view);
  }
  if (const auto config = ebb::ReadConfig(*file); config.ok()) ebb::FindWeights(*file, *config).IgnoreError();
  return 0;
}
