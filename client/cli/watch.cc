// `ebb watch FILE`: a session that holds a file's tokens, edited in step with it.

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/edit_words.h"
#include "client/cli/policy_flags.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"
#include "client/error.h"
#include "client/token_diff.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSpansMax = 4096;  // of one edit
constexpr int kTries = 4;           // at an edit, while others write to the session

struct WatchFlags {
  std::string file = {}, id = {}, model = {}, mode = "tail";
  std::optional<uint32_t> window = {};
  uint64_t count = 0;
  PolicyFlags policy = {};
};

std::optional<std::string> ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Tells when a file was written, or another put in its place, by what the system says of its folder: editors do either.
class FileWatch {
 public:
  explicit FileWatch(const fs::path& file) : name_(file.filename()), fd_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    const fs::path folder = file.has_parent_path() ? file.parent_path() : ".";
    ok_ = fd_ >= 0 && inotify_add_watch(fd_, folder.c_str(), IN_CLOSE_WRITE | IN_MOVED_TO) >= 0;
  }
  ~FileWatch() {
    if (fd_ >= 0) close(fd_);
  }
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  bool ok() const { return ok_; }

  // Waits for the next time; false when Ctrl-C came first, which is looked for a few times a second.
  bool Wait(const InterruptGuard& guard) const {
    while (!guard.interrupted()) {
      pollfd waiting = {.fd = fd_, .events = POLLIN, .revents = 0};
      if (poll(&waiting, 1, 200) > 0 && Saved()) return true;
    }
    return false;
  }

 private:
  // Whether the events that wait are of this file.
  bool Saved() const {
    alignas(inotify_event) std::array<char, 4096> bytes = {};
    bool saved = false;
    while (true) {
      const ssize_t size = read(fd_, bytes.data(), bytes.size());
      if (size <= 0) return saved;
      for (ssize_t at = 0; at < size;) {
        const auto* const event = reinterpret_cast<const inotify_event*>(bytes.data() + at);
        saved = saved || (event->len > 0 && name_ == event->name) || (event->mask & IN_Q_OVERFLOW) != 0;
        at += static_cast<ssize_t>(sizeof(inotify_event)) + event->len;
      }
    }
  }

  fs::path name_;
  int fd_ = -1;
  bool ok_ = false;
};

// The session, and its log as it was when last seen.
class Follower {
 public:
  Follower(Shell& shell, client::Client& client, const WatchFlags& flags)
      : shell_(shell), client_(client), flags_(flags) {}

  // Finds the session, or opens it.
  bool Open() {
    if (!flags_.id.empty()) {
      const grpc::Status found = client_.GetSession(SessionName(flags_.id), &session_);
      if (found.ok()) return IsOfModel() && ReadLog();
      if (found.error_code() != grpc::StatusCode::NOT_FOUND) return shell_.Check(found);
    }
    v1::CreateSessionRequest request;
    request.set_session_id(flags_.id);
    request.set_model(flags_.model);
    if (flags_.policy.given()) *request.mutable_policy() = flags_.policy.Build();
    if (!shell_.Check(client_.CreateSession(request, &session_))) return false;
    throw_away_ = flags_.id.empty();
    return true;
  }

  // Deletes a session that nobody asked to keep.
  void Close() {
    v1::DeleteSessionResponse response;
    if (throw_away_) client_.DeleteSession(session_.name(), &response);
  }

  // Makes the session's log the text's tokens. True where something was to be done, and was.
  bool Follow(const std::string& text) {
    if (text.empty()) return false;  // a log is never empty again
    v1::TokenizeRequest request;
    request.set_model(session_.model());
    request.mutable_prompt()->set_text(text);
    v1::TokenizeResponse tokens;
    if (!shell_.Check(client_.Tokenize(request, &tokens))) return false;
    const std::vector<uint32_t> to(tokens.ids().begin(), tokens.ids().end());
    if (log_.empty()) return Begin(to);
    for (int tries = 1;; ++tries) {
      std::vector<client::TokenSpan> spans = client::DiffTokens(log_, to);
      if (spans.size() > kSpansMax) spans = client::DiffTokens(log_, to, 0);
      if (spans.empty()) return false;
      const grpc::Status status = Edit(spans, to);
      if (status.ok()) return true;
      const bool changed = client::ReadDetails(status).reason == "GENERATION_MISMATCH";
      if (!changed || tries == kTries) return shell_.Check(status);
      if (!shell_.Check(client_.GetSession(session_.name(), &session_)) || !ReadLog()) return false;
    }
  }

 private:
  bool Begin(const std::vector<uint32_t>& to) {
    v1::PrefillRequest request;
    request.set_session(session_.name());
    request.mutable_prompt()->mutable_tokens()->mutable_ids()->Add(to.begin(), to.end());
    request.set_expected_generation(session_.generation());
    ProgressBar bar;
    v1::PrefillResponse last;
    const grpc::Status status = client_.Prefill(request, [&](const v1::PrefillResponse& message) {
      bar.Update(message);
      last = message;
    });
    bar.Clear();
    if (!shell_.Check(status)) return false;
    log_ = to;
    session_.set_generation(last.generation());
    if (shell_.json) {
      shell_.PrintJson(last);
    } else {
      Say(absl::StrFormat("%d tokens read into %s, %.1f ms", to.size(), session_.name(), last.elapsed_ms()));
    }
    return true;
  }

  grpc::Status Edit(const std::vector<client::TokenSpan>& spans, const std::vector<uint32_t>& to) {
    v1::EditRequest request;
    request.set_session(session_.name());
    for (const client::TokenSpan& span : spans) {
      v1::EditSpan* const proto = request.add_spans();
      proto->set_start(span.start);
      proto->set_end(span.end);
      if (!span.tokens.empty()) {
        proto->mutable_tokens()->mutable_ids()->Add(span.tokens.begin(), span.tokens.end());
      }
    }
    request.set_mode(EditModeOf(flags_.mode));
    if (flags_.window) request.set_window(*flags_.window);
    request.set_expected_generation(session_.generation());
    v1::EditResponse response;
    grpc::Status status = client_.Edit(request, &response);
    if (!status.ok()) return status;
    log_ = to;
    session_.set_generation(response.generation());
    if (shell_.json) {
      shell_.PrintJson(response);
    } else {
      Say(absl::StrFormat("%d span%s, -%d +%d tokens: %s", spans.size(), spans.size() == 1 ? "" : "s",
                          response.tokens_removed(), response.tokens_inserted(), EditSummary(response)));
    }
    return status;
  }

  bool IsOfModel() {
    const bool is = flags_.model.empty() || flags_.model == session_.model();
    if (!is) shell_.Misused(absl::StrFormat("--model: %s is of the model %s", session_.name(), session_.model()));
    return is;
  }

  // Decode sends again what is in the log, and generates nothing where that is all that was asked for.
  bool ReadLog() {
    log_.clear();
    if (session_.tokens() == 0) return true;
    v1::DecodeRequest request;
    request.set_session(session_.name());
    request.set_resume_from(0);
    request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(session_.tokens()));
    request.mutable_stopping()->set_ignore_eos(true);
    request.set_expected_generation(session_.generation());
    return shell_.Check(client_.Decode(request, [&](const v1::DecodeResponse& message) {
      log_.insert(log_.end(), message.tokens().begin(), message.tokens().end());
    }));
  }

  void Say(const std::string& what) const {
    std::printf("%s  %s\n", absl::FormatTime("%H:%M:%S", absl::Now(), absl::LocalTimeZone()).c_str(), what.c_str());
    std::fflush(stdout);
  }

  Shell& shell_;
  client::Client& client_;
  const WatchFlags& flags_;
  v1::Session session_ = {};
  bool throw_away_ = false;
  std::vector<uint32_t> log_ = {};
};

void Watch(Shell& shell, const WatchFlags& flags) {
  const FileWatch watch(flags.file);  // before the file is read: what is saved from here on is not missed
  std::optional<std::string> text = ReadFile(flags.file);
  if (!watch.ok() || !text) return shell.Misused("cannot read " + flags.file);
  client::Client client = shell.Connect();
  client::Cancellation cancellation;
  const InterruptGuard guard(cancellation);
  Follower follower(shell, client, flags);
  if (!follower.Open()) return;
  uint64_t changes = 0;
  while (shell.exit_code == kDone) {
    if (text && follower.Follow(*text) && ++changes == flags.count) break;
    if (shell.exit_code != kDone) break;
    if (!watch.Wait(guard)) {
      shell.exit_code = kInterrupted;
      break;
    }
    text = ReadFile(flags.file);  // gone for a moment while an editor puts another in its place
  }
  follower.Close();
}

}  // namespace

void AddWatch(Command app, Shell& shell) {
  const Command command = app.add_subcommand("watch", "Keep a session in step with a file, each time it is saved");
  auto flags = std::make_shared<WatchFlags>();
  command.add_option("file", flags->file, "The file").required();
  command.add_option("--session", flags->id,
                     "A session that holds the file, or is opened under this name, and stays; default: one of its own, "
                     "deleted at the end");
  AddModel(command, flags->model);
  AddEditMode(command, flags->mode, flags->window);
  command.add_option("--count", flags->count,
                     "End after so many changes, reading the file the first time being one; "
                     "default: go on");
  flags->policy.AddTo(command);
  command.footer(
      "Each save is one edit: what the file's tokens changed in, all places at once. Ends with Ctrl-C, or with "
      "--count.\n"
      "Examples:\n"
      "  ebb watch main.py\n"
      "  ebb watch main.py --session code --policy full --budget 4096 --mode span");
  command.callback([&shell, flags] { Watch(shell, *flags); });
}

}  // namespace ebb::cli
