// The filters that go through lists.

#ifndef EBB_ENGINE_TEXT_JINJA_FILTERS_OF_LISTS_H_
#define EBB_ENGINE_TEXT_JINJA_FILTERS_OF_LISTS_H_

#include <span>
#include <string_view>

#include "engine/text/jinja/interpreter.h"

namespace ebb::jinja {

struct Filter {
  std::string_view name = {};
  absl::StatusOr<Value> (*apply)(Interpreter& run, const Value& value, const Arguments& more) = nullptr;
};

std::span<const Filter> FiltersOfLists();

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_FILTERS_OF_LISTS_H_
