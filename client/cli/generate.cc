#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>

#include "absl/time/clock.h"
#include "client/cli/policy_flags.h"
#include "client/cli/prompt_flags.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

struct GenerateFlags {
  std::string text, file, session, model;
  bool chat = false, quiet = false;
  std::optional<uint32_t> block_size, answers;
  PolicyFlags policy;
  PromptFlags prompt;
};

// The prompt from the argument, the file, or stdin for "-".
bool ReadPrompt(const GenerateFlags& flags, std::string* text) {
  if (flags.file.empty()) {
    *text = flags.text;
    return true;
  }
  std::ifstream file;
  if (flags.file != "-") file.open(flags.file, std::ios::binary);
  std::istream& in = flags.file == "-" ? std::cin : file;
  text->assign(std::istreambuf_iterator<char>(in), {});
  return flags.file == "-" || file.is_open();
}

v1::GenerateRequest BuildRequest(const GenerateFlags& flags, const std::string& text) {
  v1::GenerateRequest request;
  if (!flags.session.empty()) request.set_session(SessionName(flags.session));
  request.set_model(flags.model);
  if (flags.chat) {
    v1::ChatMessage* message = request.mutable_prompt()->mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(text);
  } else {
    request.mutable_prompt()->set_text(text);
  }
  *request.mutable_sampling() = flags.prompt.Sampling();
  *request.mutable_stopping() = flags.prompt.Stopping();
  *request.mutable_speculation() = flags.prompt.Speculation();
  if (flags.answers) request.set_n(*flags.answers);
  if (flags.block_size) request.set_block_size(*flags.block_size);
  if (flags.policy.given()) *request.mutable_policy() = flags.policy.Build();
  return request;
}

void PrintSummary(const v1::DecodeResponse& last) {
  const v1::Usage& usage = last.usage();
  const double seconds =
      static_cast<double>(last.timings().decode().seconds()) + 1e-9 * last.timings().decode().nanos();
  // None were written where a resumed answer was only sent again.
  const bool is_timed = seconds > 0 && usage.completion_tokens() > 1;
  const double per_second = is_timed ? (usage.completion_tokens() - 1) / seconds : 0;
  std::fprintf(stderr, "[%u tokens read, %u written, %.0f tok/s, cache %u of %llu tokens seen, %llu evicted, %s]\n",
               usage.prompt_tokens(), usage.completion_tokens(), per_second, usage.cache_length(),
               static_cast<unsigned long long>(usage.session_tokens()),
               static_cast<unsigned long long>(usage.evicted_tokens()),
               v1::FinishReason_Name(last.finish_reason()).substr(sizeof("FINISH_REASON_") - 1).c_str());
}

void Run(Shell& shell, const GenerateFlags& flags) {
  std::string text;
  if (!ReadPrompt(flags, &text)) return shell.Misused("cannot read " + flags.file);
  client::Client client = shell.Connect();
  client::Cancellation cancellation;
  InterruptGuard guard(cancellation);
  ProgressBar bar;
  v1::DecodeResponse last;
  const bool several = flags.answers.value_or(1) > 1;
  std::map<uint32_t, std::string> answers;  // of several, those that are not whole
  const grpc::Status status = client.Generate(
      BuildRequest(flags, text),
      [&](const v1::GenerateResponse& message) {
        if (message.has_decode() && message.decode().finish_reason() != v1::FINISH_REASON_UNSPECIFIED)
          last = message.decode();
        if (shell.json) {
          shell.PrintJson(message);
        } else if (message.has_prefill()) {
          bar.Update(message.prefill());
        } else if (several) {
          bar.Clear();
          answers[message.index()] += message.decode().text();
          if (message.decode().finish_reason() == v1::FINISH_REASON_UNSPECIFIED) return;
          std::printf("[%u] %s\n", message.index(), answers[message.index()].c_str());
        } else {
          bar.Clear();
          std::fwrite(message.decode().text().data(), 1, message.decode().text().size(), stdout);
          std::fflush(stdout);
        }
      },
      &cancellation);
  bar.Clear();
  if (!shell.json && !several) std::printf("\n");
  if (guard.interrupted()) {
    shell.exit_code = kInterrupted;
  } else if (shell.Check(status) && !shell.json && !flags.quiet) {
    PrintSummary(last);
  }
}

}  // namespace

void AddGenerate(Command app, Shell& shell) {
  const Command command = app.add_subcommand("generate", "Stream an answer to a prompt");
  auto flags = std::make_shared<GenerateFlags>();
  const Flag text = command.add_option("text", flags->text, "The prompt");
  command.add_option("--file", flags->file, "Read the prompt from a file; - is stdin").excludes(text);
  command.add_flag("--chat", flags->chat, "Send the prompt as a user's turn through the model's chat template");
  const Flag session =
      command.add_option("--session", flags->session, "Go on in this session; default: a throw-away one");
  AddModel(command, flags->model, "Of a throw-away session").excludes(session);
  command.add_option("--block-size", flags->block_size, "Tokens per prefill block");
  command.add_flag("-q,--quiet", flags->quiet, "No summary on stderr");
  command.add_option("-n,--answers", flags->answers,
                     "So many answers to the one prompt, each printed when it is whole");
  flags->policy.AddTo(command);
  flags->prompt.AddTo(command);
  command.footer(
      "Examples:\n"
      "  ebb generate \"It was a dark and stormy night\" --max-tokens 64\n"
      "  ebb generate --file models/text/persuasion.txt --policy streaming --budget 256\n"
      "  ebb generate --chat \"Where is the lamp?\" --session s1 --temperature 0");
  command.callback([&shell, flags] {
    if (flags->text.empty() && flags->file.empty()) throw UsageError("A prompt (text, or --file) is required");
    Run(shell, *flags);
  });
}

}  // namespace ebb::cli
