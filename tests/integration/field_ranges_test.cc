// What the comments of the proto files promise of a field holds at every door that the field comes through: the ends of
// its range are taken, and the next value beyond is refused by the field's name. What is tried follows from the
// descriptors and their comments, so that a field without a range is found, too.

#include <gmock/gmock.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/support/field_promises.h"
#include "tests/support/good_requests.h"
#include "tests/support/request_mutations.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;
using ::testing::Gt;

// Ends that depend, and what they are here: of the tiny model, of RequestCaller's session, or of the requests below.
const EndWords kEnds = {{"layers", 2},
                        {"KV heads", 2},
                        {"vocabulary size", 261},
                        {"the server's step token budget", 512},
                        {"the session's block_size", 16},
                        {"session tokens", 64},
                        {"pending", 2},
                        {"start", 1},
                        {"budget", 24},
                        {"sinks + recent + 1", 9}};

// What any policy is tried with: every scorer, allocation and schedule that a field needs may take its place in it.
constexpr char kPolicy[] = "h2o {} trigger { budget: 24 } protect { sinks: 4 recent: 4 }";

// What the message of a field must have beside it.
const std::map<std::string, std::string> kBeside = {
    {"ebb.v1.Schedule.every_n", "when: EVERY_N"},
    {"ebb.v1.Schedule.grow_max", "when: ONCE_AFTER_PROMPT then: THEN_GROW"},
    {"ebb.v1.EditRequest.window", "mode: EDIT_MODE_RECOMPUTE_SPAN"},
    {"ebb.v1.EditSpan.start", "end: 64"},
    {"ebb.v1.DraftDistribution.tokens", "probabilities: 1"},
    {"ebb.v1.DraftDistribution.probabilities", "tokens: 3"},
};

// Numbers without a range, by full name or, of fields that many requests have, by name; and why.
const std::map<std::string, std::string> kAnyNumber = {
    {"expected_generation", "what is not the session's is GENERATION_MISMATCH"},
    {"ebb.v1.Sampling.seed", "any is one"},
    {"ebb.v1.Sampling.top_k", "beyond the vocabulary it keeps all"},
    {"ebb.v1.Sampling.LogitBiasEntry.key", "no field of its own: TOKEN_OUT_OF_RANGE names the map"},
    {"ebb.v1.TokenRange.start", "indices beyond the log are nobody's; RANGE_EMPTY unless it is below end"},
    {"ebb.v1.TokenRange.end", "as start"},
    {"ebb.v1.EvictRequest.older_than", "nobody is older than the log is long"},
    {"ebb.v1.LaneSlots.slots", "what holds no token is SLOT_NOT_LIVE"},
    {"ebb.v1.PlanEvictionRequest.keep", "a row with no more loses none"},
    {"ebb.v1.PlanEvictionRequest.evict", "more than may leave are NOT_ENOUGH_CANDIDATES of a row"},
    {"ebb.v1.PlanEvictionRequest.sinks", "as many as there are stay"},
    {"ebb.v1.PlanEvictionRequest.recent", "as many as there are stay"},
    {"ebb.v1.PlanRow.keep", "as the request's"},
    {"ebb.v1.PlanRow.evict", "as the request's"},
    {"ebb.v1.SlotRange.start", "OUT_OF_RANGE of the pair, unless start < end <= n"},
    {"ebb.v1.SlotRange.end", "as start"},
    {"ebb.v1.TenantUse.used", "output only"},
};

constexpr char kAccept[] = "InferenceService/Accept";  // needs a draft that waits

// Fields that a method has and never takes: of Tokenize, what are tokens already.
const std::set<std::string> kNotTaken = {"InferenceService/Tokenize prompt.tokens.ids"};

// What an end is refused for that is not its range: by the field or the method, and why.
struct Elsewhere {
  std::string whose = {};
  std::string reason = {};
  std::string why = {};
};
const std::vector<Elsewhere> kElsewhere = {
    {"AdminService/StartExperiment", "EXPERIMENT_EXISTS", "the good request's runs, and fields are looked at before"},
    {"ebb.v1.ExperimentSpec.name", "EXPERIMENT_OVERLAPS", "and for the same tenant"},
    {"ebb.v1.ExperimentSpec.arms", "ARMS_ALIKE", "copies of one arm"},
    {"ebb.v1.EditRequest.spans", "SPANS_OVERLAP", "copies of one span"},
    {"ebb.v1.VerifyRequest.draft_tokens", "DRAFT_TOO_LONG", "the session's block_size is less than 64"},
    {"ebb.v1.DraftDistribution.tokens", "DRAFT_PROBABILITIES", "the draft's token is another"},
    {"ebb.v1.DraftDistribution.probabilities", "DRAFT_PROBABILITIES", "0 is too few for the draft's only token"},
    {"ebb.v1.Sampling.logit_bias", "TOKEN_OUT_OF_RANGE", "the vocabulary has fewer tokens than 1024"},
    {"ebb.v1.KeepTokens.count", "NOT_ENOUGH_CANDIDATES", "4 sinks stay beside one token"},
    {"ebb.v1.LaneSlots.layer", "LANES_MISSING", "every lane must be named"},
    {"ebb.v1.LaneSlots.head", "LANES_MISSING", "every lane must be named"},
    {"ebb.v1.Trigger.budget", "SESSION_TOO_LARGE", "the server's memory"},
    {"ebb.v1.Trigger.overflow", "SESSION_TOO_LARGE", "the server's memory"},
    {"ebb.v1.Schedule.every_n", "SESSION_TOO_LARGE", "the server's memory"},
    {"ebb.v1.Schedule.grow_max", "SESSION_TOO_LARGE", "the server's memory"},
    {"ebb.v1.Trigger.budget_ratio", "BUDGET_TOO_SMALL", "of the prompt, once that has ended"},
    {"ebb.v1.PyramidAllocation.beta", "BUDGET_TOO_SMALL", "it needs a budget of as many"},
    {"ebb.v1.Protection.sinks", "BUDGET_TOO_LARGE", "it needs a budget above the largest"},
    {"ebb.v1.Protection.recent", "BUDGET_TOO_LARGE", "it needs a budget above the largest"},
    {"ebb.v1.DuoAllocation.threshold", "HEAD_GATES_MISSING", "the tiny model has none"},
    {"ebb.v1.DuoAllocation.sinks", "HEAD_GATES_MISSING", "the tiny model has none"},
    {"ebb.v1.DuoAllocation.recent", "HEAD_GATES_MISSING", "the tiny model has none"},
};

// "experiment.arms[2].name" without the index, which the place of a field does not have.
std::string WithoutIndices(const std::string& path) {
  static const std::regex kIndex("\\[[0-9]+\\]");
  return std::regex_replace(path, kIndex, "");
}

class FieldRanges : public testing::Test {
 protected:
  void ExpectEndsAreSo() {
    const v1::ModelStatus model = caller_.client().Status().model();
    const v1::Session session = caller_.client().Get("sessions/tale");
    EXPECT_EQ(kEnds.at("layers"), model.layers());
    EXPECT_EQ(kEnds.at("KV heads"), model.kv_heads());
    EXPECT_EQ(kEnds.at("vocabulary size"), model.vocabulary());
    EXPECT_EQ(kEnds.at("the session's block_size"), session.block_size());
    EXPECT_EQ(kEnds.at("session tokens"), session.tokens());
  }

  void ExpectGoodIsTaken(const Method& method) {
    if (ShortName(method) == kAccept) LeaveDraft();
    const grpc::Status status = caller_.Call(method, GoodRequest(method)->SerializeAsString());
    EXPECT_TRUE(IsTaken(status)) << method.name << client::Describe(status);
    caller_.Restore(method);
  }

  void Try(const Method& method, const Place& place, const FieldTrial& trial) {
    SCOPED_TRACE(absl::StrFormat("%s %s: %s", method.name, place.path, trial.value));
    const std::unique_ptr<Message> request = RequestFor(method, place);
    trial.set(Locate(*request, place.parents));
    if (ShortName(method) == kAccept) LeaveDraft();
    const std::string bytes = request->SerializeAsString();
    const grpc::Status status = trial.beyond ? caller_.CallToHear(method, bytes) : caller_.Call(method, bytes);
    const client::ErrorDetails details = client::ReadDetails(status);
    const bool taken = IsTaken(status);
    if (trial.beyond) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << client::Describe(status);
      EXPECT_EQ(WithoutIndices(details.field), NamedFor(place)) << client::Describe(status);
    } else if (!taken) {
      EXPECT_TRUE(MayEndElsewhere(method, place, details.reason)) << client::Describe(status);
    }
    if (taken || ShortName(method) == kAccept) caller_.Restore(method);
  }

  void ExpectEveryRowNeeded(const std::set<std::string>& fields) const {
    for (const auto& [field, _] : kBeside) EXPECT_TRUE(fields.contains(field)) << field << " is no field";
    for (size_t i = 0; i < kElsewhere.size(); ++i) {
      EXPECT_TRUE(met_.contains(i)) << kElsewhere[i].whose << " is never refused for " << kElsewhere[i].reason << ": "
                                    << kElsewhere[i].why;
    }
  }

 private:
  static bool IsTaken(const grpc::Status& status) {
    const bool by_us = status.error_code() == grpc::StatusCode::CANCELLED && client::ReadDetails(status).reason.empty();
    return status.ok() || by_us;
  }

  // A good request, with room for the place's field.
  static std::unique_ptr<Message> RequestFor(const Method& method, const Place& place) {
    std::unique_ptr<Message> request = GoodRequest(method);
    const auto policy = std::ranges::find(place.parents, v1::PolicySpec::descriptor(), &FieldDescriptor::message_type);
    if (policy != place.parents.end()) {
      Message& spec = Locate(*request, {place.parents.begin(), policy + 1});
      EXPECT_TRUE(TextFormat::ParseFromString(kPolicy, &spec));
    }
    if (const auto beside = kBeside.find(place.field->full_name()); beside != kBeside.end()) {
      EXPECT_TRUE(TextFormat::MergeFromString(beside->second, &Locate(*request, place.parents)));
    }
    return request;
  }

  // How a refusal calls the field; of a map's entry, the map.
  static std::string NamedFor(const Place& place) {
    const bool is_entry = place.field->containing_type()->options().map_entry();
    return is_entry ? place.path.substr(0, place.path.rfind('.')) : place.path;
  }

  bool MayEndElsewhere(const Method& method, const Place& place, const std::string& reason) {
    bool may = false;
    for (size_t i = 0; i < kElsewhere.size(); ++i) {
      const Elsewhere& row = kElsewhere[i];
      if (row.reason != reason || (row.whose != place.field->full_name() && row.whose != ShortName(method))) continue;
      met_.insert(i);
      may = true;
    }
    return may;
  }

  void LeaveDraft() {
    v1::VerifyRequest request;
    request.set_session("sessions/tale");
    request.set_mode(v1::VERIFY_MODE_MANUAL);
    request.add_draft_tokens(3);
    request.add_draft_tokens(4);
    v1::VerifyResponse response;
    EXPECT_TRUE(caller_.client().inference().Verify(caller_.client().Context().get(), request, &response).ok());
    EXPECT_EQ(response.pending(), kEnds.at("pending"));
  }

  const google::protobuf::LogSilencer quiet_;  // about texts that are no UTF-8
  const TemporaryFolder store_;
  TestServer server_{[this](ServerOptions& options) {
    options.store_dir = store_.path();
    options.engine.arena_bytes = 16 << 20;
  }};
  RequestCaller caller_{server_.address(), "ranges"};
  std::set<size_t> met_ = {};  // rows of kElsewhere
};

TEST_F(FieldRanges, AreTakenToTheirEndsAndRefusedBeyond) {
  const ProtoComments comments(EBB_PROTO_COMMENTS);
  ExpectEndsAreSo();
  std::set<std::string> fields, any;
  int tried = 0;
  for (const Method& method : AllMethods()) {
    bool begun = false;
    for (const Place& place : PlacesIn(*method.descriptor->input_type())) {
      const FieldDescriptor& field = *place.field;
      if (field.containing_type() == google::protobuf::Duration::descriptor()) continue;
      fields.insert(field.full_name());
      const std::string comment = comments.Of(field);
      if (IsNumber(field)) {
        const std::string& row = kAnyNumber.contains(field.name()) ? field.name() : field.full_name();
        const bool listed = kAnyNumber.contains(row);
        EXPECT_NE(HasRange(comment), listed)
            << field.full_name() << (listed ? " has a range" : " has no range: give its comment one, or a row here");
        if (listed) any.insert(row);
      }
      if (kNotTaken.contains(ShortName(method) + " " + place.path)) continue;
      for (const FieldTrial& trial : FieldTrialsOf(field, comment, kEnds)) {
        if (!std::exchange(begun, true)) ExpectGoodIsTaken(method);
        Try(method, place, trial);
        ++tried;
      }
    }
  }
  EXPECT_THAT(tried, Gt(1000));
  for (const auto& [row, _] : kAnyNumber) EXPECT_TRUE(any.contains(row)) << row << " is no number of a request";
  ExpectEveryRowNeeded(fields);
}

}  // namespace
}  // namespace ebb
