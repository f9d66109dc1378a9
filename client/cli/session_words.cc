#include "client/cli/session_words.h"

namespace ebb::cli {

std::string OnWorker(const v1::Session& session) {
  const std::string on = "  on " + session.worker();
  if (!session.worker_reason().empty()) return on + ": " + session.worker_reason();
  return session.worker().empty() || session.worker() == "cpu" ? "" : on;
}

}  // namespace ebb::cli
