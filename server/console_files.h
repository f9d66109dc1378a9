// The files of console/ as they are built into the program. console_files.cc is written by cmake/embed_console.cmake.

#ifndef EBB_SERVER_CONSOLE_FILES_H_
#define EBB_SERVER_CONSOLE_FILES_H_

#include <span>
#include <string_view>

namespace ebb {

struct ConsoleFile {
  std::string_view name = {};  // main.js
  std::string_view type = {};  // of its content: text/javascript; charset=utf-8
  std::string_view content = {};
};

// All of them, index.html among them.
std::span<const ConsoleFile> ConsoleFiles();

// Changes with any of them: part of the URL of all but index.html, which names it.
std::string_view ConsoleVersion();

}  // namespace ebb

#endif  // EBB_SERVER_CONSOLE_FILES_H_
