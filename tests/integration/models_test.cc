// Several models in one server: each has its sessions, its pool and its worker; they come and go while others stream.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "client/client.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using client::ReadDetails;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Code = grpc::StatusCode;

constexpr absl::Duration kHours = absl::Hours(10);

class ModelsTest : public testing::Test {
 protected:
  static ModelSpec Spec(const TinyModelFile& file) {
    return {.path = file.path(), .threads = 1, .arena_bytes = 16 << 20};
  }

  // `models` are beside the one of seed 1.
  void Start(const ModelTable& models, const std::function<void(ServerOptions&)>& change = {}) {
    server_ = std::make_unique<TestServer>([&](ServerOptions& options) {
      options.model_name = "main";
      options.http_listen = {.host = "127.0.0.1", .port = 0};
      options.models = models;
      if (change) change(options);
    });
    client_ = std::make_unique<TestClient>(server_->address());
  }

  std::map<std::string, v1::Model> List() const {
    v1::ListModelsResponse response;
    EXPECT_TRUE(client_->admin().ListModels(client_->Context().get(), {}, &response).ok());
    std::map<std::string, v1::Model> models;
    for (const v1::Model& model : response.models()) models[model.name()] = model;
    return models;
  }
  v1::ModelState StateOf(const std::string& model) const { return List()[model].state(); }
  // Until the test's own time is up, or it has failed.
  void WaitFor(const std::string& model, v1::ModelState state) const {
    while (StateOf(model) != state) {
      const v1::Model now = List()[model];
      ASSERT_TRUE(now.state() == state || now.state() != v1::MODEL_STATE_FAILED) << now.problem();
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  // Likewise: a state is in the list just before it is there.
  bool HealthBecomes(const std::string& service, const std::string& status) const {
    while (Health(service) != status) absl::SleepFor(absl::Milliseconds(1));
    return true;
  }
  std::string Health(const std::string& service) const {
    client::Client client({.address = server_->address()});
    std::string status;
    const grpc::Status checked = client.CheckHealth(service, &status);
    return checked.ok() ? status : checked.error_message();
  }

  static v1::CreateSessionRequest SessionOf(const std::string& model, const std::string& id = {}) {
    v1::CreateSessionRequest request = SessionWith(StreamingPolicy(24));
    request.set_model(model);
    request.set_session_id(id);
    return request;
  }
  std::string ReasonOf(const v1::CreateSessionRequest& request) const {
    v1::Session session;
    return ReadDetails(client_->Create(request, &session)).reason;
  }
  // The likeliest: a branch has a seed of its own.
  static v1::DecodeRequest Greedy(const std::string& session, uint32_t count) {
    v1::DecodeRequest request = DecodeTokens(session, count);
    request.mutable_sampling()->set_temperature(0);
    return request;
  }
  std::vector<uint32_t> Tokens(const std::string& session, uint32_t count) const {
    const Answer answer = client_->Decode(Greedy(session, count));
    EXPECT_TRUE(answer.status.ok()) << client::Describe(answer.status);
    return answer.tokens;
  }
  std::string Prefilled(const std::string& model, const std::string& id = {}) const {
    const std::string name = client_->Create(SessionOf(model, id)).name();
    EXPECT_TRUE(client_->Prefill(PrefillText(name, kStormyNight)).ok());
    return name;
  }

  const TinyModelFile other_{{.seed = 2}};
  const TinyModelFile third_{{.layers = 3, .seed = 3}};
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<TestClient> client_;
};

// An answer that goes on until it is cancelled.
class EndlessStream {
 public:
  EndlessStream(TestClient& client, const std::string& session) : context_(client.Context()) {
    stream_ = client.inference().Decode(context_.get(), DecodeTokens(session, kEndless));
  }
  bool Read() { return stream_->Read(&message_); }
  grpc::Status Cancel() {
    context_->TryCancel();
    return End();
  }
  grpc::Status End() {
    while (Read()) continue;
    return stream_->Finish();
  }

 private:
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<v1::DecodeResponse>> stream_;
  v1::DecodeResponse message_;
};

// A session is answered as if its model were alone in the world.
TEST_F(ModelsTest, EachSessionIsOfItsModel) {
  Start({{"other", Spec(other_)}});
  WaitFor("other", v1::MODEL_STATE_SERVING);
  const std::string of_main = Prefilled("");
  const std::string of_other = Prefilled("other", "b");
  EXPECT_EQ(client_->Get(of_main).model(), "main");
  EXPECT_EQ(client_->Get(of_other).model(), "other");
  const std::vector<uint32_t> main_tokens = Tokens(of_main, 20);
  const std::vector<uint32_t> other_tokens = Tokens(of_other, 20);
  EXPECT_NE(main_tokens, other_tokens);

  TestServer alone({}, {.seed = 2});
  TestClient lone(alone.address());
  const std::string name = lone.Create(SessionOf("", "b")).name();
  ASSERT_TRUE(lone.Prefill(PrefillText(name, kStormyNight)).ok());
  EXPECT_EQ(lone.Decode(Greedy(name, 20)).tokens, other_tokens);
}

TEST_F(ModelsTest, NamesAreOfAllModels) {
  Start({{"other", Spec(other_)}});
  WaitFor("other", v1::MODEL_STATE_SERVING);
  for (const char* const id : {"a", "c"}) client_->Create(SessionOf("main", id));
  for (const char* const id : {"b", "d"}) client_->Create(SessionOf("other", id));
  EXPECT_EQ(ReasonOf(SessionOf("other", "a")), "NAME_TAKEN");
  EXPECT_EQ(ReasonOf(SessionOf("main", "b")), "NAME_TAKEN");
  std::vector<std::string> names;
  v1::ListSessionsRequest request;
  request.set_page_size(3);
  for (;;) {
    v1::ListSessionsResponse page;
    ASSERT_TRUE(client_->sessions().ListSessions(client_->Context().get(), request, &page).ok());
    for (const v1::Session& session : page.sessions()) names.push_back(session.name() + " " + session.model());
    if (page.next_page_token().empty()) break;
    request.set_page_token(page.next_page_token());
  }
  EXPECT_THAT(names, ElementsAre("sessions/a main", "sessions/b other", "sessions/c main", "sessions/d other"));
  ASSERT_TRUE(client_->Delete("sessions/b").ok());
  EXPECT_EQ(client_->Create(SessionOf("main", "b")).model(), "main");
}

// What is asked of a session, or of a model by name, is asked of that model.
TEST_F(ModelsTest, EveryCallFindsItsModel) {
  Start({{"third", Spec(third_)}}, [](ServerOptions& options) {
    options.openai = OpenAiOptions{.listen = {"127.0.0.1", 0}};
  });
  WaitFor("third", v1::MODEL_STATE_SERVING);
  const std::string name = Prefilled("third");

  v1::DescribeCacheRequest describe;
  describe.set_session(name);
  v1::DescribeCacheResponse cache;
  ASSERT_TRUE(client_->eviction().DescribeCache(client_->Context().get(), describe, &cache).ok());
  EXPECT_EQ(cache.layers(), 3U);

  v1::ForkSessionRequest fork;
  fork.set_session(name);
  v1::Session branch;
  ASSERT_TRUE(client_->sessions().ForkSession(client_->Context().get(), fork, &branch).ok());
  EXPECT_EQ(branch.model(), "third");
  EXPECT_EQ(Tokens(branch.name(), 5).size(), 5U);

  v1::SetPolicyRequest all;
  all.set_all_sessions(true);
  all.mutable_policy()->mutable_tova();
  all.mutable_policy()->mutable_trigger()->set_budget(48);
  all.set_model("third");
  v1::SetPolicyResponse changes;
  ASSERT_TRUE(client_->eviction().SetPolicy(client_->Context().get(), all, &changes).ok());
  EXPECT_EQ(changes.changes_size(), 2);

  v1::GenerateRequest once = GenerateText("", kStormyNight, 5);
  once.set_model("third");
  EXPECT_EQ(client_->Generate(once).tokens.size(), 5U);
  once.set_model("fourth");
  const Answer unknown = client_->Generate(once);
  EXPECT_EQ(ReadDetails(unknown.status).reason, "UNKNOWN_MODEL");
  EXPECT_THAT(unknown.status.error_message(), HasSubstr("there is no model 'fourth'; this server has 'main', 'third'"));

  httplib::Client http("127.0.0.1", server_->server().openai_address()->port);
  const auto models = nlohmann::json::parse(http.Get("/v1/models")->body);
  ASSERT_EQ(models["data"].size(), 2U);
  EXPECT_EQ(models["data"][1]["id"], "third");
  const std::string page = httplib::Client("127.0.0.1", server_->server().http_address()->port).Get("/metrics")->body;
  EXPECT_EQ(server_->Metric("ebb_tenant_weight{tenant=\"default\",model=\"third\"}"), 1);
  EXPECT_THAT(page, HasSubstr("\nebb_config_failing "));
  EXPECT_THAT(page, Not(HasSubstr("ebb_config_failing{")));
  const std::string finished = "ebb_finished_total{reason=\"max_tokens\"";
  EXPECT_EQ(server_->Metric(finished + ",model=\"third\"}"), 2);
  EXPECT_EQ(server_->Metric(finished + "}"), 0);

  const auto complete = [&](const std::string& model) {
    const nlohmann::json body = {{"model", model}, {"prompt", "It was"}, {"max_tokens", 3}};
    return http.Post("/v1/completions", body.dump(), "application/json");
  };
  EXPECT_EQ(nlohmann::json::parse(complete("third")->body)["model"], "third");
  EXPECT_EQ(complete("fourth")->status, 404);
  const auto say = [&](const std::string& model) {
    const nlohmann::json message = {{"role", "user"}, {"content", "Hi"}};
    const nlohmann::json body = {{"model", model},
                                 {"messages", nlohmann::json::array({message})},
                                 {"max_tokens", 3},
                                 {"ebb", {{"session", "talk"}}}};
    return http.Post("/v1/chat/completions", body.dump(), "application/json");
  };
  EXPECT_EQ(say("third")->status, 200);
  EXPECT_EQ(client_->Get("sessions/talk").model(), "third");
  EXPECT_EQ(nlohmann::json::parse(say("main")->body)["error"]["code"], "MODEL_DIFFERS");
  http.Post("/v1/completions", R"({"prompt": "It", "max_tokens": 1, "ebb": {"session": "tale"}, "model": "third"})",
            "application/json");
  const auto more = http.Post("/v1/completions", R"({"prompt": " was", "max_tokens": 1, "ebb": {"session": "tale"}})",
                              "application/json");
  EXPECT_EQ(nlohmann::json::parse(more->body)["model"], "third") << more->body;

  EXPECT_GT(server_->Metric("ebb_completion_tokens_total{tenant=\"default\",model=\"third\"}"), 0);
  EXPECT_EQ(server_->Metric("ebb_completion_tokens_total{tenant=\"default\"}"), 0);
  EXPECT_EQ(server_->Metric("ebb_models{state=\"serving\"}"), 2);
}

TEST_F(ModelsTest, AModelIsLoadedWhileAnotherStreams) {
  Start({{"other", Spec(other_)}});
  WaitFor("other", v1::MODEL_STATE_SERVING);
  EndlessStream stream(*client_, Prefilled("main"));
  EndlessStream beside(*client_, Prefilled("other"));
  ASSERT_TRUE(stream.Read() && beside.Read());
  EXPECT_NE(Health("models/third"), "SERVING");
  ASSERT_THAT(server_->server().SetModels({{"other", Spec(other_)}, {"third", Spec(third_)}}, kHours), IsOk());
  while (StateOf("third") != v1::MODEL_STATE_SERVING) ASSERT_TRUE(stream.Read() && beside.Read());
  EXPECT_TRUE(HealthBecomes("models/third", "SERVING"));
  EXPECT_EQ(Tokens(Prefilled("third"), 5).size(), 5U);
  ASSERT_TRUE(stream.Read() && beside.Read());
  stream.Cancel();
  beside.Cancel();
}

TEST_F(ModelsTest, AModelThatCannotBeLoadedSaysWhyAndHarmsNobody) {
  const TemporaryFolder folder;
  const ModelSpec spec = {.path = folder.path() + "/late.gguf", .threads = 1, .arena_bytes = 1 << 20};
  Start({{"late", spec}, {"other", Spec(other_)}});
  WaitFor("late", v1::MODEL_STATE_FAILED);
  EXPECT_THAT(List()["late"].problem(), HasSubstr(spec.path));
  EXPECT_TRUE(HealthBecomes("models/late", "NOT_SERVING"));
  EXPECT_EQ(ReasonOf(SessionOf("late")), "MODEL_FAILED");
  WaitFor("other", v1::MODEL_STATE_SERVING);
  EXPECT_EQ(Tokens(Prefilled("main"), 5).size(), 5U);
  // What was wrong is put right, and asked for again.
  fs::copy_file(third_.path(), spec.path);
  ASSERT_THAT(server_->server().SetModels({{"late", spec}, {"other", Spec(other_)}}, kHours), IsOk());
  WaitFor("late", v1::MODEL_STATE_SERVING);
  EXPECT_EQ(Tokens(Prefilled("late"), 5).size(), 5U);
}

TEST_F(ModelsTest, AModelThatLeavesLetsItsCallsFinish) {
  Start({{"other", Spec(other_)}});
  WaitFor("other", v1::MODEL_STATE_SERVING);
  const std::string name = Prefilled("other", "b");
  EndlessStream stream(*client_, name);
  ASSERT_TRUE(stream.Read());
  ASSERT_THAT(server_->server().SetModels({}, kHours), IsOk());
  WaitFor("other", v1::MODEL_STATE_UNLOADING);
  EXPECT_EQ(ReasonOf(SessionOf("other")), "MODEL_UNLOADING");
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(stream.Read());
  // One of its name waits for it.
  ASSERT_THAT(server_->server().SetModels({{"other", Spec(third_)}}, kHours), IsOk());
  EXPECT_EQ(ReasonOf(SessionOf("other")), "MODEL_LOADING");
  EXPECT_TRUE(HealthBecomes("models/other", "NOT_SERVING"));
  EXPECT_EQ(stream.Cancel().error_code(), Code::CANCELLED);
  WaitFor("other", v1::MODEL_STATE_SERVING);
  EXPECT_EQ(List()["other"].status().layers(), 3U);
  // The name of the session that went with the former is free.
  EXPECT_EQ(client_->Create(SessionOf("main", "b")).model(), "main");
}

TEST_F(ModelsTest, AModelWaitsForItsCallsNoLongerThanItIsTold) {
  Start({{"other", Spec(other_)}});
  WaitFor("other", v1::MODEL_STATE_SERVING);
  EndlessStream stream(*client_, Prefilled("other"));
  EndlessStream of_main(*client_, Prefilled("main"));
  ASSERT_TRUE(stream.Read() && of_main.Read());
  ASSERT_THAT(server_->server().SetModels({}, absl::ZeroDuration()), IsOk());
  EXPECT_EQ(ReadDetails(stream.End()).reason, "DRAINING");
  while (List().size() > 1) ASSERT_TRUE(of_main.Read());
  EXPECT_EQ(ReasonOf(SessionOf("other")), "UNKNOWN_MODEL");
  of_main.Cancel();
}

TEST_F(ModelsTest, QuotasAreOfAllModels) {
  Start({{"other", Spec(other_)}},
        [](ServerOptions& options) { options.work.tenants.listed["default"].sessions_max = 2; });
  WaitFor("other", v1::MODEL_STATE_SERVING);
  client_->Create(SessionOf("main", "a"));
  client_->Create(SessionOf("other", "b"));
  EXPECT_EQ(ReasonOf(SessionOf("main")), "TENANT_SESSIONS");
  EXPECT_EQ(ReasonOf(SessionOf("other")), "TENANT_SESSIONS");
  v1::ListTenantsResponse tenants;
  ASSERT_TRUE(client_->admin().ListTenants(client_->Context().get(), {}, &tenants).ok());
  ASSERT_EQ(tenants.tenants_size(), 1);
  std::map<std::string, uint64_t> used;
  for (const v1::TenantUse& use : tenants.tenants(0).use()) used[use.quota()] = use.used();
  EXPECT_EQ(used["sessions_max"], 2U);
  // What a model held is given back with it.
  ASSERT_THAT(server_->server().SetModels({}, kHours), IsOk());
  while (List().size() > 1) continue;
  client_->Create(SessionOf("main"));
  EXPECT_EQ(ReasonOf(SessionOf("main")), "TENANT_SESSIONS");
}

TEST_F(ModelsTest, OneThatComesLaterHasTheQualityInForce) {
  Start({});
  server_->server().SetLive({.shadow = {.share = 1}});
  ASSERT_THAT(server_->server().SetModels({{"other", Spec(other_)}}, kHours), IsOk());
  WaitFor("other", v1::MODEL_STATE_SERVING);
  Tokens(Prefilled("other"), 5);
  EXPECT_EQ(server_->Metric("ebb_shadows{model=\"other\"}"), 1);
}

TEST_F(ModelsTest, RefusalsAreTheTenantsWhateverItsModel) {
  Start({{"other", Spec(other_)}});
  WaitFor("other", v1::MODEL_STATE_SERVING);
  TestClient beta(server_->address(), "beta");
  beta.Create(SessionOf("other", "b"));
  v1::Session session;
  EXPECT_EQ(ReadDetails(beta.Create(SessionOf("other", "b"), &session)).reason, "NAME_TAKEN");
  EXPECT_EQ(server_->Metric("ebb_refusals_total{tenant=\"beta\",reason=\"NAME_TAKEN\"}"), 1);
  EXPECT_EQ(server_->Metric("ebb_refusals_total{tenant=\"other\",reason=\"NAME_TAKEN\"}"), 0);
}

TEST_F(ModelsTest, RefusesWhatCouldNeverBeServed) {
  Start({});
  const auto refused = [&](const ModelTable& models) { return server_->server().SetModels(models, kHours); };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refused({{"main", Spec(other_)}}), IsRefusal(kInvalid, "BAD_VALUE", "models.main"));
  EXPECT_THAT(refused({{"other", {}}}), IsRefusal(kInvalid, "BAD_VALUE", "models.other.path"));
  EXPECT_EQ(List().size(), 1U);
  // Before the main model is loaded, which may take long.
  const ServerOptions options = {.engine = {.model_path = "/nowhere"}, .models = {{"other", {}}}};
  EXPECT_THAT(Server::Start(options).status(), IsRefusal(kInvalid, "BAD_VALUE", "models.other.path"));
}

// What a reload asks before it takes anything: a model that serves is not given up for a file that is none.
TEST_F(ModelsTest, AFileThatIsNoModelIsRefusedByItsKey) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    const std::string path = folder.path() + "/" + name;
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  };
  std::ifstream stream(other_.path(), std::ios::binary);
  const std::string model{std::istreambuf_iterator<char>(stream), {}};
  const std::string served = write("served.gguf", model);
  const ModelSpec spec = {.path = served, .threads = 1, .arena_bytes = 16 << 20};
  Start({{"other", spec}});
  WaitFor("other", v1::MODEL_STATE_SERVING);
  const auto check = [&](const std::string& path) {
    return server_->server().CheckModels({{"other", {.path = path, .threads = 1, .arena_bytes = 16 << 20}}});
  };
  const std::string config = R"({"model_type": "abacus", "architectures": ["AbacusForCausalLM"]})";
  for (const std::string& path :
       {folder.path() + "/none.gguf", folder.path(), write("notes.gguf", "no model\n"), write("empty.gguf", ""),
        write("cut.gguf", model.substr(0, 300)), fs::path(write("folder/config.json", config)).parent_path().string(),
        fs::path(write("damaged/config.json", "{")).parent_path().string()}) {
    const absl::Status refused = check(path);
    EXPECT_THAT(refused, IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_VALUE", "models.other.path"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(path));
  }
  EXPECT_THAT(check(third_.path()), IsOk());
  // One that stays as it is needs its file no more.
  fs::remove(served);
  EXPECT_THAT(server_->server().CheckModels({{"other", spec}}), IsOk());
  EXPECT_THAT(server_->server().CheckModels({{"other", spec}, {"again", spec}}),
              IsRefusal(absl::StatusCode::kInvalidArgument, "BAD_VALUE", "models.again.path"));
}

// Its stream is ended as that of a server that stops would be.
TEST_F(ModelsTest, AModelThatLeavesDoesNotWaitForAClientThatStoppedReading) {
  Start({{"other", Spec(other_)}}, [](ServerOptions& options) { options.stream_buffer = 2; });
  WaitFor("other", v1::MODEL_STATE_SERVING);
  TestClient reader(server_->address(), "", SmallWindows());
  const std::string name = Prefilled("other");
  EndlessStream stream(reader, name);
  ASSERT_TRUE(stream.Read());
  // Until nothing more fits on the way to it.
  for (uint64_t before = 0; client_->Get(name).tokens() != before; absl::SleepFor(absl::Milliseconds(200))) {
    before = client_->Get(name).tokens();
  }
  ASSERT_THAT(server_->server().SetModels({}, absl::ZeroDuration()), IsOk());
  while (List().size() > 1) absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(stream.End().ok());
}

// A session of a model that cannot be read before somebody lets it, so that the model is being loaded until then.
class Gate {
 public:
  Gate(const std::string& store, const std::string& model, const std::string& session) {
    const std::string folder = store + "/models/" + model + "/sessions/default";
    fs::create_directories(folder);
    path_ = folder + "/" + session + ".snapshot";
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
  }
  // When the load has come to it.
  void Open() const {
    const int fd = open(path_.c_str(), O_WRONLY);
    EXPECT_GE(fd, 0);
    close(fd);
    fs::remove(path_);
  }

 private:
  std::string path_;
};

class LoadingModels : public ModelsTest {
 protected:
  ~LoadingModels() override { server_.reset(); }  // before its folder goes

  void StartKeeping(const ModelTable& models) {
    Start(models, [this](ServerOptions& options) {
      options.durability = Durability::kDrain;
      options.store_dir = folder_.path();
    });
  }

  const TemporaryFolder folder_;
};

TEST_F(LoadingModels, TakeWhatTenantsWereGivenMeanwhile) {
  StartKeeping({});
  const Gate first(folder_.path(), "other", "first");
  const Gate second(folder_.path(), "other", "second");
  ASSERT_THAT(server_->server().SetModels({{"other", Spec(other_)}}, kHours), IsOk());
  first.Open();
  ASSERT_THAT(server_->server().SetTenants({.listed = {{"default", {.sessions_max = 1}}}}), IsOk());
  second.Open();
  WaitFor("other", v1::MODEL_STATE_SERVING);
  client_->Create(SessionOf("other"));
  EXPECT_EQ(ReasonOf(SessionOf("other")), "TENANT_SESSIONS");
}

TEST_F(LoadingModels, HaveTheirSessionsNamesAlready) {
  StartKeeping({{"other", Spec(other_)}});
  WaitFor("other", v1::MODEL_STATE_SERVING);
  const std::string name = Prefilled("other", "tale");
  ASSERT_THAT(server_->server().SetModels({}, kHours), IsOk());
  while (List().size() > 1) continue;
  const Gate gate(folder_.path(), "other", "gate");
  ASSERT_THAT(server_->server().SetModels({{"other", Spec(other_)}}, kHours), IsOk());
  const Answer early = client_->Decode(Greedy(name, 1));
  EXPECT_EQ(early.status.error_code(), Code::UNAVAILABLE);
  EXPECT_EQ(ReadDetails(early.status).reason, "MODEL_LOADING");
  EXPECT_TRUE(ReadDetails(early.status).retry.has_value());
  EXPECT_EQ(ReasonOf(SessionOf("main", "tale")), "NAME_TAKEN");
  EXPECT_EQ(client_->Decode(Greedy("sessions/nobody", 1)).status.error_code(), Code::NOT_FOUND);
  gate.Open();
  WaitFor("other", v1::MODEL_STATE_SERVING);
  EXPECT_EQ(Tokens(name, 3).size(), 3U);
  EXPECT_EQ(client_->Create(SessionOf("main", "gate")).model(), "main") << "it did not come back";
}

TEST_F(LoadingModels, DoNotKeepTheMainModelFromKeepingItsSessions) {
  StartKeeping({});
  Prefilled("main", "tale");
  const Gate gate(folder_.path(), "other", "gate");
  ASSERT_THAT(server_->server().SetModels({{"other", Spec(other_)}}, kHours), IsOk());
  std::thread drain([this] { server_->server().Drain(absl::ZeroDuration()); });
  while (!fs::exists(folder_.path() + "/sessions/default/tale.snapshot")) continue;
  gate.Open();
  drain.join();
}

TEST_F(ModelsTest, ModelsAreThereUntilTheServerHasDrained) {
  Start({{"other", Spec(other_)}});
  WaitFor("other", v1::MODEL_STATE_SERVING);
  const std::string name = Prefilled("other");
  EndlessStream stream(*client_, Prefilled("main"));
  ASSERT_TRUE(stream.Read());
  std::thread drain([this] { server_->server().Drain(kHours); });
  while (client_->Decode(Greedy(name, 1)).status.ok()) continue;
  for (int i = 0; i < 200; ++i) {
    const grpc::Status decoded = Answered([&] { return client_->Decode(Greedy(name, 1)).status; });
    EXPECT_EQ(ReadDetails(decoded).reason, "DRAINING") << client::Describe(decoded);
    const grpc::Status created = Answered([&] {
      v1::Session session;
      return client_->Create(SessionOf("other"), &session);
    });
    EXPECT_EQ(ReadDetails(created).reason, "MODEL_UNLOADING") << client::Describe(created);
    if (HasFailure()) break;
  }
  stream.Cancel();
  drain.join();
}

// What is written of a session is written for its model: by a server that ends, and when the model leaves alone.
class DurableModels : public ModelsTest, public testing::WithParamInterface<Durability> {
 protected:
  ~DurableModels() override { server_.reset(); }  // before its folder goes

  void StartAgain() {
    if (server_ != nullptr) server_->server().Drain(absl::ZeroDuration());
    server_.reset();
    Start({{"other", Spec(other_)}}, [this](ServerOptions& options) {
      options.durability = GetParam();
      options.store_dir = folder_.path();
    });
    WaitFor("other", v1::MODEL_STATE_SERVING);
  }

  const TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(All, DurableModels, testing::Values(Durability::kDrain, Durability::kStep));

TEST_P(DurableModels, SessionsComeBackToTheirModel) {
  StartAgain();
  const std::string a = Prefilled("main", "a");
  const std::string b = Prefilled("other", "b");
  v1::ForkSessionRequest fork;
  fork.set_session(b);
  fork.set_session_id("twin");
  v1::Session twin;
  ASSERT_TRUE(client_->sessions().ForkSession(client_->Context().get(), fork, &twin).ok());
  StartAgain();
  EXPECT_EQ(client_->Get(a).model(), "main");
  EXPECT_EQ(client_->Get(b).model(), "other");
  const std::vector<uint32_t> first = Tokens(b, 6);
  ASSERT_THAT(server_->server().SetModels({}, kHours), IsOk());
  while (List().size() > 1) continue;
  v1::GetSessionRequest get;
  get.set_name(b);
  v1::Session gone;
  EXPECT_EQ(client_->sessions().GetSession(client_->Context().get(), get, &gone).error_code(), Code::NOT_FOUND);
  ASSERT_THAT(server_->server().SetModels({{"other", Spec(other_)}}, kHours), IsOk());
  WaitFor("other", v1::MODEL_STATE_SERVING);
  EXPECT_EQ(client_->Get(b).model(), "other");
  std::vector<uint32_t> whole = first;
  for (const uint32_t token : Tokens(b, 6)) whole.push_back(token);
  EXPECT_EQ(whole, Tokens(twin.name(), 12));
  EXPECT_TRUE(fs::is_directory(folder_.path() + "/models/other"));
}

}  // namespace
}  // namespace ebb
