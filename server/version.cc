#include "server/version.h"

namespace ebb {

std::string_view Version() { return EBB_VERSION; }

}  // namespace ebb
