// make_session_corpus FOLDER: writes the committed corpora of snapshot_fuzz and journal_fuzz again, in FOLDER/snapshot
// and FOLDER/journal: a session under each kind of policy, every kind of record alone, and a journal of all of them.

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "engine/snapshot/snapshot_file.h"
#include "policies/check.h"
#include "server/journal_file.h"
#include "server/journal_record.h"
#include "tests/fuzz/session_corpus_model.h"

namespace ebb {
namespace {

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  EBB_CHECK(file.flush().good());
}

void WriteSnapshots(const std::string& folder) {
  const std::unique_ptr<Engine> engine = OpenCorpusEngine();
  const PolicySpec full = {.scorer = "full", .budget = 40};
  const PolicySpec h2o = {.scorer = "h2o", .budget = 12};
  PolicySpec compacted = {.scorer = "streaming", .budget = 12};
  compacted.positions = Positions::kCompacted;
  PolicySpec snapkv = {.scorer = "snapkv", .budget = 12};
  snapkv.recent = 4;
  const struct {
    const char* name;
    const PolicySpec& policy;
    int32_t tokens;
  } sessions[] = {
      {"empty", h2o, 0}, {"full", full, 20}, {"h2o", h2o, 20}, {"compacted", compacted, 20}, {"snapkv", snapkv, 20}};
  for (const auto& one : sessions) {
    const std::unique_ptr<Session> session = OpenTestSession(*engine, one.policy, kCorpusBlock);
    if (one.tokens > 0) Feed(*engine, *session, RandomTokens(1, one.tokens, engine->config().vocab), kCorpusBlock);
    SnapshotWriter writer;
    EBB_CHECK(engine->Save(*session, writer).ok());
    std::string bytes = writer.Finish();
    SealSnapshot(bytes);
    Write(folder + "/" + one.name, bytes);
  }
}

void WriteJournals(const std::string& folder) {
  ModelConfig model;
  model.layers = 2;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.vocab = 261;
  model.context = 512;
  using Record = JournalRecord;
  SamplingOptions sampling;
  sampling.temperature = 0.5F;
  sampling.logit_bias = {{3, 1.0F}, {9, -1.0F}};
  Record::Evict range, keep, slots;
  range.request.range = EvictRequest::Range{.start = 1, .end = 5};
  keep.request.keep = 7;
  keep.request.scorer = "h2o";
  slots.request.slots = {{.layer = 1, .head = 1, .slots = {2, 3}}};
  const std::vector<Record::What> records = {
      Record::Block{.tokens = {1, 2, 3}, .prompt_ends = true},
      Record::AnswerBegins{.plan = {.sampling = sampling, .until = 20}},
      Record::Token{.token = 7},
      Record::AnswerEnds{},
      Record::Draft{.tokens = {4, 5}, .accepted = {}},
      Record::Accept{.count = 1},
      Record::Draft{.tokens = {4, 5}, .accepted = 2},
      Record::Edit{.edit = {.spans = {{.start = 1, .end = 2, .tokens = {8}}}, .mode = EditMode::kReposition},
                   .blocks = {2, 1}},
      range,
      keep,
      slots,
      Record::Policy{.policy = Resolve({.scorer = "tova", .budget = 24}, LimitsOf(model)).value()}};
  JournalEnd end;
  std::string journal;
  BeginJournal(end, journal);
  uint64_t generation = 0;
  for (const Record::What& what : records) {
    const std::string payload = EncodeRecord({.generation = ++generation, .what = what}, model);
    Write(folder + "/record_" + std::to_string(generation), payload);
    AddJournalRecord(payload, end, journal);
  }
  Write(folder + "/journal", journal);
  Write(folder + "/cut", journal.substr(0, journal.size() - 3));
  Write(folder + "/zeros", journal + std::string(20, '\0'));
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_session_corpus FOLDER\n");
    return 2;
  }
  ebb::WriteSnapshots(std::string(argv[1]) + "/snapshot");
  ebb::WriteJournals(std::string(argv[1]) + "/journal");
  return 0;
}
