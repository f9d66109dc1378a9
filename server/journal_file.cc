#include "server/journal_file.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "engine/snapshot/checksum.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr std::string_view kMagic = "ebb jrn1";
constexpr size_t kNumber = sizeof(uint32_t);
constexpr size_t kHead = 2 * kNumber;  // length, checksum
constexpr size_t kTail = kNumber + 1;  // checksum, end
constexpr char kEnd = '\xEB';

uint32_t Crc(uint32_t before, std::string_view bytes) { return Crc32(before, bytes.data(), bytes.size()); }

uint32_t NumberAt(std::string_view bytes, size_t offset) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

void AddNumber(uint32_t value, std::string& to) { to.append(reinterpret_cast<const char*>(&value), sizeof value); }

// A record that begins where `end` says; empty when it is none.
struct Found {
  bool whole = false;
  bool cut = false;  // the file ends first
  std::string_view payload = {};
};

Found FindRecord(std::string_view bytes, JournalEnd& end) {
  const std::string_view left = bytes.substr(end.bytes);
  if (left.size() < kHead) return {.cut = true};
  const uint32_t head = Crc(end.crc, left.substr(0, kNumber));
  if (head != NumberAt(left, kNumber)) return {};
  const size_t length = NumberAt(left, 0);
  if (left.size() < kHead + length + kTail) return {.cut = true};
  const std::string_view payload = left.substr(kHead, length);
  const uint32_t body = Crc(head, payload);
  if (body != NumberAt(left, kHead + length) || left[kHead + length + kNumber] != kEnd) return {};
  end = {.bytes = end.bytes + kHead + length + kTail, .crc = body};
  return {.whole = true, .payload = payload};
}

}  // namespace

absl::Status JournalDamaged(const std::string& what) {
  return Refuse(absl::StatusCode::kDataLoss, "the journal is damaged: " + what, {.reason = "JOURNAL_DAMAGED"});
}

void BeginJournal(JournalEnd& end, std::string& bytes) {
  bytes += kMagic;
  end = {.bytes = kMagic.size(), .crc = Crc(0, kMagic)};
}

void AddJournalRecord(std::string_view payload, JournalEnd& end, std::string& bytes) {
  const size_t begin = bytes.size();
  AddNumber(static_cast<uint32_t>(payload.size()), bytes);
  const uint32_t head = Crc(end.crc, std::string_view(bytes).substr(begin));
  AddNumber(head, bytes);
  bytes += payload;
  end.crc = Crc(head, payload);
  AddNumber(end.crc, bytes);
  bytes += kEnd;
  end.bytes += bytes.size() - begin;
}

absl::StatusOr<JournalText> ReadJournal(std::string_view bytes) {
  const bool lost_power = !bytes.empty() && bytes.back() == '\0';
  JournalText text;
  const size_t magic = std::min(bytes.size(), kMagic.size());
  if (bytes.substr(0, magic) != kMagic.substr(0, magic)) {
    if (lost_power) return text;
    return JournalDamaged(absl::StrFormat("byte 0: %s is expected", kMagic));
  }
  if (bytes.size() < kMagic.size()) return text;
  text.end = {.bytes = kMagic.size(), .crc = Crc(0, kMagic)};
  while (text.end.bytes < bytes.size()) {
    const Found found = FindRecord(bytes, text.end);
    if (found.cut || (!found.whole && lost_power)) break;
    if (!found.whole) {
      return JournalDamaged(absl::StrFormat("byte %d: the checksums of the record there do not fit", text.end.bytes));
    }
    text.records.push_back(found.payload);
  }
  return text;
}

}  // namespace ebb
