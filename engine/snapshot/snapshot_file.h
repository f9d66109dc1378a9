// A snapshot as bytes: a list of records, each checked by itself and at its place in the list.
//
//   snapshot = "ebb snap", version u32, record..., a record kEnd without payload
//   record   = kind u32, length u64, CRC-32 of these 12 bytes, payload [length], CRC-32 of every head (its own checksum
//              apart) and payload so far, this one's included
//
// Numbers are little-endian. The first checksum tells a damaged length before anything is read by it, the second a
// damaged payload, and a record that was lost, repeated or moved. One flipped bit anywhere, one run of up to 32 damaged
// bits, and any cut are always found. Checksums find damage, not malice: who may write to the server's store is trusted
// as the server is.

#ifndef EBB_ENGINE_SNAPSHOT_SNAPSHOT_FILE_H_
#define EBB_ENGINE_SNAPSHOT_SNAPSHOT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/large_pages.h"

namespace ebb {

inline constexpr uint32_t kSnapshotVersion = 1;

enum class RecordKind : uint32_t { kEnd = 0, kModel = 1, kPolicy = 2, kSession = 3, kMap = 4, kLane = 5, kServer = 6 };

// DATA_LOSS SNAPSHOT_DAMAGED: what was found, and what was expected.
absl::Status SnapshotDamaged(const std::string& what);

// Fields as bytes, one after another, for RecordReader.
class RecordWriter {
 public:
  // Room for so many bytes in all, so that writing them moves none.
  void Reserve(size_t bytes) { ReserveLarge(bytes_, bytes_.size() + bytes); }

  template <typename T>
  void Add(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void AddText(std::string_view text) { AddAll(std::span(text)); }
  // How many there are, and then each.
  template <typename T>
  void AddAll(std::span<const T> values) {
    static_assert(std::is_arithmetic_v<T>);
    Add(static_cast<uint64_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  // The bytes alone, for a record that is nothing else.
  void AddRaw(std::string_view bytes) { bytes_.append(bytes); }
  // So many bytes, all zero, for the caller to fill before the next call.
  std::span<std::byte> AddBytes(size_t count) {
    bytes_.resize(bytes_.size() + count);
    return std::as_writable_bytes(std::span(bytes_)).last(count);
  }
  // What was written, which the writer no longer has.
  std::string Take() { return std::exchange(bytes_, {}); }

 protected:
  std::string bytes_ = {};
};

// Writes the records of one snapshot, one after another, into memory; checksums are left for SealSnapshot.
class SnapshotWriter : public RecordWriter {
 public:
  SnapshotWriter();

  // Every field from here on belongs to this record.
  void Begin(RecordKind kind);
  // The whole, which the writer no longer has.
  std::string Finish();

 private:
  void Close();

  size_t record_ = 0;  // where the record that is open begins; 0: none is
};

// Fills in the checksums of what Finish returned; of other bytes as far as they look like records. Any thread.
void SealSnapshot(std::string& bytes);

struct SnapshotRecord {
  RecordKind kind = RecordKind::kEnd;
  std::span<const std::byte> payload = {};
};

// Checks a snapshot while it is still being read, so that who waits for a disk computes its checksums meanwhile.
class SnapshotCheck {
 public:
  // `bytes` is all that is there so far: what was there at the call before, and more. Cost: of what is more.
  void More(std::span<const std::byte> bytes);
  // Of all of it, as ReadSnapshot.
  absl::StatusOr<std::vector<SnapshotRecord>> Finish(std::span<const std::byte> bytes);

 private:
  struct Found {
    RecordKind kind = RecordKind::kEnd;
    size_t payload = 0;  // where it begins
    size_t length = 0;
  };

  size_t record_ = 0;  // where the record at hand begins; 0: the snapshot's head has yet to come
  size_t summed_ = 0;  // up to where crc_ is
  uint32_t crc_ = 0;
  bool ended_ = false;
  absl::Status damage_ = {};
  std::vector<Found> found_ = {};
};

// The bytes of one, and what is known of them so far.
struct SnapshotBytes {
  std::string bytes = {};
  SnapshotCheck check = {};
};

// The records of a snapshot but for the last, as views of `bytes`. FAILED_PRECONDITION SNAPSHOT_VERSION for another
// version, naming both; SNAPSHOT_DAMAGED.
absl::StatusOr<std::vector<SnapshotRecord>> ReadSnapshot(std::span<const std::byte> bytes);

// Reads the fields of one record in the order in which they were written. What is not there reads as zero or empty, and
// Finish tells; nothing is allocated for more than is there.
class RecordReader {
 public:
  explicit RecordReader(std::span<const std::byte> payload) : left_(payload) {}

  template <typename T>
  T Read() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    T value = {};
    const std::span<const std::byte> bytes = Take(sizeof value, 1);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  template <typename T>
  std::vector<T> ReadAll() {
    std::vector<T> values;
    const auto count = Read<uint64_t>();
    const std::span<const std::byte> bytes = Take(count, sizeof(T));
    values.resize(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::string ReadText() {
    const std::vector<char> text = ReadAll<char>();
    return {text.begin(), text.end()};
  }
  std::span<const std::byte> TakeRest() { return Take(left_.size(), 1); }

  // SNAPSHOT_DAMAGED, naming `record`, unless every field was there and nothing is left over.
  absl::Status Finish(const char* record) const;

 private:
  std::span<const std::byte> Take(uint64_t count, size_t each);

  std::span<const std::byte> left_;
  bool whole_ = true;
};

}  // namespace ebb

#endif  // EBB_ENGINE_SNAPSHOT_SNAPSHOT_FILE_H_
