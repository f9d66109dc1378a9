// The terminal: is it one, how wide, a progress bar, and Ctrl-C turned into a question that code can ask.

#ifndef EBB_CLIENT_CLI_TERMINAL_H_
#define EBB_CLIENT_CLI_TERMINAL_H_

#include <signal.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "client/client.h"

namespace ebb::cli {

bool StdoutIsTerminal();
bool StderrIsTerminal();
bool StdinIsTerminal();
// Width of the terminal on stdout; 92 where there is none.
size_t StdoutColumns();

// `text` in an ANSI style such as "1" (bold) or "2" (dim); plain where stdout is no terminal or NO_COLOR is set.
std::string Styled(const std::string& style, const std::string& text);

// Draws "prompt 384/1024 tokens, cache 256, evicted 128" over itself on stderr, and only when stderr is a terminal.
class ProgressBar {
 public:
  void Update(const v1::PrefillResponse& progress);
  // Removes the bar.
  void Clear();

 private:
  bool drawn_ = false;
};

// While it lives, Ctrl-C, SIGTERM and a terminal that is closed end the read that waits for a line, not the program;
// where an InterruptGuard lives too, they cancel its stream, and TakeSignal still has SIGTERM and SIGHUP after it. A
// second Ctrl-C before the first was taken ends the program. One at a time, on the first thread, which is where the
// system delivers them.
class LineGuard {
 public:
  LineGuard();
  ~LineGuard();
  LineGuard(const LineGuard&) = delete;
  LineGuard& operator=(const LineGuard&) = delete;
  // The signal that came since this was last asked, 0 if none did.
  int TakeSignal();

 private:
  static constexpr std::array<int, 4> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGALRM};
  std::array<struct sigaction, kSignals.size()> before_ = {};
};

// While it lives, Ctrl-C, or what a LineGuard is told, cancels the stream of `cancellation` instead of ending the
// program; a second Ctrl-C ends it at once, as interrupted. One at a time.
class InterruptGuard {
 public:
  explicit InterruptGuard(client::Cancellation& cancellation);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  // The stream was cancelled so.
  bool interrupted() const;

 private:
  // A signal handler may not call gRPC: it writes a byte to this pipe, and the watcher cancels.
  int pipe_[2] = {-1, -1};
  std::atomic<bool> interrupted_ = false;
  std::thread watcher_;
  struct sigaction before_ = {};
};

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_TERMINAL_H_
