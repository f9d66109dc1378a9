// What is said of a session beside its numbers.

#ifndef EBB_CLIENT_CLI_SESSION_WORDS_H_
#define EBB_CLIENT_CLI_SESSION_WORDS_H_

#include <string>

#include "ebb/v1/session.pb.h"

namespace ebb::cli {

// "  on cuda:0", or "  on cpu: " and why not on the GPU that its model has; empty where it has none.
std::string OnWorker(const v1::Session& session);

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_SESSION_WORDS_H_
