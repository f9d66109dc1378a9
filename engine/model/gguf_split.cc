#include "engine/model/gguf_split.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr std::string_view kNumber = "split.no";
constexpr std::string_view kCount = "split.count";
constexpr std::string_view kTensors = "split.tensors.count";

absl::Status WrongFile(const std::string& file, const std::string& what) {
  return Refuse(absl::StatusCode::kFailedPrecondition, absl::StrFormat("%s: %s", file, what),
                {.reason = "UNSUPPORTED_MODEL_FORMAT", .metadata = {{"file", file}}});
}

absl::Status Expect(const GgufFile& file, std::string_view key, int64_t expected) {
  EBB_ASSIGN(const int64_t number, file.GetInt(key));
  if (number == expected) return absl::OkStatus();
  return file.Damaged(file.FindValue(key)->offset, absl::StrFormat("%s to be %d", key, expected),
                      absl::StrFormat("%d", number));
}

// A key that two parts state, they state alike; else they are of two models.
absl::Status ExpectSameKeys(const GgufFile& first, const GgufFile& part) {
  for (const GgufValue& value : part.metadata()) {
    const GgufValue* const other = value.key == kNumber ? nullptr : first.FindValue(value.key);
    if (other == nullptr || (value.type == other->type && std::ranges::equal(value.bytes, other->bytes))) continue;
    return part.Damaged(value.offset,
                        absl::StrFormat("%s as in %s, %s", Printable(value.key), first.name(), FormatValue(*other)),
                        FormatValue(value));
  }
  return absl::OkStatus();
}

}  // namespace

class GgufJoiner {
 public:
  explicit GgufJoiner(GgufFile first) : whole_(std::move(first)) {}

  absl::Status Add(GgufFile part) {
    const auto number = static_cast<int32_t>(whole_.parts_.size());
    for (GgufTensor& tensor : part.tensors_) {
      const auto [at, is_new] = whole_.tensor_index_.emplace(tensor.name, whole_.tensors_.size());
      if (!is_new) {
        const GgufTensor& before = whole_.tensors_[at->second];
        return part.Damaged(tensor, "each tensor name in one part",
                            absl::StrFormat("%s, which %s has, too", Printable(tensor.name),
                                            whole_.parts_[static_cast<size_t>(before.part)]));
      }
      tensor.part = number;
      whole_.tensors_.push_back(tensor);
    }
    whole_.parts_.push_back(part.name());
    whole_.file_bytes_ += part.file_bytes_;
    for (MappedFile& mapping : part.mappings_) whole_.mappings_.push_back(std::move(mapping));
    return absl::OkStatus();
  }

  absl::Status CheckTensors(int64_t expected) const {
    const auto found = static_cast<int64_t>(whole_.tensors_.size());
    if (found == expected) return absl::OkStatus();
    return whole_.Damaged(
        whole_.FindValue(kTensors)->offset,
        absl::StrFormat("%d tensors in the %d parts, as %s says", expected, whole_.parts_.size(), kTensors),
        absl::StrFormat("%d", found));
  }

  const GgufFile& whole() const { return whole_; }
  GgufFile Take() { return std::move(whole_); }

 private:
  GgufFile whole_;
};

std::string SplitSuffix(int32_t part, int32_t count) { return absl::StrFormat("-%05d-of-%05d.gguf", part + 1, count); }

absl::StatusOr<GgufFile> JoinSplit(GgufFile first, const OpenPart& open) {
  EBB_ASSIGN(const int64_t stated, first.GetInt(kCount, 1));
  if (stated < 1 || stated > kSplitPartsMax) {
    return first.Damaged(first.FindValue(kCount)->offset, absl::StrFormat("%s from 1 to %d", kCount, kSplitPartsMax),
                         absl::StrFormat("%d", stated));
  }
  if (stated == 1) return first;
  const auto count = static_cast<int32_t>(stated);
  EBB_ASSIGN(const int64_t number, first.GetInt(kNumber));
  if (number < 0 || number >= count) {
    return first.Damaged(first.FindValue(kNumber)->offset, absl::StrFormat("%s from 0 to %d", kNumber, count - 1),
                         absl::StrFormat("%d", number));
  }
  if (number > 0) {
    return WrongFile(first.name(), absl::StrFormat("is part %d of %d; open the first, whose name ends in %s",
                                                   number + 1, count, SplitSuffix(0, count)));
  }
  const std::string suffix = SplitSuffix(0, count);
  if (!first.name().ends_with(suffix)) {
    return WrongFile(first.name(),
                     absl::StrFormat("is the first of %d parts, which are found by its name; it should end "
                                     "in %s",
                                     count, suffix));
  }
  const std::string stem = first.name().substr(0, first.name().size() - suffix.size());
  EBB_ASSIGN(const int64_t tensors, first.GetInt(kTensors));
  const std::string name = first.name();
  GgufJoiner joiner(std::move(first));
  for (int32_t i = 1; i < count; ++i) {
    absl::StatusOr<GgufFile> part = open(stem + SplitSuffix(i, count));
    if (absl::IsNotFound(part.status())) {
      return Refuse(absl::StatusCode::kNotFound,
                    absl::StrFormat("%s: part %d of %d is missing: %s", name, i + 1, count, part.status().message()),
                    {.reason = "FILE_UNREADABLE", .metadata = {{"file", stem + SplitSuffix(i, count)}}});
    }
    EBB_TRY(part.status());
    EBB_TRY(Expect(*part, kNumber, i));
    EBB_TRY(Expect(*part, kCount, count));
    EBB_TRY(ExpectSameKeys(joiner.whole(), *part));
    EBB_TRY(joiner.Add(*std::move(part)));
  }
  EBB_TRY(joiner.CheckTensors(tensors));
  return joiner.Take();
}

}  // namespace ebb
