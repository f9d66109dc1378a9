// Any bytes as a journal, as the payload of one of its records, and as payloads whose journal is cut anywhere.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "policies/check.h"
#include "server/journal_file.h"
#include "server/journal_record.h"

namespace {

using ebb::JournalEnd;

ebb::ModelConfig Model() {
  ebb::ModelConfig model;
  model.layers = 2;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.vocab = 261;
  model.context = 512;
  return model;
}

// What was read is written as what is read again.
void CheckPayload(std::string_view payload) {
  static const ebb::ModelConfig model = Model();
  const auto record = ebb::DecodeRecord(payload, model);
  if (!record.ok()) return;
  EBB_CHECK(record->tokens() >= 0);
  const std::string once = ebb::EncodeRecord(*record, model);
  const auto again = ebb::DecodeRecord(once, model);
  EBB_CHECK(again.ok());
  EBB_CHECK(ebb::EncodeRecord(*again, model) == once);
}

// Its whole records, written again, are the bytes that it has up to its end.
void CheckJournal(std::string_view bytes) {
  const auto journal = ebb::ReadJournal(bytes);
  if (!journal.ok() || journal->end.bytes == 0) return;
  JournalEnd end;
  std::string again;
  ebb::BeginJournal(end, again);
  for (const std::string_view payload : journal->records) {
    ebb::AddJournalRecord(payload, end, again);
    CheckPayload(payload);
  }
  EBB_CHECK(end.bytes == journal->end.bytes);
  EBB_CHECK(end.crc == journal->end.crc);
  EBB_CHECK(again == bytes.substr(0, end.bytes));
}

// A journal that is cut has the records before the cut, and is not damaged.
void CheckCut(std::string_view payload) {
  if (payload.size() < 2) return;
  const auto cut_at = static_cast<uint8_t>(payload[0]) * size_t{256} + static_cast<uint8_t>(payload[1]);
  const size_t half = payload.size() / 2;
  JournalEnd end;
  std::string bytes;
  ebb::BeginJournal(end, bytes);
  ebb::AddJournalRecord(payload.substr(0, half), end, bytes);
  const uint64_t first = end.bytes;
  ebb::AddJournalRecord(payload.substr(half), end, bytes);
  const size_t cut = cut_at % (bytes.size() + 1);
  const auto journal = ebb::ReadJournal(std::string_view(bytes).substr(0, cut));
  EBB_CHECK(journal.ok());
  const size_t whole = cut == bytes.size() ? 2 : cut >= first ? 1 : 0;
  EBB_CHECK(journal->records.size() == whole);
  if (whole > 0) EBB_CHECK(journal->records[0] == payload.substr(0, half));
  if (whole > 1) EBB_CHECK(journal->records[1] == payload.substr(half));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  CheckJournal(bytes);
  CheckPayload(bytes);
  CheckCut(bytes);
  return 0;
}
