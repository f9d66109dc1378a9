// Journals as bytes: what was cut is dropped, what is damaged is named, and nothing else is taken for a record.

#include "server/journal_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/model/architecture.h"
#include "policies/hash_random.h"
#include "policies/status.h"
#include "server/journal_record.h"

namespace ebb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReasonOf(const absl::Status& status) { return GetRefusal(status).reason; }

// Where each record begins, and the end.
struct Written {
  std::string bytes = {};
  std::vector<size_t> starts = {};
};

Written Write(const std::vector<std::string>& payloads) {
  Written written;
  JournalEnd end;
  BeginJournal(end, written.bytes);
  for (const std::string& payload : payloads) {
    written.starts.push_back(written.bytes.size());
    AddJournalRecord(payload, end, written.bytes);
  }
  EXPECT_EQ(end.bytes, written.bytes.size());
  return written;
}

const std::vector<std::string> kPayloads = {"first", std::string(40, '\0'), "", "last of them"};

TEST(JournalFileTest, ReadsWhatWasWrittenAndGoesOnBehindIt) {
  const Written written = Write(kPayloads);
  std::string bytes = written.bytes;
  auto text = ReadJournal(bytes);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(text->records, ElementsAre(kPayloads[0], kPayloads[1], kPayloads[2], kPayloads[3]));
  JournalEnd end = text->end;
  AddJournalRecord("one more", end, bytes);
  text = ReadJournal(bytes);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->records.back(), "one more");
}

TEST(JournalFileTest, ACutAtAnyByteDropsTheRecordsThatItReachesAndNoOther) {
  const Written written = Write(kPayloads);
  for (size_t cut = 0; cut < written.bytes.size(); ++cut) {
    const std::string bytes = written.bytes.substr(0, cut);
    const auto text = ReadJournal(bytes);
    ASSERT_TRUE(text.ok()) << cut << ": " << text.status();
    size_t whole = 0;
    while (whole + 1 < written.starts.size() && written.starts[whole + 1] <= cut) ++whole;
    if (cut < written.starts[0]) {
      EXPECT_EQ(text->end.bytes, 0U);
    }
    ASSERT_EQ(text->records.size(), cut < written.starts[0] ? 0 : whole) << cut;
  }
}

// What a disk had not got when the power was cut.
TEST(JournalFileTest, ZerosUpToTheEndAreACutToo) {
  const Written written = Write(kPayloads);
  for (size_t cut = 0; cut < written.bytes.size(); ++cut) {
    std::string bytes = written.bytes.substr(0, cut);
    bytes.resize(written.bytes.size() + 100, '\0');
    const auto text = ReadJournal(bytes);
    ASSERT_TRUE(text.ok()) << cut << ": " << text.status();
    EXPECT_LE(text->end.bytes, cut);
  }
}

TEST(JournalFileTest, OneFlippedBitAnywhereIsFoundAndItsByteNamed) {
  const Written written = Write(kPayloads);
  for (size_t bit = 0; bit < 8 * written.bytes.size(); ++bit) {
    std::string bytes = written.bytes;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    const auto text = ReadJournal(bytes);
    ASSERT_FALSE(text.ok()) << bit;
    EXPECT_EQ(text.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(ReasonOf(text.status()), "JOURNAL_DAMAGED");
    EXPECT_THAT(std::string(text.status().message()), HasSubstr("byte "));
  }
}

TEST(JournalFileTest, ARecordThatIsLostRepeatedOrMovedIsFound) {
  const Written written = Write(kPayloads);
  const std::string& bytes = written.bytes;
  const std::vector<size_t>& at = written.starts;
  const std::string begin = bytes.substr(0, at[0]);
  const std::string first = bytes.substr(at[0], at[1] - at[0]);
  const std::string second = bytes.substr(at[1], at[2] - at[1]);
  for (const std::string& wrong : {begin + second, begin + first + first, begin + second + first}) {
    EXPECT_EQ(ReasonOf(ReadJournal(wrong).status()), "JOURNAL_DAMAGED");
  }
}

ModelConfig SmallModel() {
  ModelConfig model;
  model.vocab = 300;
  model.context = 512;
  model.heads = 2;
  model.kv_heads = 1;
  return model;
}

// One of each kind, with nothing left at its default.
std::vector<JournalRecord> OneOfEach() {
  SamplingOptions sampling = {.temperature = 0.5F,
                              .top_k = 7,
                              .top_p = 0.9F,
                              .penalty_window = 9,
                              .logit_bias = {{3, -1.5F}, {299, 2}},
                              .seed = 77};
  return {
      {.generation = 3, .what = JournalRecord::Block{{1, 2, 299}, true}},
      {.generation = 3, .what = JournalRecord::Token{17}},
      {.generation = 4, .what = JournalRecord::Draft{{4, 5}, std::nullopt}},
      {.generation = 4, .what = JournalRecord::Draft{{4, 5}, 1}},
      {.generation = 4, .what = JournalRecord::Accept{1}},
      {.generation = 5,
       .what =
           JournalRecord::Edit{{.spans = {{.start = 2, .end = 4, .tokens = {8}}, {.start = 6, .end = 6, .tokens = {9}}},
                                .mode = EditMode::kRecomputeSpan,
                                .window = 3,
                                .restore = true},
                               {16, 2}}},
      {.generation = 6, .what = JournalRecord::Evict{{.range = EvictRequest::Range{1, 2}}}},
      {.generation = 6, .what = JournalRecord::Evict{{.keep = 9, .scorer = "h2o"}}},
      {.generation = 6, .what = JournalRecord::Evict{{.older_than = 50}}},
      {.generation = 6, .what = JournalRecord::Evict{{.slots = {{.layer = 0, .head = 1, .slots = {4, 5}}}}}},
      {.generation = 8, .what = JournalRecord::AnswerBegins{{.sampling = sampling, .until = 5000000000}}},
      {.generation = 8, .what = JournalRecord::AnswerEnds{}}};
}

TEST(JournalRecordTest, EachKindReadsAsItWasWritten) {
  const ModelConfig model = SmallModel();
  for (const JournalRecord& record : OneOfEach()) {
    const std::string bytes = EncodeRecord(record, model);
    const auto read = DecodeRecord(bytes, model);
    ASSERT_TRUE(read.ok()) << record.what.index() << ": " << read.status();
    EXPECT_EQ(read->generation, record.generation);
    EXPECT_EQ(read->what.index(), record.what.index());
    EXPECT_EQ(EncodeRecord(*read, model), bytes) << "nothing of it was lost";
  }
}

TEST(JournalRecordTest, WhatIsCutOrLongerOrOutOfRangeIsRefused) {
  const ModelConfig model = SmallModel();
  for (const JournalRecord& record : OneOfEach()) {
    const std::string bytes = EncodeRecord(record, model);
    for (size_t cut = 0; cut < bytes.size(); ++cut) {
      EXPECT_EQ(ReasonOf(DecodeRecord(bytes.substr(0, cut), model).status()), "JOURNAL_DAMAGED") << record.what.index();
    }
    EXPECT_EQ(ReasonOf(DecodeRecord(bytes + "x", model).status()), "JOURNAL_DAMAGED");
  }
  const JournalRecord beyond = {.what = JournalRecord::Token{model.vocab}};
  EXPECT_EQ(ReasonOf(DecodeRecord(EncodeRecord(beyond, model), model).status()), "JOURNAL_DAMAGED");
  EXPECT_EQ(ReasonOf(DecodeRecord("\x7F", model).status()), "JOURNAL_DAMAGED");
}

}  // namespace
}  // namespace ebb
