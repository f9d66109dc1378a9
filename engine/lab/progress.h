// How far a long command has come, drawn over itself on stderr, and only when that is a terminal.

#ifndef EBB_ENGINE_LAB_PROGRESS_H_
#define EBB_ENGINE_LAB_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace ebb::lab {

class Progress {
 public:
  // Of `total` pieces of work; `total` below 1 draws nothing.
  explicit Progress(int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `pieces` more are done; `what` is under way.
  void Add(int64_t pieces, const std::string& what);
  // Removes the bar, so that a line can be printed where it was.
  void Clear();

 private:
  int64_t total_ = 0;
  int64_t done_ = 0;
  bool terminal_ = false;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point started_ = {};
};

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_PROGRESS_H_
