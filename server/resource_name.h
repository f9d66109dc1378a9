// What tenants and sessions may be called.

#ifndef EBB_SERVER_RESOURCE_NAME_H_
#define EBB_SERVER_RESOURCE_NAME_H_

#include <algorithm>
#include <string_view>

namespace ebb {

inline constexpr char kResourceNamePattern[] = "[a-z0-9][a-z0-9._-]{0,62}";

inline bool IsResourceName(std::string_view name) {
  const auto alphanumeric = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 63 && alphanumeric(name.front()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return alphanumeric(c) || c == '.' || c == '_' || c == '-'; });
}

}  // namespace ebb

#endif  // EBB_SERVER_RESOURCE_NAME_H_
