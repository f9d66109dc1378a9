// What tenants and sessions may be called, and the number that follows from a name.

#ifndef EBB_SERVER_RESOURCE_NAME_H_
#define EBB_SERVER_RESOURCE_NAME_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ebb {

inline constexpr char kResourceNamePattern[] = "[a-z0-9][a-z0-9._-]{0,62}";
inline constexpr size_t kResourceNameBytesMax = 63;

inline bool IsResourceName(std::string_view name) {
  const auto alphanumeric = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= kResourceNameBytesMax && alphanumeric(name.front()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return alphanumeric(c) || c == '.' || c == '_' || c == '-'; });
}

// The seed of a session that was given none, and what decides whether it is sampled: its id's FNV-1a hash, so the same
// on every server.
inline uint64_t SeedFor(std::string_view session_id) {
  uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : session_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return hash;
}

}  // namespace ebb

#endif  // EBB_SERVER_RESOURCE_NAME_H_
