// What the models beside the main one are served with: the server's options, but for what `models.NAME` says.

#ifndef EBB_SERVER_MODEL_OPTIONS_H_
#define EBB_SERVER_MODEL_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/server.h"

namespace ebb {

// Those of the model `name`; `main` are the server's. Where the server keeps anything the folder is made that all such
// models have theirs in: UNAVAILABLE STORE_UNUSABLE.
absl::StatusOr<ServerOptions> OptionsOf(const ServerOptions& main, const std::string& name, const ModelSpec& spec);

// INVALID_ARGUMENT BAD_VALUE for what could never be the server's, as far as that can be said without the main model.
absl::Status CheckSpecs(const ModelTable& models, const ServerOptions& options);

}  // namespace ebb

#endif  // EBB_SERVER_MODEL_OPTIONS_H_
