// Plans for a foreign cache: the same victims as our own selection finds, whole batches in one message, every refusal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "policies/caote.h"
#include "policies/hash_random.h"
#include "policies/select.h"
#include "tests/support/test_server.h"
#include "tests/support/value_memory.h"

namespace ebb {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using Code = grpc::StatusCode;

template <typename Element>
std::string Packed(const std::vector<Element>& elements) {
  return {reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element)};
}

grpc::Status Plan(TestClient& client, const v1::PlanEvictionRequest& request, v1::PlanEvictionResponse* response) {
  return client.eviction().PlanEviction(client.Context().get(), request, response);
}

// Fails the test if it is refused.
v1::PlanEvictionResponse Planned(TestClient& client, const v1::PlanEvictionRequest& request) {
  v1::PlanEvictionResponse response;
  const grpc::Status status = Plan(client, request, &response);
  EXPECT_TRUE(status.ok()) << client::Describe(status);
  EXPECT_EQ(response.rows_size(), request.rows_size());
  return response;
}

std::vector<int32_t> VictimsOf(const v1::PlannedRow& row) { return {row.victims().begin(), row.victims().end()}; }

// A row of our own: what is sent, and what the selection is asked directly.
struct RandomRow {
  RandomRow(uint64_t seed, int32_t slots, int32_t head_dim) : d(head_dim) {
    const auto uniform = [&](uint64_t purpose, int32_t i) { return HashUniform(seed, purpose, i); };
    for (int32_t i = 0; i < slots; ++i) {
      attention.push_back(static_cast<float>(uniform(1, i)));
      if (uniform(2, i) < 0.2) attention.back() = 0.25F;  // ties
      // Where in a ring each token came to lie, with holes.
      token.push_back(uniform(3, i) < 0.1 ? -1 : (i + slots / 3) % slots * 3);
      live += token.back() >= 0 ? 1 : 0;
      for (int32_t c = 0; c < d; ++c) values.push_back(static_cast<float>(uniform(4, i * d + c)) - 0.5F);
    }
  }

  LaneView Lane(const LaneMemory& memory, int32_t sinks, int32_t recent) const {
    return {.token = token, .live = live, .sinks = sinks, .recent = recent, .memory = &memory};
  }

  int32_t d = 0;
  int32_t live = 0;
  std::vector<float> attention = {}, values = {};
  std::vector<int32_t> token = {};
};

class PlanEvictionTest : public testing::Test {
 protected:
  TestServer server_{[](ServerOptions& options) { options.plan_bytes_max = 36 << 20; }};
  TestClient client_{server_.address()};
};

TEST_F(PlanEvictionTest, TheSmallestScoresLeaveAndNotANumberGoesFirst) {
  v1::PlanEvictionRequest request;
  request.set_evict(3);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  request.add_rows()->set_scores(Packed<float>({5, 1, nan, -inf, 4, inf, 0}));
  request.add_rows()->set_scores(Packed<float>({2, 2, 2, 2, -0.0F, 0.0F}));
  // A ring whose oldest token is in slot 2; slot 4 is free.
  request.add_rows()->set_scores(Packed<float>({2, 2, 2, 2, 1, 2}));
  request.mutable_rows(2)->set_tokens(Packed<int32_t>({14, 15, 10, 11, -1, 13}));
  v1::PlanRow& own = *request.add_rows();
  own.set_scores(Packed<float>({3, 1, 2}));
  own.set_keep(2);
  const auto response = Planned(client_, request);
  EXPECT_THAT(response.rows(0).victims(), ElementsAre(2, 3, 6));
  EXPECT_THAT(response.rows(1).victims(), ElementsAre(0, 4, 5));
  EXPECT_THAT(response.rows(2).victims(), ElementsAre(2, 3, 5));
  EXPECT_THAT(response.rows(3).victims(), ElementsAre(1));
  EXPECT_FALSE(response.rows(0).has_attention_mass());
}

TEST_F(PlanEvictionTest, RandomRowsLoseWhatSelectVictimsSays) {
  for (const v1::Modifier modifier : {v1::MODIFIER_NONE, v1::MODIFIER_CAOTE, v1::MODIFIER_FAST_CAOTE}) {
    v1::PlanEvictionRequest request;
    request.set_keep(40);
    request.set_sinks(4);
    request.set_recent(9);
    request.set_modifier(modifier);
    std::vector<RandomRow> rows;
    for (int32_t i = 0; i < 32; ++i) {
      const RandomRow& row = rows.emplace_back(1000 + i, 50 + 13 * i, 8);
      v1::PlanRow& proto = *request.add_rows();
      proto.set_attention(Packed(row.attention));
      proto.set_values(Packed(row.values));
      proto.set_tokens(Packed(row.token));
    }
    const auto response = Planned(client_, request);
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "row " << i << ", modifier " << modifier);
      const RandomRow& row = rows[i];
      const ValueMemory memory(row.d, row.values);
      const LaneView lane = row.Lane(memory, 4, 9);
      std::vector<float> keep = row.attention;
      CaoteScratch caote;
      if (modifier != v1::MODIFIER_NONE) {
        Caote(lane, modifier == v1::MODIFIER_CAOTE ? CaoteForm::kExact : CaoteForm::kFast, caote, keep);
      }
      SelectScratch select;
      std::vector<int32_t> victims;
      ASSERT_TRUE(SelectVictims(lane, keep, std::max(row.live - 40, 0), select, victims).ok());
      const v1::PlannedRow& planned = response.rows(static_cast<int>(i));
      EXPECT_THAT(VictimsOf(planned), ElementsAreArray(victims));

      // The loss by its definition, in float64: mass, and how far the output moves.
      double total = 0;
      double gone = 0;
      std::vector<double> before(row.d), after(row.d);
      for (size_t s = 0; s < row.token.size(); ++s) {
        if (row.token[s] < 0) continue;
        const bool leaves = std::ranges::binary_search(victims, static_cast<int32_t>(s));
        total += row.attention[s];
        gone += leaves ? row.attention[s] : 0.0F;
        for (int32_t c = 0; c < row.d; ++c) {
          const double part = double{row.attention[s]} * row.values[s * row.d + c];
          before[c] += part;
          after[c] += leaves ? 0 : part;
        }
      }
      double moved = 0;
      double norm = 0;
      for (int32_t c = 0; c < row.d; ++c) {
        norm += before[c] / total * before[c] / total;
        moved += std::pow(after[c] / (total - gone) - before[c] / total, 2);
      }
      // The code sums in float32: rounding of some hundred terms of about 0.5.
      EXPECT_THAT(planned.attention_mass(), DoubleNear(gone / total, 1e-6));
      EXPECT_THAT(planned.output_error(), DoubleNear(std::sqrt(moved), 1e-5));
      EXPECT_THAT(planned.output_norm(), DoubleNear(std::sqrt(norm), 1e-5));
    }
  }
}

TEST_F(PlanEvictionTest, ProtectedSlotsStayAndCountAmongSinksAndRecent) {
  v1::PlanEvictionRequest request;
  request.set_sinks(2);
  request.set_recent(2);
  // Slots 0 and 1 are sinks, 6 and 7 recent, and 0, 3 and 7 protected: 2, 4 and 5 may leave.
  v1::PlanRow& row = *request.add_rows();
  row.set_scores(Packed<float>({0, 0, 9, 0, 9, 9, 0, 0}));
  for (const auto& [start, end] : {std::pair(0, 1), std::pair(3, 4), std::pair(7, 8), std::pair(3, 4)}) {
    v1::SlotRange& range = *row.add_protected_slots();
    range.set_start(start);
    range.set_end(end);
  }
  row.set_evict(3);
  EXPECT_THAT(Planned(client_, request).rows(0).victims(), ElementsAre(2, 4, 5));

  row.set_evict(4);
  v1::PlanEvictionResponse response;
  const grpc::Status status = Plan(client_, request, &response);
  EXPECT_EQ(client::ReadDetails(status).reason, "NOT_ENOUGH_CANDIDATES");
  EXPECT_EQ(client::ReadDetails(status).field, "rows[0].evict");
  EXPECT_EQ(client::ReadDetails(status).metadata.at("candidates"), "3");
}

TEST_F(PlanEvictionTest, WhereNothingIsToLeaveNothingDoes) {
  v1::PlanEvictionRequest request;
  request.set_keep(4);
  v1::PlanRow& row = *request.add_rows();
  row.set_attention(Packed<float>({0.5, 0.25, 0.25}));
  row.set_values(Packed<float>({3, 4, 3, 4, 3, 4}));
  const v1::PlannedRow planned = Planned(client_, request).rows(0);
  EXPECT_EQ(planned.victims_size(), 0);
  EXPECT_EQ(planned.attention_mass(), 0);
  EXPECT_EQ(planned.output_error(), 0);
  EXPECT_THAT(planned.output_norm(), DoubleNear(5, 1e-6));
}

TEST_F(PlanEvictionTest, AttentionAloneSaysWhichShareOfItLeaves) {
  v1::PlanEvictionRequest request;
  request.set_evict(2);
  request.add_rows()->set_attention(Packed<float>({0.5, 0.125, 0.25, 0.125}));
  const v1::PlannedRow planned = Planned(client_, request).rows(0);
  EXPECT_THAT(planned.victims(), ElementsAre(1, 3));
  EXPECT_EQ(planned.attention_mass(), 0.25);
  EXPECT_FALSE(planned.has_output_error());
  EXPECT_FALSE(planned.has_output_norm());
}

v1::PlanEvictionRequest Batch(int32_t rows, int32_t slots) {
  v1::PlanEvictionRequest request;
  std::vector<float> scores(slots);
  for (int32_t i = 0; i < rows; ++i) {
    for (int32_t s = 0; s < slots; ++s) scores[s] = static_cast<float>(HashUniform(7, i, s));
    request.add_rows()->set_scores(Packed(scores));
  }
  return request;
}

TEST_F(PlanEvictionTest, TakesAndAnswersABatchOf256RowsOf32KScoresInOneMessage) {
  constexpr int32_t kSlots = 32 << 10;
  v1::PlanEvictionRequest request = Batch(256, kSlots);
  request.set_keep(1024);  // so that the answer, too, is far above what a client takes by default
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  TestClient client(server_.address(), {}, arguments);
  const auto response = Planned(client, request);
  SelectScratch select;
  std::vector<int32_t> token(kSlots);
  std::iota(token.begin(), token.end(), 0);
  for (int i = 0; i < request.rows_size(); ++i) {
    std::vector<float> scores(kSlots);
    std::memcpy(scores.data(), request.rows(i).scores().data(), sizeof(float) * kSlots);
    std::vector<int32_t> victims;
    ASSERT_TRUE(SelectVictims({.token = token, .live = kSlots}, scores, kSlots - 1024, select, victims).ok());
    ASSERT_EQ(VictimsOf(response.rows(i)), victims) << "row " << i;
  }
}

TEST_F(PlanEvictionTest, StreamsGoOnWhileManyPlansWait) {
  const std::string session = client_.Create(SessionWith(StreamingPolicy(24))).name();
  ASSERT_TRUE(client_.Prefill(PrefillText(session, "Once upon a time")).ok());
  v1::PlanEvictionRequest request = Batch(64, 8 << 10);
  request.set_evict(1);
  std::vector<std::future<grpc::Status>> plans;
  for (int i = 0; i < 12; ++i) {
    plans.push_back(std::async(std::launch::async, [&] {
      v1::PlanEvictionResponse response;
      return Plan(client_, request, &response);
    }));
  }
  EXPECT_EQ(client_.Decode(DecodeTokens(session, 50)).tokens.size(), 50U);
  for (auto& plan : plans) {  // each is answered or told to come again
    const grpc::Status status = plan.get();
    if (status.ok()) continue;
    EXPECT_EQ(client::ReadDetails(status).reason, "QUEUE_FULL") << client::Describe(status);
    EXPECT_TRUE(client::ReadDetails(status).retry.has_value());
  }
}

TEST_F(PlanEvictionTest, OtherRequestsStayAsSmallAsBefore) {
  const std::string session = client_.Create(SessionWith(StreamingPolicy(24))).name();
  const grpc::Status prefill = client_.Prefill(PrefillText(session, std::string(5 << 20, 'x')));
  EXPECT_EQ(prefill.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_EQ(client::ReadDetails(prefill).reason, "REQUEST_TOO_LARGE");
  EXPECT_EQ(client_.Get(session).tokens(), 0U);

  v1::SetPolicyRequest change;
  *change.mutable_policy() = StreamingPolicy(30);
  change.GetReflection()->MutableUnknownFields(&change)->AddLengthDelimited(9999, std::string(5 << 20, 'x'));
  for (const bool all : {false, true}) {
    all ? change.set_all_sessions(true) : change.set_session(session);
    v1::SetPolicyResponse changed;
    const grpc::Status status = client_.eviction().SetPolicy(client_.Context().get(), change, &changed);
    EXPECT_EQ(client::ReadDetails(status).reason, "REQUEST_TOO_LARGE");
  }
  EXPECT_EQ(client_.Get(session).policy().trigger().budget(), 24U);

  v1::PlanEvictionRequest too_large;
  too_large.add_rows()->set_scores(std::string(40 << 20, '\0'));
  v1::PlanEvictionResponse response;
  EXPECT_EQ(Plan(client_, too_large, &response).error_code(), Code::RESOURCE_EXHAUSTED);
}

// One change to a request that is taken, and the answer to it.
struct Mistake {
  std::function<void(v1::PlanEvictionRequest&)> make = {};
  std::string reason = {};
  std::string field = {};
};

TEST_F(PlanEvictionTest, EveryMistakeIsRefusedByNameAndPlace) {
  using Request = v1::PlanEvictionRequest;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  v1::PlanEvictionRequest good;
  good.set_evict(1);
  good.set_modifier(v1::MODIFIER_CAOTE);
  for (int i = 0; i < 2; ++i) {
    v1::PlanRow& row = *good.add_rows();
    row.set_scores(Packed<float>({1, 2, 3}));
    row.set_attention(Packed<float>({0.5, 0.25, 0.25}));
    row.set_values(Packed<float>({1, 2, 3, 4, nan, 6}));  // the last slot is free
    row.set_tokens(Packed<int32_t>({7, 5, -1}));
  }
  const auto range = [](uint32_t start, uint32_t end) {
    return [=](Request& r) {
      r.mutable_rows(1)->add_protected_slots()->set_start(start);
      r.mutable_rows(1)->mutable_protected_slots(0)->set_end(end);
    };
  };
  const std::vector<Mistake> mistakes = {
      {[](Request& r) { r.clear_rows(); }, "MISSING", "rows"},
      {[](Request& r) {
         for (int i = 0; i < 1 << 16; ++i) *r.add_rows() = r.rows(0);
       },
       "TOO_MANY", "rows"},
      {[](Request& r) { r.clear_evict(); }, "MISSING", "keep"},
      {[](Request& r) { r.set_modifier(static_cast<v1::Modifier>(9)); }, "UNKNOWN_ENUM_VALUE", "modifier"},
      {[](Request& r) {
         r.mutable_rows(1)->clear_scores();
         r.mutable_rows(1)->clear_attention();
       },
       "MISSING", "rows[1].scores"},
      {[](Request& r) { r.mutable_rows(1)->mutable_scores()->pop_back(); }, "WRONG_LENGTH", "rows[1].scores"},
      {[](Request& r) {
         r.mutable_rows(1)->set_attention(Packed<float>({1, 2}));
       },
       "WRONG_LENGTH", "rows[1].attention"},
      {[](Request& r) {
         r.mutable_rows(1)->set_values(Packed<float>({1, 2, 3, 4}));
       },
       "WRONG_LENGTH", "rows[1].values"},
      {[](Request& r) { r.mutable_rows(1)->clear_values(); }, "MISSING", "rows[1].values"},
      {[](Request& r) { r.mutable_rows(1)->set_tokens(Packed<int32_t>({1})); }, "WRONG_LENGTH", "rows[1].tokens"},
      {[](Request& r) {
         r.mutable_rows(1)->set_tokens(Packed<int32_t>({1, -2, 3}));
       },
       "OUT_OF_RANGE", "rows[1].tokens[1]"},
      {[](Request& r) {
         r.mutable_rows(1)->set_tokens(Packed<int32_t>({1, 2, 1}));
       },
       "TOKEN_REPEATED", "rows[1].tokens"},
      {[](Request& r) {
         r.mutable_rows(1)->set_tokens(Packed<int32_t>({2147483647, 0, 2147483647}));
       },
       "TOKEN_REPEATED", "rows[1].tokens"},
      {[&](Request& r) {
         r.mutable_rows(1)->set_scores(Packed<float>({1, nan, 3}));
       },
       "OUT_OF_RANGE", "rows[1].scores[1]"},
      {[&](Request& r) {
         r.mutable_rows(1)->set_attention(Packed<float>({1, 0, inf}));
       },
       "OUT_OF_RANGE", "rows[1].attention[2]"},
      {[](Request& r) {
         r.mutable_rows(1)->set_attention(Packed<float>({-1, 0, 1}));
       },
       "OUT_OF_RANGE", "rows[1].attention[0]"},
      {[&](Request& r) {
         r.mutable_rows(1)->set_values(Packed<float>({1, 2, 3, inf, 5, 6}));
       },
       "OUT_OF_RANGE", "rows[1].values[3]"},
      {[](Request& r) {
         r.clear_modifier();
         r.mutable_rows(1)->Clear();
         r.mutable_rows(1)->set_scores(std::string(((1 << 20) + 1) * sizeof(float), '\0'));
       },
       "TOO_LONG", "rows[1].scores"},
      {range(1, 1), "OUT_OF_RANGE", "rows[1].protected_slots[0]"},
      {range(0, 4), "OUT_OF_RANGE", "rows[1].protected_slots[0]"},
      {[](Request& r) { r.mutable_rows(1)->set_evict(3); }, "NOT_ENOUGH_CANDIDATES", "rows[1].evict"},
      {[](Request& r) { r.set_sinks(2); }, "NOT_ENOUGH_CANDIDATES", "rows[0]"},
      {[](Request& r) { r.set_recent(0xFFFFFFFF); }, "NOT_ENOUGH_CANDIDATES", "rows[0]"},
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "mistake " << i << ", " << mistakes[i].reason);
    v1::PlanEvictionRequest request = good;
    mistakes[i].make(request);
    v1::PlanEvictionResponse response;
    const grpc::Status status = Plan(client_, request, &response);
    EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT) << client::Describe(status);
    EXPECT_EQ(client::ReadDetails(status).reason, mistakes[i].reason) << client::Describe(status);
    EXPECT_EQ(client::ReadDetails(status).field, mistakes[i].field) << client::Describe(status);
  }
  Planned(client_, good);
}

}  // namespace
}  // namespace ebb
