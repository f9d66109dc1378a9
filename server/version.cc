#include "server/version.h"

namespace ebb {

std::string_view Version() { return EBB_VERSION; }

std::string_view Revision() { return EBB_REVISION; }

}  // namespace ebb
