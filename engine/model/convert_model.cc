#include "engine/model/convert_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "engine/model/encode.h"
#include "engine/model/ggml_types.h"
#include "engine/model/gguf_header.h"
#include "engine/model/gguf_split.h"
#include "engine/model/hub_tokenizer.h"
#include "engine/model/quantization.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr char kUnfinished[] = ".unfinished";

// general.file_type: what most of the file is, as other programs number it.
uint32_t FileType(DType type) {
  switch (type) {
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ4_1:
      return 3;
    case DType::kQ8_0:
      return 7;
    case DType::kQ5_0:
      return 8;
    case DType::kQ5_1:
      return 9;
    case DType::kBf16:
      return 32;
    default:
      return 0;
  }
}

absl::Status Unwritable(const std::string& path, int error) {
  return absl::Status(absl::ErrnoToStatusCode(error),
                      absl::StrFormat("%s: cannot be written: %s", path, std::strerror(error)));
}

// A file that appears under its name when it is finished, and not before.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)), unfinished_(path_ + kUnfinished) {}
  NewFile(NewFile&& other) noexcept
      : path_(std::move(other.path_)),
        unfinished_(std::move(other.unfinished_)),
        fd_(std::exchange(other.fd_, -1)),
        size_(other.size_) {}
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(unfinished_.c_str());
  }

  absl::Status Open() {
    fd_ = open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    return fd_ < 0 ? Unwritable(unfinished_, errno) : absl::OkStatus();
  }

  absl::Status Write(std::span<const std::byte> bytes) {
    size_ += static_cast<int64_t>(bytes.size());
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Unwritable(unfinished_, errno);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Pad() {
    constexpr std::array<std::byte, kGgufAlignment> kZeros = {};
    const int64_t over = size_ % kGgufAlignment;
    return over == 0 ? absl::OkStatus() : Write(std::span(kZeros).first(static_cast<size_t>(kGgufAlignment - over)));
  }

  absl::Status Flush() { return fsync(fd_) == 0 ? absl::OkStatus() : Unwritable(unfinished_, errno); }

  absl::Status Rename() {
    if (rename(unfinished_.c_str(), path_.c_str()) != 0) return Unwritable(path_, errno);
    close(std::exchange(fd_, -1));
    return absl::OkStatus();
  }

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

 private:
  std::string path_;
  std::string unfinished_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// A tensor as it will be.
struct Planned {
  const GgufTensor* tensor = nullptr;
  TensorView from = {};
  DType type = DType::kF32;
  int64_t offset = 0;  // in its part's data
  int64_t bytes = 0;
};

int64_t Aligned(int64_t bytes) { return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment; }

bool StaysF32(const GgufTensor& tensor) {
  return tensor.dims == 1 || tensor.name == "position_embd.weight" ||
         absl::EndsWith(std::string(tensor.name), ".ffn_gate_inp.weight");
}

class Converter {
 public:
  Converter(const GgufFile& model, const ConvertOptions& options, const ConvertProgress& progress)
      : model_(model), options_(options), progress_(progress) {}

  absl::StatusOr<Converted> Convert() {
    EBB_TRY(CheckTokenizer());
    EBB_TRY(Plan());
    std::vector<NewFile> files;
    const auto count = static_cast<int32_t>(parts_.size());
    constexpr int32_t kMost = std::numeric_limits<uint16_t>::max();  // split.count
    if (count > kMost) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %d parts; at most %d can be counted", options_.output, count, kMost));
    }
    for (int32_t part = 0; part < count; ++part) {
      files.emplace_back(count == 1 ? options_.output : Stem() + SplitSuffix(part, count));
      EBB_TRY(files.back().Open());
      EBB_TRY(WritePart(part, count, files.back()));
      EBB_TRY(files.back().Flush());
      done_.bytes += files.back().size();
      done_.files.push_back(files.back().path());
    }
    for (auto file = files.rbegin(); file != files.rend(); ++file) EBB_TRY(file->Rename());
    return std::move(done_);
  }

 private:
  std::string Stem() const {
    constexpr std::string_view kEnding = ".gguf";
    const bool ends = options_.output.ends_with(kEnding);
    return ends ? options_.output.substr(0, options_.output.size() - kEnding.size()) : options_.output;
  }

  // One that has another number of tokens is refused wherever the file is opened.
  absl::Status CheckTokenizer() const {
    const GgufTensor* const embedding = model_.FindTensor("token_embd.weight");
    if (options_.tokenizer == nullptr || embedding == nullptr) return absl::OkStatus();
    EBB_ASSIGN(const std::vector<std::string_view> tokens, options_.tokenizer->GetStrings("tokenizer.ggml.tokens"));
    if (static_cast<int64_t>(tokens.size()) == embedding->rows()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat("%s: has %d tokens; the embedding of %s has %d rows",
                                                      options_.tokenizer->name(), tokens.size(), model_.name(),
                                                      embedding->rows()));
  }

  absl::Status Plan() {
    int64_t used = 0;
    for (const GgufTensor& tensor : model_.tensors()) {
      EBB_ASSIGN(const TensorView from, model_.GetTensor(tensor.name));
      Planned planned = {.tensor = &tensor, .from = from, .type = StaysF32(tensor) ? DType::kF32 : options_.type};
      if (from.cols % BlockValues(planned.type) != 0) {
        planned.type = DType::kF16;
        done_.kept.emplace_back(tensor.name);
      }
      planned.bytes = from.rows * RowBytes(planned.type, from.cols);
      if (parts_.empty() || (options_.part_bytes > 0 && used > 0 && used + planned.bytes > options_.part_bytes)) {
        parts_.emplace_back();
        used = 0;
      }
      planned.offset = used;
      used += Aligned(planned.bytes);
      parts_.back().push_back(planned);
    }
    if (parts_.empty()) parts_.emplace_back();
    return absl::OkStatus();
  }

  absl::Status WriteKeys(GgufHeader& header) const {
    const auto is_tokenizer = [](const GgufValue& value) { return value.key.starts_with("tokenizer."); };
    for (const GgufValue& value : model_.metadata()) {
      const bool ours = value.key.starts_with("split.") || value.key == "general.alignment" ||
                        value.key == "general.file_type" || value.key == "general.quantization_version";
      if (!ours && !(options_.tokenizer != nullptr && is_tokenizer(value))) header.AddPair(value);
    }
    header.Add("general.file_type", FileType(options_.type));
    header.Add("general.quantization_version", uint32_t{2});
    if (options_.tokenizer == nullptr) return absl::OkStatus();
    for (const GgufValue& value : options_.tokenizer->metadata()) {
      if (is_tokenizer(value) && !IsEndKey(value.key)) header.AddPair(value);
    }
    // Often the model alone knows all that end a text.
    EBB_ASSIGN(HubEnds ends, ReadEnds(*options_.tokenizer));
    EBB_ASSIGN(const HubEnds own, ReadEnds(model_));
    for (const int32_t id : own.eos) {
      if (ends.eos.size() < kEndsMax) AddEnd(id, ends);
    }
    if (!ends.bos) ends.bos = own.bos;
    return WriteEnds(options_.tokenizer->name(), ends, header);
  }

  absl::Status WritePart(int32_t part, int32_t count, NewFile& file) {
    GgufHeader header;
    if (part == 0) EBB_TRY(WriteKeys(header));
    if (count > 1) {
      header.Add("split.no", static_cast<uint16_t>(part));
      header.Add("split.count", static_cast<uint16_t>(count));
      header.Add("split.tensors.count", static_cast<int32_t>(model_.tensors().size()));
    }
    const std::vector<Planned>& tensors = parts_[static_cast<size_t>(part)];
    for (const Planned& planned : tensors) {
      const std::span<const int64_t> shape(planned.tensor->shape.data(), static_cast<size_t>(planned.tensor->dims));
      header.AddTensor(planned.tensor->name, GgmlTypeId(planned.type), shape, planned.offset);
    }
    EBB_TRY(file.Write(header.Bytes()));
    for (const Planned& planned : tensors) {
      EBB_TRY(file.Pad());
      EBB_TRY(WriteTensor(planned, file));
    }
    return file.Pad();
  }

  absl::Status WriteTensor(const Planned& planned, NewFile& file) {
    const TensorView& from = planned.from;
    const int64_t from_bytes = RowBytes(from.type, from.cols);
    const int64_t to_bytes = RowBytes(planned.type, from.cols);
    // Some rows at a time: the memory is theirs, whatever the tensor.
    const int64_t step = std::clamp<int64_t>((int64_t{4} << 20) / std::max<int64_t>(from.cols * 4, 1), 1, from.rows);
    values_.resize(static_cast<size_t>(from.cols));
    encoded_.resize(static_cast<size_t>(step * to_bytes));
    for (int64_t first = 0; first < from.rows; first += step) {
      const int64_t rows = std::min(step, from.rows - first);
      const std::span<const std::byte> source =
          from.data.subspan(static_cast<size_t>(first * from_bytes), static_cast<size_t>(rows * from_bytes));
      if (planned.type == from.type) {
        EBB_TRY(file.Write(source));
      } else {
        for (int64_t row = 0; row < rows; ++row) {
          DequantizeRow(from.type, source.data() + row * from_bytes, from.cols, values_.data());
          if (!std::ranges::all_of(values_, [](float value) { return std::isfinite(value); })) {
            return model_.Damaged(*planned.tensor, absl::StrFormat("finite numbers in tensor %s", Printable(from.name)),
                                  absl::StrFormat("another in row %d", first + row));
          }
          EncodeRow(planned.type, values_.data(), from.cols, encoded_.data() + row * to_bytes);
        }
        EBB_TRY(file.Write(std::span(encoded_).first(static_cast<size_t>(rows * to_bytes))));
      }
      if (progress_) progress_(static_cast<int64_t>(source.size()), from.name);
    }
    return absl::OkStatus();
  }

  const GgufFile& model_;
  const ConvertOptions& options_;
  const ConvertProgress& progress_;
  std::vector<std::vector<Planned>> parts_ = {};
  std::vector<float> values_ = {};
  std::vector<std::byte> encoded_ = {};
  Converted done_ = {};
};

}  // namespace

absl::StatusOr<Converted> ConvertModel(const GgufFile& model, const ConvertOptions& options,
                                       const ConvertProgress& progress) {
  return Converter(model, options, progress).Convert();
}

}  // namespace ebb
