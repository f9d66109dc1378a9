// A value of a configuration's key other than its default.

#ifndef EBB_TESTS_SUPPORT_ANOTHER_VALUE_H_
#define EBB_TESTS_SUPPORT_ANOTHER_VALUE_H_

#include <string>

#include "server/config_keys.h"

namespace ebb {

inline std::string AnotherValue(const ConfigKey& key) {
  if (key.key.choices_size() > 0)
    return key.key.choices(0) == key.key.default_() ? key.key.choices(1) : key.key.choices(0);
  if (key.key.kind() == config::v1::KIND_ADDRESS) return "[::1]:123";
  return key.key.max().empty() ? "some text" : key.key.max();
}

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_ANOTHER_VALUE_H_
