// What a client or a load balancer can find out without knowing Ebb: health per service, reflection, and what policies
// there are.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "policies/registry.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::IsSupersetOf;

const std::vector<std::string> kServices = {"ebb.v1.SessionService", "ebb.v1.InferenceService",
                                            "ebb.v1.EvictionService", "ebb.v1.AdminService"};

class Discovery : public testing::Test {
 protected:
  TestServer server_;
  TestClient client_{server_.address()};
};

TEST_F(Discovery, EveryServiceIsServing) {
  const auto health = Health::NewStub(client_.channel());
  HealthCheckRequest request;  // of the server as a whole
  HealthCheckResponse response;
  ASSERT_TRUE(health->Check(client_.Context().get(), request, &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  for (const std::string& service : kServices) {
    request.set_service(service);
    ASSERT_TRUE(health->Check(client_.Context().get(), request, &response).ok()) << service;
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << service;
  }
  request.set_service("ebb.v1.NoSuchService");
  EXPECT_EQ(health->Check(client_.Context().get(), request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(Discovery, WhoWatchesLearnsOfADrainBeforeItEnds) {
  const auto health = Health::NewStub(client_.channel());
  HealthCheckRequest request;
  request.set_service("ebb.v1.InferenceService");
  const auto watch_context = client_.Context();
  const auto watch = health->Watch(watch_context.get(), request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);

  // A stream that nobody ends keeps the drain open until the news is here.
  const std::string session = client_.Create(SessionWith(StreamingPolicy(24))).name();
  const auto context = client_.Context();
  const auto stream = client_.inference().Generate(context.get(), GenerateText(session, "Once", 1 << 24));
  v1::GenerateResponse message;
  while (!message.has_decode()) ASSERT_TRUE(stream->Read(&message));
  std::thread drain([this] { server_.server().Drain(absl::Hours(1)); });
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  ASSERT_TRUE(stream->Read(&message)) << "the stream goes on meanwhile";
  context->TryCancel();
  watch_context->TryCancel();
  while (stream->Read(&message)) continue;
  drain.join();
}

// Reflection, spoken as any tool would. Its messages are in the program, since the server's library brings them.
class Reflection : public Discovery {
 protected:
  using Message = google::protobuf::Message;

  static std::unique_ptr<Message> NewMessage(const std::string& name) {
    const auto* const type = google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(
        "grpc.reflection.v1alpha.ServerReflection" + name);
    return std::unique_ptr<Message>(google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
  }

  // The answer to one request, in text format.
  std::unique_ptr<Message> Ask(const std::string& text) {
    const std::unique_ptr<Message> request = NewMessage("Request");
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, request.get()));
    grpc::Slice slice(request->SerializeAsString());
    grpc::GenericStub stub(client_.channel());
    grpc::CompletionQueue queue;
    const auto context = client_.Context();
    const auto call =
        stub.PrepareCall(context.get(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
    const auto done = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    EXPECT_TRUE(done());
    call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    EXPECT_TRUE(done());
    grpc::ByteBuffer bytes;
    call->Read(&bytes, nullptr);
    EXPECT_TRUE(done());
    grpc::Status status;
    call->Finish(&status, nullptr);
    EXPECT_TRUE(done());
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
    std::unique_ptr<Message> response = NewMessage("Response");
    EXPECT_TRUE(response->ParseFromArray(slice.begin(), static_cast<int>(slice.size())));
    return response;
  }

  static const Message& Field(const Message& message, const std::string& name) {
    return message.GetReflection()->GetMessage(message, message.GetDescriptor()->FindFieldByName(name));
  }
};

TEST_F(Reflection, NamesTheServices) {
  const std::unique_ptr<Message> response = Ask("list_services: ''");
  const Message& list = Field(*response, "list_services_response");
  const auto* const services = list.GetDescriptor()->FindFieldByName("service");
  std::set<std::string> names;
  for (int i = 0; i < list.GetReflection()->FieldSize(list, services); ++i) {
    const Message& service = list.GetReflection()->GetRepeatedMessage(list, services, i);
    names.insert(service.GetReflection()->GetString(service, service.GetDescriptor()->FindFieldByName("name")));
  }
  EXPECT_THAT(names, IsSupersetOf(kServices));
  EXPECT_THAT(names, IsSupersetOf({"grpc.health.v1.Health"}));
}

TEST_F(Reflection, DescribesEachServiceAsItIs) {
  for (const std::string& service : kServices) {
    const std::unique_ptr<Message> response = Ask("file_containing_symbol: '" + service + "'");
    const Message& files = Field(*response, "file_descriptor_response");
    const auto* const file = files.GetDescriptor()->FindFieldByName("file_descriptor_proto");
    const auto* const ours = google::protobuf::DescriptorPool::generated_pool()->FindFileContainingSymbol(service);
    ASSERT_NE(ours, nullptr) << service;
    bool found = false;
    for (int i = 0; i < files.GetReflection()->FieldSize(files, file); ++i) {
      google::protobuf::FileDescriptorProto described, expected;
      ASSERT_TRUE(described.ParseFromString(files.GetReflection()->GetRepeatedString(files, file, i)));
      if (described.name() != ours->name()) continue;
      found = true;
      ours->CopyTo(&expected);
      EXPECT_EQ(described.SerializeAsString(), expected.SerializeAsString());
    }
    EXPECT_TRUE(found) << service;
  }
}

// ListPolicies is the registry, word for word, and what a caller may name has a description.
class Policies : public Discovery {
 protected:
  static v1::ListPoliciesResponse List(TestClient& client) {
    v1::ListPoliciesResponse response;
    EXPECT_TRUE(client.admin().ListPolicies(client.Context().get(), {}, &response).ok());
    return response;
  }

  template <typename Description>
  static void ExpectSays(const Description& said, std::string_view name, const About& about) {
    EXPECT_EQ(said.name(), name);
    EXPECT_EQ(said.summary(), about.summary);
    EXPECT_EQ(said.when(), about.when);
    EXPECT_EQ(said.equation(), about.equation);
    EXPECT_EQ(said.origin(), about.origin);
    EXPECT_EQ(said.paper(), about.paper);
    EXPECT_EQ(said.cost(), about.cost);
    EXPECT_EQ(said.turns(), about.turns);
  }

  template <typename Descriptions>
  static void ExpectSays(const Descriptions& said, std::span<const ParameterRow> rows) {
    ASSERT_EQ(static_cast<size_t>(said.size()), rows.size());
    for (int i = 0; i < said.size(); ++i) {
      EXPECT_EQ(said[i].name(), rows[i].name);
      EXPECT_EQ(said[i].help(), rows[i].help);
      EXPECT_EQ(said[i].default_(), rows[i].preset);
      EXPECT_EQ(said[i].min(), rows[i].min);
      EXPECT_EQ(said[i].max(), rows[i].max);
      EXPECT_EQ(said[i].whole(), rows[i].whole);
      EXPECT_EQ(said[i].odd(), rows[i].odd);
      EXPECT_TRUE(std::ranges::equal(said[i].choices(), rows[i].choices));
    }
  }
};

TEST_F(Policies, ListHasEachScorerOfTheRegistry) {
  const v1::ListPoliciesResponse said = List(client_);
  const std::span<const ScorerRow> rows = ScorerRegistry();
  ASSERT_EQ(static_cast<size_t>(said.scorers_size()), rows.size());
  for (int i = 0; i < said.scorers_size(); ++i) {
    const ScorerRow& row = rows[i];
    const v1::ScorerDescription& scorer = said.scorers(i);
    SCOPED_TRACE(row.name);
    ExpectSays(scorer, row.name, row.about);
    ExpectSays(scorer.parameters(), row.parameters);
    EXPECT_EQ(scorer.evicts(), row.evicts);
    EXPECT_EQ(scorer.safe_across_turns(), row.safe_across_turns);
    EXPECT_EQ(scorer.takes_modifiers(), row.evicts && row.non_negative);
    const auto made = MakeScorer(row, ResolveParameters(row, {}).value(), BlankCalibration()).value();
    const int32_t tracks = row.reduction == Reduction::kMean ? 1 : TinyModel().heads / TinyModel().kv_heads;
    EXPECT_EQ(scorer.state_bytes_per_slot(), 4 * made->needs().state_floats * tracks);
    EXPECT_EQ(scorer.observations().empty(),
              !made->needs().observes() && !made->needs().memory && !made->needs().probes);
  }
}

// The smallest budget that it names opens a session, and the next smaller one does not; so do its defaults.
TEST_F(Policies, WhatListPromisesHolds) {
  const v1::ListPoliciesResponse said = List(client_);
  for (const v1::ScorerDescription& scorer : said.scorers()) {
    SCOPED_TRACE(scorer.name());
    v1::CreateSessionRequest request;
    *request.mutable_policy() = scorer.defaults();
    const v1::Session session = client_.Create(request);
    EXPECT_EQ(session.policy().DebugString(), scorer.defaults().DebugString());
    EXPECT_TRUE(client_.Delete(session.name()).ok());
    const auto budget = [&](uint32_t tokens) {
      v1::PolicySpec& policy = *request.mutable_policy();
      policy.clear_protect();
      policy.clear_schedule();
      policy.mutable_trigger()->set_budget(tokens);
      v1::Session opened;
      const grpc::Status status = client_.Create(request, &opened);
      if (status.ok()) {
        EXPECT_TRUE(client_.Delete(opened.name()).ok());
      }
      return status.error_code();
    };
    EXPECT_EQ(budget(scorer.budget_min()), grpc::StatusCode::OK);
    EXPECT_EQ(budget(scorer.budget_min() - 1), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(Policies, ListHasEachModifierAndAllocationThatASpecMayName) {
  const v1::ListPoliciesResponse said = List(client_);
  ASSERT_EQ(static_cast<size_t>(said.modifiers_size()), ModifierRegistry().size());
  ASSERT_EQ(said.modifiers_size(), v1::Modifier_ARRAYSIZE - 2) << "all but unspecified and none";
  for (int i = 0; i < said.modifiers_size(); ++i) {
    const ModifierRow& row = ModifierRegistry()[i];
    ExpectSays(said.modifiers(i), row.name, row.about);
    v1::Modifier modifier = v1::MODIFIER_UNSPECIFIED;
    EXPECT_TRUE(v1::Modifier_Parse("MODIFIER_" + absl::AsciiStrToUpper(std::string(row.name)), &modifier)) << row.name;
  }
  ASSERT_EQ(static_cast<size_t>(said.allocations_size()), AllocationRegistry().size());
  const auto* const arms = v1::PolicySpec::descriptor()->FindOneofByName("allocation");
  ASSERT_EQ(said.allocations_size(), arms->field_count());
  for (int i = 0; i < said.allocations_size(); ++i) {
    const AllocationRow& row = AllocationRegistry()[i];
    ExpectSays(said.allocations(i), row.name, row.about);
    ExpectSays(said.allocations(i).parameters(), row.parameters);
    const auto* const arm = v1::PolicySpec::descriptor()->FindFieldByName(std::string(row.name));
    ASSERT_NE(arm, nullptr) << row.name;
    EXPECT_EQ(arm->containing_oneof(), arms);
  }
}

}  // namespace
}  // namespace ebb
