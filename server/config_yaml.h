// YAML text to settings: which path was given which text, where. Knows no key; config.h does.
//
// A configuration needs maps and scalars, so that is all there is: lists, anchors' aliases, tags of other types, a
// second document, a key given twice are refused, and so is more than kConfigBytesMax or a nesting beyond 4. No
// alias is ever expanded and no tree is built, so a small file cannot become a large one.

#ifndef EBB_SERVER_CONFIG_YAML_H_
#define EBB_SERVER_CONFIG_YAML_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb {

// Of a whole file.
inline constexpr size_t kConfigBytesMax = 1 << 20;

// A key's place: {server, listen}, {tenants, eu.acme, weight}.
using ConfigPath = std::vector<std::string>;

// One value that somebody gave.
struct ConfigSetting {
  ConfigPath path = {};
  std::optional<std::string> text = {};  // nothing: a section that is merely named
  std::string origin = {};               // ebb.yaml:3, EBB_SERVER_LISTEN, --listen
};

// In the file's order. INVALID_ARGUMENT BAD_YAML with file and line.
absl::StatusOr<std::vector<ConfigSetting>> ReadConfigYaml(std::string_view yaml, const std::string& file);

}  // namespace ebb

#endif  // EBB_SERVER_CONFIG_YAML_H_
