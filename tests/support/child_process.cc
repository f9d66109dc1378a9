#include "tests/support/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

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
  output_ = fdopen(ends[0], "r");
}

ChildProcess::~ChildProcess() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  std::fclose(output_);
}

std::string ChildProcess::WaitForLine(const std::string& part) {
  char* line = nullptr;
  size_t size = 0;
  std::string found;
  while (found.empty() && getline(&line, &size, output_) > 0) {
    if (std::string(line).find(part) != std::string::npos) found = line;
  }
  std::free(line);
  return found;
}

}  // namespace ebb
