#include "server/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <string>
#include <string_view>

#include "server/log.h"

namespace ebb {
namespace {

std::string_view NameOf(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// A peer can bring about most of what gRPC calls an error, so none of it is one of the server's.
void LogOfGrpc(gpr_log_func_args* said) {
  WriteLog(said->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarn : LogLevel::kDebug, "grpc",
           {{"file", NameOf(said->file)}, {"line", said->line}}, said->message);
}

// Of a message that is none: which field is wrong, never what it holds.
void LogOfProtobuf(google::protobuf::LogLevel level, const char* file, int line, const std::string& message) {
  WriteLog(level >= google::protobuf::LOGLEVEL_WARNING ? LogLevel::kWarn : LogLevel::kDebug, "protobuf",
           {{"file", NameOf(file)}, {"line", line}}, message);
}

}  // namespace

LibraryLogs::LibraryLogs() {
  gpr_set_log_function(LogOfGrpc);
  google::protobuf::SetLogHandler(LogOfProtobuf);
}

LibraryLogs::~LibraryLogs() {
  gpr_set_log_function(nullptr);  // gRPC's own again
  google::protobuf::SetLogHandler(nullptr);
}

}  // namespace ebb
