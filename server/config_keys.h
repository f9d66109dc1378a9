// The keys of the configuration, read from the descriptors of ebb.config.v1 and their (key) options. A path is spelled
// with dots, `server.listen`; those of a tenant or a model hold its name, `tenants.acme.weight`, which may itself hold
// dots.

#ifndef EBB_SERVER_CONFIG_KEYS_H_
#define EBB_SERVER_CONFIG_KEYS_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ebb/config/v1/config.pb.h"
#include "ebb/config/v1/key.pb.h"
#include "server/config_yaml.h"

namespace ebb {

struct ConfigKey {
  std::string section = {};                                          // server; tenants
  std::string name = {};                                             // listen
  const google::protobuf::FieldDescriptor* section_field = nullptr;  // of Config
  const google::protobuf::FieldDescriptor* field = nullptr;          // of the section, or of what is named in it
  config::v1::Key key = {};

  bool is_named() const { return section_field->is_map(); }  // of a tenant or a model, in a section of several
  // "server.listen"; of a named key with `name` in it.
  std::string Path(std::string_view name = "NAME") const;
  // "EBB_SERVER_LISTEN"; empty for a named key, since names do not survive upper case.
  std::string Variable() const;
  // What a value looks like in help: HOST:PORT, SIZE, TIME, N, TEXT, or the choices, a|b.
  std::string Shape() const;
};

// All of them, in the schema's order.
std::span<const ConfigKey> ConfigKeys();

// Where a path leads.
struct ConfigPlace {
  const ConfigKey* key = nullptr;  // null: a section, or a tenant or model as a whole
  std::string name = {};           // of that; empty: of none
};

// INVALID_ARGUMENT UNKNOWN_KEY naming the nearest known path, INVALID_TENANT or INVALID_MODEL.
absl::StatusOr<ConfigPlace> FindConfigPlace(const ConfigPath& path);

// "server.listen" and "tenants.eu.acme.weight" in their segments; the last dot ends a name.
ConfigPath SplitConfigPath(std::string_view path);

// Reads `text` into the key's field (making the tenant or model, if it is of one). INVALID_ARGUMENT BAD_VALUE, the
// field being the path, naming what is allowed.
absl::Status SetConfigValue(const ConfigPlace& place, std::string_view text, config::v1::Config& config);

// The same for a field of the key's section, under a path of the caller's own.
absl::Status SetConfigField(const ConfigKey& key, const std::string& path, std::string_view text,
                            google::protobuf::Message& section);

// Makes what a section names, every key at its default, of a tenant as tenant_defaults has it, unless it is there.
// REQUIRES: a section of named ones, and a configuration that DefaultConfig began.
void AddNamed(const std::string& section, const std::string& name, config::v1::Config& config);
// The names that a section has, ascending.
std::vector<std::string> NamesIn(const std::string& section, const config::v1::Config& config);

// Every key of every section at its default; no tenants and no models.
config::v1::Config DefaultConfig();

// The field's value as YAML would spell it, without quotes; SetConfigValue reads it back.
std::string GetConfigValue(const ConfigPlace& place, const config::v1::Config& config);

// A key whose value differs between two configurations.
struct ConfigChange {
  const ConfigKey* key = nullptr;
  std::string path = {};
  std::string before = {};  // as YAML would spell them, without quotes
  std::string after = {};
};

// In the schema's order, and behind that what is named, by section and name. A tenant or a model that one of them lacks
// has the defaults there, a tenant those of tenant_defaults.
std::vector<ConfigChange> ConfigChanges(const config::v1::Config& before, const config::v1::Config& after);

// Of `known`, the one with the fewest edits to `word` (or to its last segment); the first of equals.
std::string NearestWord(std::string_view word, std::span<const std::string> known);

}  // namespace ebb

#endif  // EBB_SERVER_CONFIG_KEYS_H_
