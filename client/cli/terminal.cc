#include "client/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "client/cli/shell.h"

namespace ebb::cli {
namespace {

constexpr char kInterrupt = 'i';
constexpr char kQuit = 'q';

std::atomic<int> interrupt_fd = -1;
std::atomic<bool> is_interrupted = false;  // what `interrupt_fd` cancels

void OnInterrupt(int signal) {
  const int fd = interrupt_fd.load();
  if (fd < 0) return;
  if (is_interrupted.exchange(true) && signal == SIGINT) _exit(kInterrupted);
  [[maybe_unused]] const ssize_t written = write(fd, &kInterrupt, 1);
}

std::atomic<int> line_signal = 0;

// One that comes during an answer cancels it. One that comes just before the read begins would leave it waiting: the
// alarm comes again until somebody took note.
void OnLineSignal(int signal) {
  if (signal != SIGALRM) {
    const int before = line_signal.exchange(signal);
    if (before == SIGINT && signal == SIGINT) _exit(kInterrupted);  // a call is waited for, not a line
    OnInterrupt(signal);
  }
  if (line_signal != 0) alarm(1);
}

struct sigaction Handled(void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  return action;
}

}  // namespace

bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) == 1; }
bool StderrIsTerminal() { return isatty(STDERR_FILENO) == 1; }
bool StdinIsTerminal() { return isatty(STDIN_FILENO) == 1; }

size_t StdoutColumns() {
  constexpr size_t kNone = 92;
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kNone;
}

std::string Styled(const std::string& style, const std::string& text) {
  static const bool plain = !StdoutIsTerminal() || std::getenv("NO_COLOR") != nullptr;
  return plain ? text : absl::StrFormat("\033[%sm%s\033[0m", style, text);
}

void ProgressBar::Update(const v1::PrefillResponse& progress) {
  if (!StderrIsTerminal() || progress.tokens_total() == 0) return;
  constexpr uint32_t kWidth = 24;
  const uint32_t filled = std::min(kWidth, progress.tokens_done() * kWidth / progress.tokens_total());
  const double per_second = progress.elapsed_ms() > 0 ? 1000.0 * progress.tokens_done() / progress.elapsed_ms() : 0;
  std::fprintf(stderr, "\r\033[K[%s%s] %u/%u tokens  %.0f tok/s  cache %u  evicted %u",
               std::string(filled, '#').c_str(), std::string(kWidth - filled, '.').c_str(), progress.tokens_done(),
               progress.tokens_total(), per_second, progress.cache_length(), progress.evicted_tokens());
  drawn_ = true;
}

void ProgressBar::Clear() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
  drawn_ = false;
}

LineGuard::LineGuard() {
  const struct sigaction action = Handled(OnLineSignal, 0);  // SA_RESTART would put the read back to waiting
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
}

LineGuard::~LineGuard() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

int LineGuard::TakeSignal() {
  const int taken = line_signal.exchange(0);
  alarm(0);  // else it would end the next read
  return taken;
}

InterruptGuard::InterruptGuard(client::Cancellation& cancellation) {
  if (pipe(pipe_) != 0) return;  // Ctrl-C then ends the program, as it would without us
  watcher_ = std::thread([this, &cancellation] {
    char byte = 0;
    while (read(pipe_[0], &byte, 1) == 1 && byte != kQuit) {
      interrupted_ = true;
      cancellation.Cancel();
    }
  });
  is_interrupted = false;
  interrupt_fd = pipe_[1];
  const struct sigaction action = Handled(OnInterrupt, SA_RESTART);
  sigaction(SIGINT, &action, &before_);
}

InterruptGuard::~InterruptGuard() {
  if (!watcher_.joinable()) return;
  sigaction(SIGINT, &before_, nullptr);
  interrupt_fd = -1;
  [[maybe_unused]] const ssize_t written = write(pipe_[1], &kQuit, 1);
  watcher_.join();
  close(pipe_[0]);
  close(pipe_[1]);
}

bool InterruptGuard::interrupted() const { return interrupted_; }

}  // namespace ebb::cli
