#include "engine/lab/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"

namespace ebb::lab {

Progress::Progress(int64_t total)
    : total_(total), terminal_(isatty(STDERR_FILENO) == 1), started_(std::chrono::steady_clock::now()) {}

Progress::~Progress() { Clear(); }

void Progress::Add(int64_t pieces, const std::string& what) {
  done_ = std::min(done_ + pieces, total_);
  if (!terminal_ || total_ < 1 || done_ == 0) return;
  constexpr int64_t kWidth = 24;
  const auto filled = static_cast<size_t>(kWidth * done_ / total_);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - started_;
  const double left = passed.count() * static_cast<double>(total_ - done_) / static_cast<double>(done_);
  absl::FPrintF(stderr, "\r\033[K[%s%s] %d %%  %.0f s left  %s", std::string(filled, '#'),
                std::string(kWidth - filled, '.'), 100 * done_ / total_, left, what);
  drawn_ = true;
}

void Progress::Clear() {
  if (drawn_) absl::FPrintF(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace ebb::lab
