#include "policies/presets.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ebb {
namespace {

// The card's newest tokens that stay, where its rule names a number of them.
constexpr int32_t kNewest = 32;

Preset Card(const std::string& name, PolicySpec spec) {
  spec.kv_type = KvType::kF32;
  if (spec.scorer != "full") spec.positions = Positions::kOriginal;
  return {.name = "card/" + name, .spec = std::move(spec)};
}

const auto& Table() {
  static const std::array kTable = {
      Card("full", {.scorer = "full"}),
      Card("window", {.scorer = "streaming", .sinks = 0}),
      Card("streaming", {.scorer = "streaming", .sinks = 4}),
      Card("h2o", {.scorer = "h2o", .sinks = 0}),
      Card("tova", {.scorer = "tova", .sinks = 0, .recent = 0}),
      Card("snapkv", {.scorer = "snapkv",
                      .parameters = {{"window", kNewest}, {"kernel", 7}, {"pooling", 1}, {"own_columns", 1}},
                      .sinks = 0,
                      .recent = kNewest}),
      Card("knorm", {.scorer = "knorm", .parameters = {{"keep", 0}}, .sinks = 0, .recent = kNewest}),
      Card("keydiff", {.scorer = "keydiff", .sinks = 0, .recent = kNewest}),
      Card("longkey", {.scorer = "knorm", .parameters = {{"keep", 1}}, .sinks = 0, .recent = kNewest}),
      Card("random", {.scorer = "random", .parameters = {{"mode", 0}}, .sinks = 0, .recent = 0}),
  };
  return kTable;
}

}  // namespace

std::span<const Preset> Presets() { return Table(); }

const Preset* FindPreset(std::string_view name) {
  const auto preset = std::ranges::find(Table(), name, &Preset::name);
  return preset == Table().end() ? nullptr : &*preset;
}

}  // namespace ebb
