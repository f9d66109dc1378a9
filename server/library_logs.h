// What gRPC and protobuf have to say goes to the server's log, in its format, and not to stderr beside it.

#ifndef EBB_SERVER_LIBRARY_LOGS_H_
#define EBB_SERVER_LIBRARY_LOGS_H_

namespace ebb {

// While it lives. REQUIRES: one at a time, which the log outlives.
class LibraryLogs {
 public:
  LibraryLogs();
  ~LibraryLogs();
  LibraryLogs(const LibraryLogs&) = delete;
  LibraryLogs& operator=(const LibraryLogs&) = delete;
};

}  // namespace ebb

#endif  // EBB_SERVER_LIBRARY_LOGS_H_
