#include "tests/support/ebbd_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "policies/check.h"

namespace ebb {
namespace {

// The value of `key` in a line of the text log; empty if it has none.
std::string FieldOf(const std::string& line, const std::string& key) {
  const size_t at = line.find(" " + key + "=");
  if (at == std::string::npos) return {};
  const size_t start = at + key.size() + 2;
  return line.substr(start, line.find_first_of(" \n", start) - start);
}

}  // namespace

EbbdProcess::EbbdProcess(const std::string& binary, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {binary, "--listen=127.0.0.1:0", "--server.http_listen=127.0.0.1:0"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  int ends[2];
  EBB_CHECK(pipe(ends) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  EBB_CHECK(posix_spawn(&pid_, binary.c_str(), &actions, nullptr, argv.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  stderr_ = ends[0];
  while (address_.empty() && ReadLine()) continue;
}

EbbdProcess::~EbbdProcess() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  close(stderr_);
}

void EbbdProcess::Signal(int number) const { EBB_CHECK(kill(pid_, number) == 0); }

int EbbdProcess::Wait() {
  while (ReadLine()) continue;
  int status = 0;
  EBB_CHECK(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool EbbdProcess::ReadLine() {
  size_t end = unread_.find('\n');
  while (end == std::string::npos) {
    char bytes[4096];
    const ssize_t size = read(stderr_, bytes, sizeof(bytes));
    if (size <= 0) return false;
    unread_.append(bytes, static_cast<size_t>(size));
    end = unread_.find('\n');
  }
  const std::string line = unread_.substr(0, end + 1);
  unread_.erase(0, end + 1);
  log_ += line;
  if (line.find(" listening ") != std::string::npos) {
    address_ = FieldOf(line, "grpc");
    http_address_ = FieldOf(line, "http");
  }
  return true;
}

}  // namespace ebb
