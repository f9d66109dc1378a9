#include "server/experiment_image.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "ebb/store/v1/experiment.pb.h"
#include "engine/snapshot/checksum.h"
#include "policies/status.h"
#include "server/experiment_parts.h"

namespace ebb {
namespace {

constexpr std::string_view kMagic = "ebb exp";
constexpr char kVersion = '1';
constexpr size_t kCrcAt = kMagic.size() + 1;
constexpr size_t kHead = kCrcAt + sizeof(uint32_t);

}  // namespace

ExperimentImage::ExperimentImage() : bytes_(kMagic) {
  bytes_ += kVersion;
  bytes_.resize(kHead);
}

// A message's fields are the bytes of one after another.
void ExperimentImage::Add(const v1::ExperimentPart& part) {
  store::v1::KeptExperiment one;
  *one.add_parts() = part;
  one.AppendToString(&bytes_);
}

std::string ExperimentImage::Seal() && {
  const uint32_t crc = Crc32(0, bytes_.data() + kHead, bytes_.size() - kHead);
  std::memcpy(bytes_.data() + kCrcAt, &crc, sizeof crc);
  return std::move(bytes_);
}

absl::StatusOr<WholeExperiment> ReadExperimentImage(std::string_view bytes) {
  if (!bytes.starts_with(kMagic) || bytes.size() < kHead) {
    return absl::InvalidArgumentError(
        absl::StrFormat("byte 0: \"%s%c\" and a checksum are expected", kMagic, kVersion));
  }
  if (bytes[kMagic.size()] != kVersion) {
    return absl::InvalidArgumentError(absl::StrFormat("byte %d: its version is '%c'; this server reads %c",
                                                      kMagic.size(), bytes[kMagic.size()], kVersion));
  }
  uint32_t expected = 0;
  std::memcpy(&expected, bytes.data() + kCrcAt, sizeof expected);
  const std::string_view content = bytes.substr(kHead);
  const uint32_t found = Crc32(0, content.data(), content.size());
  if (found != expected) {
    return absl::InvalidArgumentError(
        absl::StrFormat("its checksum is %08x, where %08x is expected: it is damaged", found, expected));
  }
  store::v1::KeptExperiment kept;
  if (content.size() > std::numeric_limits<int32_t>::max() ||
      !kept.ParseFromArray(content.data(), static_cast<int>(content.size()))) {
    return absl::InvalidArgumentError(absl::StrFormat("byte %d: no ebb.store.v1.KeptExperiment begins there", kHead));
  }
  ExperimentParts parts;
  for (int i = 0; i < kept.parts_size(); ++i) {
    const absl::Status status = parts.Take(kept.parts(i));
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrFormat("parts[%d]: %s", i, std::string(status.message())));
    }
  }
  return parts.Finish();
}

}  // namespace ebb
