#include "engine/model/hub_model.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/architecture_table.h"
#include "engine/model/ggml_types.h"
#include "engine/model/gguf_header.h"
#include "engine/model/hub_config.h"
#include "engine/model/hub_tokenizer.h"
#include "engine/model/json_text.h"
#include "engine/model/mapped_folder.h"
#include "engine/model/model_path.h"
#include "engine/model/quantization.h"
#include "engine/model/safetensors.h"
#include "policies/status.h"

namespace ebb {
namespace {

using Json = nlohmann::json;

constexpr char kConfig[] = "config.json";
constexpr char kGeneration[] = "generation_config.json";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr char kWeights[] = "model.safetensors";
constexpr size_t kJsonBytesMax = size_t{16} << 20;

absl::StatusOr<Json> ReadJson(const std::string& folder, const std::string& name, const ReadHubFile& read) {
  EBB_ASSIGN(const std::span<const std::byte> bytes, read(name));
  const std::string file = absl::StrCat(folder, "/", name);
  if (bytes.size() > kJsonBytesMax) {
    return DamagedJson(file, "", absl::StrFormat("at most %d bytes", kJsonBytesMax),
                       absl::StrFormat("%d", bytes.size()));
  }
  return ParseJsonObject(file, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// All tensors of the folder by name.
struct Stored {
  SafetensorsTensor tensor = {};
  std::string file = {};
};
using StoredTensors = std::map<std::string, Stored, std::less<>>;

absl::StatusOr<StoredTensors> ReadTensors(const std::string& folder, const ReadHubFile& read) {
  const std::string index_file = absl::StrCat(folder, "/", kIndex);
  std::map<std::string, std::string> places;  // tensor -> file, as the index says
  std::set<std::string> files;
  absl::StatusOr<Json> index = ReadJson(folder, kIndex, read);
  if (index.ok()) {
    const auto map = index->find("weight_map");
    if (map == index->end() || !map->is_object()) {
      return DamagedJson(index_file, "weight_map", "an object", map == index->end() ? "none" : ShowJson(*map));
    }
    for (const auto& [tensor, file] : map->items()) {
      // A name of its own folder, not a path out of it.
      if (!file.is_string() || absl::StrContains(file.get_ref<const std::string&>(), '/') ||
          !absl::EndsWith(file.get_ref<const std::string&>(), ".safetensors")) {
        return DamagedJson(index_file, "tensor " + Printable(tensor), "the name of a safetensors file", ShowJson(file));
      }
      places[tensor] = file.get<std::string>();
      files.insert(places[tensor]);
    }
  } else if (absl::IsNotFound(index.status())) {
    files.insert(kWeights);
  } else {
    return index.status();
  }
  StoredTensors stored;
  for (const std::string& name : files) {
    const std::string file = absl::StrCat(folder, "/", name);
    const absl::StatusOr<std::span<const std::byte>> bytes = read(name);
    if (absl::IsNotFound(bytes.status())) {
      return Refuse(absl::StatusCode::kNotFound,
                    absl::StrFormat("%s: a file of the model's tensors is missing: %s", file, bytes.status().message()),
                    {.reason = "FILE_UNREADABLE", .metadata = {{"file", file}}});
    }
    EBB_TRY(bytes.status());
    EBB_ASSIGN(std::vector<SafetensorsTensor> tensors, ReadSafetensors(file, *bytes));
    for (SafetensorsTensor& tensor : tensors) {
      const auto place = places.find(tensor.name);
      if (index.ok() && (place == places.end() || place->second != name)) {
        return DamagedJson(file, "tensor " + Printable(tensor.name),
                           place == places.end() ? absl::StrFormat("no tensor that %s lacks", kIndex)
                                                 : "it in " + Printable(place->second),
                           "it here");
      }
      std::string key = tensor.name;
      stored.emplace(std::move(key), Stored{std::move(tensor), file});
    }
  }
  for (const auto& [tensor, name] : places) {
    if (!stored.contains(tensor)) {
      return DamagedJson(absl::StrCat(folder, "/", name), "", "tensor " + Printable(tensor), "none");
    }
  }
  return stored;
}

// Takes the folder's tensors and lays them out as ours.
class Layout {
 public:
  Layout(const std::string& folder, const HubShape& shape, StoredTensors stored)
      : folder_(folder), shape_(shape), stored_(std::move(stored)) {}

  absl::Status TakeAll() {
    const HubFamily& family = *shape_.family;
    for (const HubTensor& row : family.model_tensors) {
      if (row.ours == kOutputTensor && shape_.tied) {
        Find(row.name, family.prefix);  // the embedding is the head, whatever is stored beside it
        continue;
      }
      EBB_TRY(Take(row, std::string(row.name), std::string(row.ours)));
    }
    if (!shape_.rope_factors.empty()) AddRopeFactors();
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      const std::string theirs = absl::StrFormat("%s%d.", family.layers, layer);
      for (const HubTensor& row : family.layer_tensors) {
        EBB_TRY(Take(row, absl::StrFormat("%s%s", theirs, row.name), absl::StrFormat("blk.%d.%s", layer, row.ours)));
      }
      for (const std::string_view name : kHubUnused) Find(absl::StrFormat("%s%s", theirs, name), family.prefix);
    }
    if (stored_.size() == taken_) return absl::OkStatus();
    for (const auto& [name, stored] : stored_) {
      if (stored.tensor.name.empty()) continue;
      return Refuse(absl::StatusCode::kFailedPrecondition,
                    absl::StrFormat("%s: tensor %s has no place in model_type %s with %d layers", stored.file,
                                    Printable(name), family.model_type, shape_.layers),
                    {.reason = "UNSUPPORTED_MODEL_FEATURE", .metadata = {{"file", stored.file}}});
    }
    return absl::OkStatus();
  }

  void Give(GgufHeader& header, GgufFile::Made& made) {
    for (const Ours& tensor : ours_) {
      header.AddTensor(tensor.name, GgmlTypeId(tensor.type), tensor.shape, 0);
      made.data.push_back(tensor.data);
    }
    made.memory = std::move(memory_);
  }

 private:
  struct Ours {
    std::string name = {};
    DType type = DType::kF32;
    std::vector<int64_t> shape = {};  // fastest first
    std::span<const std::byte> data = {};
  };

  // A tensor of the folder as rows; a vector has as many rows as elements.
  struct Rows {
    DType type = DType::kF32;
    int64_t rows = 0, cols = 0;
    bool vector = false;
    std::span<const std::byte> data = {};

    int64_t row_bytes() const { return cols * BlockBytes(type); }
  };

  // What is found is taken: what nobody asks for is left at the end.
  std::optional<Stored> Find(std::string_view name, std::string_view prefix) {
    for (const std::string& whole :
         std::initializer_list<std::string>{absl::StrFormat("%s%s", prefix, name), std::string(name)}) {
      const auto found = stored_.find(whole);
      if (found == stored_.end() || found->second.tensor.name.empty()) continue;
      ++taken_;
      return std::exchange(found->second, Stored{});
    }
    return std::nullopt;
  }

  absl::StatusOr<Stored> Need(std::string_view name) {
    std::optional<Stored> stored = Find(name, shape_.family->prefix);
    if (stored) return *std::move(stored);
    return DamagedJson(folder_, "", absl::StrFormat("tensor %s%s", shape_.family->prefix, name), "none");
  }

  static absl::StatusOr<Rows> RowsOf(const Stored& stored) {
    const SafetensorsTensor& tensor = stored.tensor;
    const bool zero = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
    if (tensor.shape.empty() || tensor.shape.size() > 2 || zero) {
      return DamagedJson(stored.file, "tensor " + Printable(tensor.name), "a vector or a matrix",
                         absl::StrFormat("%d dimensions%s", tensor.shape.size(), zero ? ", one of them 0" : ""));
    }
    Rows rows = {.rows = tensor.shape[0], .vector = tensor.shape.size() == 1, .data = tensor.data};
    rows.cols = rows.vector ? 1 : tensor.shape[1];
    for (const DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
      if (TypeName(type) != tensor.dtype) continue;
      rows.type = type;
      return rows;
    }
    return Refuse(absl::StatusCode::kFailedPrecondition,
                  absl::StrFormat("%s: tensor %s has type %s; F32, F16 and BF16 are read", stored.file,
                                  Printable(tensor.name), tensor.dtype),
                  {.reason = "UNSUPPORTED_TENSOR_TYPE", .metadata = {{"file", stored.file}}});
  }

  std::span<std::byte> NewMemory(int64_t bytes) {
    memory_.emplace_back(static_cast<size_t>(bytes));
    return memory_.back();
  }

  absl::Status Take(const HubTensor& row, const std::string& theirs, const std::string& ours) {
    if (row.layout == HubLayout::kExpert) return TakeExperts(theirs, ours);
    EBB_ASSIGN(const Stored stored, Need(theirs));
    EBB_ASSIGN(Rows rows, RowsOf(stored));
    if (rows.vector) Widen(rows);
    EBB_TRY(LayOut(row.layout, stored, rows));
    const bool misplaced =
        reinterpret_cast<uintptr_t>(rows.data.data()) % static_cast<size_t>(BlockBytes(rows.type)) != 0;
    if (misplaced) rows.data = Copy(rows.data);
    Add(ours, rows);
    return absl::OkStatus();
  }

  void Add(const std::string& name, const Rows& rows) {
    ours_.push_back({name, rows.type,
                     rows.vector ? std::vector<int64_t>{rows.rows} : std::vector<int64_t>{rows.cols, rows.rows},
                     rows.data});
  }

  std::span<const std::byte> Copy(std::span<const std::byte> data) {
    const std::span<std::byte> to = NewMemory(static_cast<int64_t>(data.size()));
    std::ranges::copy(data, to.begin());
    return to;
  }

  void Widen(Rows& rows) {
    if (rows.type == DType::kF32) return;
    const std::span<std::byte> to = NewMemory(rows.rows * 4);
    DequantizeRow(rows.type, rows.data.data(), rows.rows, reinterpret_cast<float*>(to.data()));
    rows.type = DType::kF32;
    rows.data = to;
  }

  absl::Status LayOut(HubLayout layout, const Stored& stored, Rows& rows) {
    switch (layout) {
      case HubLayout::kSame:
      case HubLayout::kExpert:
        return absl::OkStatus();
      case HubLayout::kQueryPairs:
      case HubLayout::kKeyPairs: {
        const int64_t heads = layout == HubLayout::kQueryPairs ? shape_.heads : shape_.kv_heads;
        EBB_TRY(ExpectMultiple(stored, rows, 2 * heads));
        const int64_t half = rows.rows / heads / 2;
        Permute(rows, [half](int64_t to) {
          const int64_t in_head = to % (2 * half);
          return to - in_head + in_head % 2 * half + in_head / 2;
        });
        return absl::OkStatus();
      }
      case HubLayout::kByHead: {
        EBB_TRY(ExpectMultiple(stored, rows, 3 * shape_.heads));
        const int64_t part = rows.rows / 3;
        const int64_t head_dim = part / shape_.heads;
        Permute(rows, [part, head_dim](int64_t to) {
          const int64_t head = to % part / head_dim;
          return (3 * head + to / part) * head_dim + to % head_dim;
        });
        return absl::OkStatus();
      }
      case HubLayout::kTransposed:
        if (rows.vector) {
          return DamagedJson(stored.file, "tensor " + Printable(stored.tensor.name), "a matrix", "a vector");
        }
        Transpose(rows);
        return absl::OkStatus();
      case HubLayout::kPlusOne: {
        const std::span<std::byte> to = NewMemory(static_cast<int64_t>(rows.data.size()));
        if (!rows.vector) return ExpectVector(stored);
        for (int64_t i = 0; i < rows.rows; ++i) {
          float value = 0;
          std::memcpy(&value, rows.data.data() + 4 * i, 4);
          value += 1;
          std::memcpy(to.data() + 4 * i, &value, 4);
        }
        rows.data = to;
        return absl::OkStatus();
      }
      case HubLayout::kFromRow2:
        if (rows.rows < 3 || rows.vector) {
          return DamagedJson(stored.file, "tensor " + Printable(stored.tensor.name), "a matrix of 3 rows and more",
                             absl::StrFormat("%d", rows.rows));
        }
        rows.rows -= 2;
        rows.data = rows.data.subspan(static_cast<size_t>(2 * rows.row_bytes()));
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  static absl::Status ExpectVector(const Stored& stored) {
    return DamagedJson(stored.file, "tensor " + Printable(stored.tensor.name), "a vector", "a matrix");
  }

  static absl::Status ExpectMultiple(const Stored& stored, const Rows& rows, int64_t of) {
    if (rows.rows % of == 0) return absl::OkStatus();
    return DamagedJson(stored.file, "tensor " + Printable(stored.tensor.name),
                       absl::StrFormat("a multiple of %d rows", of), absl::StrFormat("%d", rows.rows));
  }

  // Row `to` of the result is row from(to).
  template <typename From>
  void Permute(Rows& rows, const From& from) {
    const int64_t bytes = rows.row_bytes();
    const std::span<std::byte> result = NewMemory(rows.rows * bytes);
    for (int64_t to = 0; to < rows.rows; ++to) {
      std::memcpy(result.data() + to * bytes, rows.data.data() + from(to) * bytes, static_cast<size_t>(bytes));
    }
    rows.data = result;
  }

  void Transpose(Rows& rows) {
    const int64_t size = BlockBytes(rows.type);
    const std::span<std::byte> result = NewMemory(static_cast<int64_t>(rows.data.size()));
    for (int64_t r = 0; r < rows.rows; ++r) {
      for (int64_t c = 0; c < rows.cols; ++c) {
        std::memcpy(result.data() + (c * rows.rows + r) * size, rows.data.data() + (r * rows.cols + c) * size,
                    static_cast<size_t>(size));
      }
    }
    rows.data = result;
    std::swap(rows.rows, rows.cols);
  }

  absl::Status TakeExperts(const std::string& theirs, const std::string& ours) {
    const size_t star = theirs.find('*');
    std::vector<Rows> experts;
    for (int64_t expert = 0; expert < shape_.experts; ++expert) {
      EBB_ASSIGN(const Stored stored, Need(absl::StrCat(theirs.substr(0, star), expert, theirs.substr(star + 1))));
      EBB_ASSIGN(const Rows rows, RowsOf(stored));
      const Rows& first = experts.empty() ? rows : experts.front();
      if (rows.type != first.type || rows.rows != first.rows || rows.cols != first.cols || rows.vector) {
        return DamagedJson(stored.file, "tensor " + Printable(stored.tensor.name),
                           absl::StrFormat("a matrix like those of the other experts, %s [%d, %d]",
                                           TypeName(first.type), first.rows, first.cols),
                           absl::StrFormat("%s [%d, %d]", TypeName(rows.type), rows.rows, rows.cols));
      }
      experts.push_back(rows);
    }
    if (experts.empty()) return DamagedJson(folder_, "", "experts from 1", "0");
    const Rows& first = experts.front();
    const auto each = static_cast<int64_t>(first.data.size());
    const std::span<std::byte> all = NewMemory(shape_.experts * each);  // all of it was in the files
    for (int64_t expert = 0; expert < shape_.experts; ++expert) {
      std::ranges::copy(experts[static_cast<size_t>(expert)].data, all.begin() + expert * each);
    }
    ours_.push_back({ours, first.type, {first.cols, first.rows, shape_.experts}, all});
    return absl::OkStatus();
  }

  void AddRopeFactors() {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(shape_.rope_factors));
    ours_.push_back({std::string(kRopeFactorsTensor),
                     DType::kF32,
                     {static_cast<int64_t>(shape_.rope_factors.size())},
                     Copy(bytes)});
  }

  const std::string& folder_;
  const HubShape& shape_;
  StoredTensors stored_;  // those that are taken have lost their names
  size_t taken_ = 0;
  std::vector<Ours> ours_ = {};
  std::vector<std::vector<std::byte>> memory_ = {};
};

// Rows of the embedding, of which tokenizers often name fewer; 0: config.json does not say.
int64_t VocabularySize(const Json& config) {
  const auto size = config.find("vocab_size");
  return size != config.end() && size->is_number_unsigned() ? size->get<int64_t>() : 0;
}

absl::StatusOr<GgufFile::Made> Make(const std::string& folder, const ReadHubFile& read) {
  EBB_ASSIGN(const Json config, ReadJson(folder, kConfig, read));
  absl::StatusOr<Json> generation = ReadJson(folder, kGeneration, read);
  if (absl::IsNotFound(generation.status())) generation = Json::object();
  EBB_TRY(generation.status());
  GgufHeader header;
  header.AddText("general.name", std::filesystem::path(folder).filename().string());
  EBB_ASSIGN(const HubShape shape, ReadHubConfig(absl::StrCat(folder, "/", kConfig), config,
                                                 absl::StrCat(folder, "/", kGeneration), *generation, header));
  EBB_TRY(AddHubTokenizer(folder, read, VocabularySize(config), shape.ends, header));
  EBB_ASSIGN(StoredTensors stored, ReadTensors(folder, read));
  Layout layout(folder, shape, std::move(stored));
  EBB_TRY(layout.TakeAll());
  GgufFile::Made made = {.name = folder};
  layout.Give(header, made);
  made.header = header.Bytes();
  return made;
}

}  // namespace

absl::StatusOr<GgufFile> ReadHubModel(const std::string& folder, const ReadHubFile& read) {
  EBB_ASSIGN(GgufFile::Made made, Make(folder, read));
  return GgufFile::From(std::move(made));
}

absl::StatusOr<GgufFile> OpenModel(const std::string& path) {
  if (!IsModelFolder(path)) return GgufFile::Open(path);
  MappedFolder folder(path);
  EBB_ASSIGN(GgufFile::Made made, Make(folder.path(), [&](const std::string& name) { return folder.Read(name); }));
  made.files = folder.files();
  made.mapped = folder.TakeMappings();
  return GgufFile::From(std::move(made));
}

}  // namespace ebb
