#include "tests/support/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "policies/check.h"

namespace ebb {

ChildProcess::ChildProcess(const std::vector<std::string>& arguments) {
  int ends[2];
  EBB_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  EBB_CHECK(posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  output_ = ends[0];
}

ChildProcess::~ChildProcess() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(output_);
}

std::string ChildProcess::WaitForLine(const std::string& part) {
  constexpr int kPatienceMs = 60'000;
  while (true) {
    for (size_t end = unread_.find('\n'); end != std::string::npos; end = unread_.find('\n')) {
      const std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      if (line.find(part) != std::string::npos) return line;
    }
    pollfd readable = {.fd = output_, .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, kPatienceMs) <= 0) return "";
    char more[4096];
    const ssize_t got = read(output_, more, sizeof(more));
    if (got <= 0) return "";
    unread_.append(more, static_cast<size_t>(got));
  }
}

}  // namespace ebb
