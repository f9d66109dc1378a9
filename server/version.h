// What the build says of itself.

#ifndef EBB_SERVER_VERSION_H_
#define EBB_SERVER_VERSION_H_

#include <string_view>

namespace ebb {

// The project's version in CMakeLists.txt, for example 0.1.0.
std::string_view Version();

// The commit that was configured, at least 12 hexadecimal digits, for example 1de385fd0a2b; "unknown" outside a git
// clone.
std::string_view Revision();

}  // namespace ebb

#endif  // EBB_SERVER_VERSION_H_
