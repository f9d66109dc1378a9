// `ebb demo`: what eviction does to a conversation, on the built-in model.
//
// First a story that runs far past its cache budget: the position grows, the cache does not. Then the same dialogues
// under several policies: facts, a question about one of them, a long distraction, the same question again. The
// question is answered for the first time while the fact is still in the cache; the second time tells what each policy
// kept. Dialogues and question are those of the model's card (models/MODEL_CARD.md, *again*).
//
// With --json one object for the story, one for each policy, and one for the server at the end.

#include <google/protobuf/struct.pb.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/policy_flags.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

constexpr char kStoryBegins[] = "It was a dark and stormy night, and the old man sat by the fire, thinking of";
constexpr uint32_t kStoryBudget = 256;
constexpr uint32_t kStoryTokens = 700;
constexpr uint32_t kDialogueBudget = 512;
constexpr uint32_t kBlock = 32;

// One dialogue of the card: two user turns that end with the same question, and the five digits that answer it.
struct Dialogue {
  std::string first = {}, second = {}, digits = {};
};

// What one policy made of the dialogues.
struct Outcome {
  std::string policy = {};
  uint32_t right_first = 0, right_again = 0, cache_length = 0;
  uint64_t tokens = 0, evicted = 0, bytes = 0;
  std::string again = {};  // the answer to the last question of the first dialogue
};

class Demo {
 public:
  Demo(Shell& shell, const std::string& cases, uint32_t count)
      : shell_(shell), cases_path_(cases), count_(count), client_(shell.Connect()) {}

  void Run() {
    const absl::Time start = absl::Now();
    if (!Story() || !ReadDialogues()) return;
    std::vector<Outcome> outcomes;
    PrintDialogue();
    for (const char* policy : {"full", "streaming", "h2o"}) {
      Outcome outcome{.policy = policy};
      if (!Ask(outcome)) return;
      Tell(absl::StrFormat("  %-10s first time %u of %u right, asked again %u of %u   \"%s\"\n", policy,
                           outcome.right_first, dialogues_.size(), outcome.right_again, dialogues_.size(),
                           outcome.again));
      if (shell_.json) PrintRow(outcome);
      outcomes.push_back(outcome);
    }
    if (!shell_.json) PrintTable(outcomes);
    v1::GetStatusResponse status;
    if (!shell_.Check(client_.GetStatus(&status))) return;
    const auto resident = static_cast<double>(status.work().resident_bytes());
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    Tell(absl::StrFormat("\nthe server holds %s in memory, weights included\n%s\n", Bytes(resident),
                         Styled("2", absl::StrFormat("done in %.0f s", seconds))));
    if (!shell_.json) return;
    google::protobuf::Struct row;
    (*row.mutable_fields())["resident_bytes"].set_number_value(resident);
    (*row.mutable_fields())["seconds"].set_number_value(seconds);
    shell_.PrintJson(row);
  }

 private:
  // For people, at once: a story that stands still would look like a server that does.
  void Tell(const std::string& text) {
    if (shell_.json) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  void Title(const std::string& text) { Tell(absl::StrFormat("\n%s\n", Styled("1", text))); }

  bool Open(const std::string& policy, uint32_t budget, v1::Session* session) {
    v1::CreateSessionRequest request;
    SetScorer(*request.mutable_policy(), policy);
    // `full` evicts nothing: its budget is a length limit, so it gets room for the whole dialogue.
    request.mutable_policy()->mutable_trigger()->set_budget(policy == "full" ? 2 * kDialogueBudget : budget);
    request.set_block_size(kBlock);
    return shell_.Check(client_.CreateSession(request, session));
  }

  bool Story() {
    v1::Session session;
    if (!Open("streaming", kStoryBudget, &session)) return false;
    Title(absl::StrFormat("A story of %u tokens in a cache of %u (%s)", kStoryTokens, kStoryBudget,
                          Summary(session.policy())));
    v1::GenerateRequest request;
    request.set_session(session.name());
    request.mutable_prompt()->set_text(kStoryBegins);
    request.mutable_sampling()->set_temperature(0.7F);
    request.mutable_sampling()->set_seed(7);
    request.mutable_stopping()->set_max_tokens(kStoryTokens);
    request.mutable_stopping()->set_ignore_eos(true);
    Tell(kStoryBegins);
    std::string text = kStoryBegins;
    uint32_t written = 0, shown = 0;
    uint64_t evicted = 0;
    const absl::Time start = absl::Now();
    const auto speed = [&] { return written / absl::ToDoubleSeconds(absl::Now() - start); };
    const grpc::Status status = client_.Generate(request, [&](const v1::GenerateResponse& message) {
      if (!message.has_decode()) return;
      const v1::DecodeResponse& decode = message.decode();
      Tell(decode.text());
      text += decode.text();
      written += static_cast<uint32_t>(decode.tokens_size());
      evicted += decode.evicted_tokens();
      if (written / 100 == shown) return;
      shown = written / 100;
      Tell(absl::StrFormat(
          "\n%s\n", Styled("2", absl::StrFormat("    [%u tokens written, %.0f tok/s: cache %u, evicted %u]", written,
                                                speed(), decode.cache_length(), evicted))));
    });
    const double per_second = speed();
    if (!shell_.Check(status) || !shell_.Check(client_.GetSession(session.name(), &session))) return false;
    Tell(absl::StrFormat(
        "\n\nposition %u, cache %u of %u slots per lane, %u evicted, %s of K and V reserved from first token to last\n",
        session.tokens(), session.cache_length(), session.cache_capacity(), session.evicted_tokens(),
        Bytes(static_cast<double>(session.reserved_bytes()))));
    if (shell_.json) PrintStory(session, text, per_second);
    return Close(session.name());
  }

  bool Close(const std::string& name) {
    v1::DeleteSessionResponse response;
    return shell_.Check(client_.DeleteSession(name, &response));
  }

  bool Detokenize(const std::vector<uint32_t>& ids, std::string* text) {
    v1::DetokenizeRequest request;
    for (const uint32_t id : ids) request.add_ids(id);
    v1::DetokenizeResponse response;
    if (!shell_.Check(client_.Detokenize(request, &response))) return false;
    *text = response.text();
    return true;
  }

  // Cases are token ids; a dialogue's turns are told apart by the ids of the model's turn markers.
  bool ReadDialogues() {
    constexpr uint32_t kUser = 2, kEnd = 4;
    std::ifstream file(cases_path_);
    const nlohmann::json cases = nlohmann::json::parse(file, nullptr, false);
    if (!cases.is_object() || !cases.contains("again")) {
      shell_.Misused(cases_path_ + " is not the built-in model's file of cases; name it with --cases");
      return false;
    }
    for (const nlohmann::json& item : cases["again"]) {
      if (dialogues_.size() == count_) break;
      const std::vector<uint32_t> prompt = item["prompt"];
      std::vector<std::vector<uint32_t>> turns;
      for (auto at = std::find(prompt.begin(), prompt.end(), kUser); at != prompt.end();
           at = std::find(at, prompt.end(), kUser)) {
        const auto end = std::find(++at, prompt.end(), kEnd);
        turns.emplace_back(at, end);
      }
      Dialogue dialogue;
      if (turns.size() != 2 || !Detokenize(turns[0], &dialogue.first) || !Detokenize(turns[1], &dialogue.second) ||
          !Detokenize(item["answer"], &dialogue.digits)) {
        return false;
      }
      dialogue.digits.erase(std::remove(dialogue.digits.begin(), dialogue.digits.end(), ' '), dialogue.digits.end());
      dialogues_.push_back(dialogue);
    }
    return !dialogues_.empty();
  }

  void PrintDialogue() {
    const auto excerpt = [](const std::string& text) {
      constexpr size_t kHead = 150, kTail = 60;
      std::string line =
          text.size() <= kHead + kTail ? text : text.substr(0, kHead) + " [...] " + text.substr(text.size() - kTail);
      std::replace(line.begin(), line.end(), '\n', ' ');
      return line;
    };
    Title(absl::StrFormat("The same %d dialogues under three policies, a cache of %u where it is bounded",
                          dialogues_.size(), kDialogueBudget));
    Tell(Styled("2", "facts, a question, a long distraction, the same question again; the first of them:"));
    Tell(absl::StrFormat("\nuser       %s\nassistant  ...\nuser       %s\nassistant  ?\n\n",
                         excerpt(dialogues_[0].first), excerpt(dialogues_[0].second)));
  }

  bool Turn(const std::string& session, const std::string& text, std::string* answer) {
    v1::GenerateRequest request;
    request.set_session(session);
    v1::ChatMessage* message = request.mutable_prompt()->mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(text);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(24);
    answer->clear();
    return shell_.Check(
        client_.Generate(request, [&](const v1::GenerateResponse& response) { *answer += response.decode().text(); }));
  }

  bool Ask(Outcome& outcome) {
    for (const Dialogue& dialogue : dialogues_) {
      v1::Session session;
      std::string first, again;
      if (!Open(outcome.policy, kDialogueBudget, &session) || !Turn(session.name(), dialogue.first, &first) ||
          !Turn(session.name(), dialogue.second, &again) ||
          !shell_.Check(client_.GetSession(session.name(), &session)) || !Close(session.name())) {
        return false;
      }
      outcome.right_first += first.find(dialogue.digits) != std::string::npos ? 1 : 0;
      outcome.right_again += again.find(dialogue.digits) != std::string::npos ? 1 : 0;
      if (outcome.again.empty()) outcome.again = again;
      outcome.cache_length = session.cache_length();
      outcome.tokens = session.tokens();
      outcome.evicted = session.evicted_tokens();
      outcome.bytes = session.used_bytes();
    }
    return true;
  }

  void PrintStory(const v1::Session& session, const std::string& text, double per_second) {
    google::protobuf::Struct row;
    auto& story = *(*row.mutable_fields())["story"].mutable_struct_value()->mutable_fields();
    story["text"].set_string_value(text);
    story["tokens_per_second"].set_number_value(per_second);
    story["position"].set_number_value(static_cast<double>(session.tokens()));
    story["cache_length"].set_number_value(session.cache_length());
    story["cache_capacity"].set_number_value(session.cache_capacity());
    story["evicted_tokens"].set_number_value(static_cast<double>(session.evicted_tokens()));
    story["reserved_bytes"].set_number_value(static_cast<double>(session.reserved_bytes()));
    shell_.PrintJson(row);
  }

  void PrintRow(const Outcome& outcome) {
    google::protobuf::Struct row;
    auto& fields = *row.mutable_fields();
    fields["policy"].set_string_value(outcome.policy);
    fields["dialogues"].set_number_value(static_cast<double>(dialogues_.size()));
    fields["right_first"].set_number_value(outcome.right_first);
    fields["right_again"].set_number_value(outcome.right_again);
    fields["answer"].set_string_value(outcome.again);
    fields["position"].set_number_value(static_cast<double>(outcome.tokens));
    fields["cache_length"].set_number_value(outcome.cache_length);
    fields["evicted_tokens"].set_number_value(static_cast<double>(outcome.evicted));
    fields["used_bytes"].set_number_value(static_cast<double>(outcome.bytes));
    shell_.PrintJson(row);
  }

  void PrintTable(const std::vector<Outcome>& outcomes) {
    std::printf("\n%s\n", Styled("1", "POLICY      POSITION  CACHE  EVICTED       LIVE K+V  REMEMBERED").c_str());
    for (const Outcome& o : outcomes) {
      std::printf("%-10s %9llu %6u %8llu %14s  %u of %zu\n", o.policy.c_str(),
                  static_cast<unsigned long long>(o.tokens), o.cache_length, static_cast<unsigned long long>(o.evicted),
                  Bytes(static_cast<double>(o.bytes)).c_str(), o.right_again, dialogues_.size());
    }
  }

  Shell& shell_;
  std::string cases_path_;
  uint32_t count_;
  client::Client client_;
  std::vector<Dialogue> dialogues_ = {};
};

}  // namespace

void AddDemo(Command app, Shell& shell) {
  const Command command = app.add_subcommand("demo", "What eviction does to a conversation, on the built-in model");
  auto cases = std::make_shared<std::string>("models/ebb-tiny.cases.json");
  auto count = std::make_shared<uint32_t>(8);
  command.add_option("--cases", *cases, "The model's file of cases").capture_default_str();
  command.add_option("--dialogues", *count, "How many of its dialogues").capture_default_str().range(1, 50);
  command.footer("Example:\n  ebb demo --dialogues 16");
  command.callback([&shell, cases, count] { Demo(shell, *cases, *count).Run(); });
}

}  // namespace ebb::cli
