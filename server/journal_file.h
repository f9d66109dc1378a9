// A journal as bytes: what a session did, record after record, each checked by itself and at its place in the list.
//
//   journal = "ebb jrn1", record...
//   record  = length u32, head, payload [length], body, 0xEB
//
// `head` and `body` are CRC-32 of all lengths and payloads up to there, so that neither a damaged length nor one lost,
// repeated or moved record is taken for another. Numbers are little-endian.
//
// Whoever is killed leaves a record that is cut: the file ends before the record does. Whoever loses power leaves what
// the disk had not yet got as zeros up to the end, and a whole record never ends in one. Neither was acknowledged. All
// else that does not fit is damage.

#ifndef EBB_SERVER_JOURNAL_FILE_H_
#define EBB_SERVER_JOURNAL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ebb {

// DATA_LOSS JOURNAL_DAMAGED: what was found, and what was expected.
absl::Status JournalDamaged(const std::string& what);

// Where a journal ends, and its next record goes.
struct JournalEnd {
  uint64_t bytes = 0;
  uint32_t crc = 0;
};

// Appends to `bytes` what begins a journal, or another record, and moves `end` behind it.
void BeginJournal(JournalEnd& end, std::string& bytes);
void AddJournalRecord(std::string_view payload, JournalEnd& end, std::string& bytes);

struct JournalText {
  std::vector<std::string_view> records = {};  // payloads: views of what was read
  JournalEnd end = {};                         // behind the last whole record; 0 bytes: the journal never began
};

// JOURNAL_DAMAGED, naming the byte.
absl::StatusOr<JournalText> ReadJournal(std::string_view bytes);

}  // namespace ebb

#endif  // EBB_SERVER_JOURNAL_FILE_H_
