#include "engine/snapshot/snapshot_file.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/snapshot/checksum.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

static_assert(std::endian::native == std::endian::little, "snapshots are little-endian and copied as they are");

constexpr std::string_view kMagic = "ebb snap";
constexpr size_t kHeadBytes = 12;  // kind, length
constexpr size_t kCrcBytes = 4;
constexpr size_t kPrefixBytes = kMagic.size() + sizeof(uint32_t);

template <typename T>
T At(std::span<const std::byte> bytes, size_t offset) {
  T value = {};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <typename T>
void Put(T value, std::string& bytes, size_t offset) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

absl::Status Cut(size_t offset, const char* what, uint64_t wanted, uint64_t left) {
  return SnapshotDamaged(
      absl::StrFormat("byte %d: %s of %d bytes expected, the snapshot ends after %d", offset, what, wanted, left));
}

}  // namespace

absl::Status SnapshotDamaged(const std::string& what) {
  return Refuse(absl::StatusCode::kDataLoss, "the snapshot is damaged: " + what, {.reason = "SNAPSHOT_DAMAGED"});
}

SnapshotWriter::SnapshotWriter() {
  bytes_ = kMagic;
  Add(kSnapshotVersion);
}

void SnapshotWriter::Begin(RecordKind kind) {
  Close();
  record_ = bytes_.size();
  Add(static_cast<uint32_t>(kind));
  Add(uint64_t{0});
  Add(uint32_t{0});
}

void SnapshotWriter::Close() {
  if (record_ == 0) return;
  const uint64_t length = bytes_.size() - record_ - kHeadBytes - kCrcBytes;
  Put(length, bytes_, record_ + sizeof(uint32_t));
  record_ = 0;
  Add(uint32_t{0});
}

std::string SnapshotWriter::Finish() {
  Begin(RecordKind::kEnd);
  Close();
  return std::exchange(bytes_, {});
}

void SealSnapshot(std::string& bytes) {
  if (bytes.size() < kPrefixBytes) return;
  uint32_t crc = Crc32(0, bytes.data(), kPrefixBytes);
  for (size_t at = kPrefixBytes; bytes.size() - at >= kHeadBytes + 2 * kCrcBytes;) {
    Put(Crc32(0, bytes.data() + at, kHeadBytes), bytes, at + kHeadBytes);
    const auto length = At<uint64_t>(std::as_bytes(std::span(bytes)), at + sizeof(uint32_t));
    const size_t payload = at + kHeadBytes + kCrcBytes;
    if (length > bytes.size() - payload - kCrcBytes) return;
    crc = Crc32(Crc32(crc, bytes.data() + at, kHeadBytes), bytes.data() + payload, length);
    Put(crc, bytes, payload + length);
    at = payload + length + kCrcBytes;
  }
}

void SnapshotCheck::More(std::span<const std::byte> bytes) {
  if (record_ == 0) {
    if (bytes.size() < kPrefixBytes) return;
    crc_ = Crc32(0, bytes.data(), kPrefixBytes);
    record_ = summed_ = kPrefixBytes;
  }
  while (!ended_ && damage_.ok()) {
    const size_t payload = record_ + kHeadBytes + kCrcBytes;
    if (bytes.size() < payload) return;
    if (summed_ == record_) {
      const std::byte* const head = bytes.data() + record_;
      if (At<uint32_t>(bytes, record_ + kHeadBytes) != Crc32(0, head, kHeadBytes)) {
        damage_ = SnapshotDamaged(absl::StrFormat("byte %d: a record's head has another checksum", record_));
        return;
      }
      crc_ = Crc32(crc_, head, kHeadBytes);
      summed_ = payload;
    }
    const auto length = At<uint64_t>(bytes, record_ + sizeof(uint32_t));
    const size_t end = payload + static_cast<size_t>(std::min<uint64_t>(length, bytes.size() - payload));
    crc_ = Crc32(crc_, bytes.data() + summed_, end - summed_);
    summed_ = end;
    if (end - payload < length || bytes.size() - end < kCrcBytes) return;
    if (At<uint32_t>(bytes, end) != crc_) {
      damage_ = SnapshotDamaged(absl::StrFormat("bytes %d to %d: they have another checksum", record_, end));
      return;
    }
    const auto kind = static_cast<RecordKind>(At<uint32_t>(bytes, record_));
    record_ = summed_ = end + kCrcBytes;
    ended_ = kind == RecordKind::kEnd;
    if (ended_ && length != 0) damage_ = SnapshotDamaged(absl::StrFormat("byte %d: its end expected", record_));
    if (!ended_) found_.push_back({.kind = kind, .payload = payload, .length = length});
  }
}

absl::StatusOr<std::vector<SnapshotRecord>> SnapshotCheck::Finish(std::span<const std::byte> bytes) {
  if (bytes.size() < kPrefixBytes) return Cut(0, "a head", kPrefixBytes, bytes.size());
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return SnapshotDamaged(absl::StrFormat("byte 0: '%s' expected", kMagic));
  }
  if (const auto version = At<uint32_t>(bytes, kMagic.size()); version != kSnapshotVersion) {
    return Refuse(
        absl::StatusCode::kFailedPrecondition,
        absl::StrFormat("the snapshot has version %d, this server reads version %d", version, kSnapshotVersion),
        {.reason = "SNAPSHOT_VERSION"});
  }
  More(bytes);
  EBB_TRY(damage_);
  if (!ended_) {
    const size_t payload = record_ + kHeadBytes + kCrcBytes;
    if (bytes.size() < payload) return Cut(record_, "a record's head", payload - record_, bytes.size() - record_);
    return Cut(payload, "a record", At<uint64_t>(bytes, record_ + sizeof(uint32_t)), bytes.size() - payload);
  }
  if (record_ != bytes.size()) return SnapshotDamaged(absl::StrFormat("byte %d: its end expected", record_));
  std::vector<SnapshotRecord> records;
  records.reserve(found_.size());
  for (const Found& found : found_) {
    records.push_back({.kind = found.kind, .payload = bytes.subspan(found.payload, found.length)});
  }
  return records;
}

absl::StatusOr<std::vector<SnapshotRecord>> ReadSnapshot(std::span<const std::byte> bytes) {
  return SnapshotCheck().Finish(bytes);
}

std::span<const std::byte> RecordReader::Take(uint64_t count, size_t each) {
  if (!whole_ || count > left_.size() / each) {
    whole_ = false;
    return {};
  }
  const std::span<const std::byte> taken = left_.first(count * each);
  left_ = left_.subspan(count * each);
  return taken;
}

absl::Status RecordReader::Finish(const char* record) const {
  if (!whole_) return SnapshotDamaged(absl::StrFormat("the record of the %s ends too early", record));
  if (!left_.empty()) {
    return SnapshotDamaged(absl::StrFormat("the record of the %s has %d bytes too many", record, left_.size()));
  }
  return absl::OkStatus();
}

}  // namespace ebb
