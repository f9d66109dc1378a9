#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/delta_rotation.h"
#include "engine/lab/lab.h"
#include "engine/lab/table.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

struct RotationOptions {
  DeltaRotation rotation = {};
  std::vector<int32_t> drops = {1, 8, 32, 512};
  int32_t query_heads = 32;
  int32_t kv_heads = 8;
  TableForm form = TableForm::kText;
};

absl::Status RunRotation(const RotationOptions& options) {
  Table table = {.header = {"stored", "dropped at once", "rotations of a key", "key error", "rotated once",
                            "products a token, keys", "products a token, query"}};
  for (const auto& [name, type] : {std::pair("f32", KvType::kF32), std::pair("bf16", KvType::kBf16)}) {
    for (const int32_t drop : options.drops) {
      if (drop > options.rotation.recent) {
        return absl::InvalidArgumentError(
            absl::StrFormat("--drops: %d exceeds --recent %d", drop, options.rotation.recent));
      }
      DeltaRotation rotation = options.rotation;
      rotation.drop = drop;
      rotation.stored = type;
      const RotationError error = MeasureDeltaRotation(rotation);
      const int64_t keys = KeyRotationProducts(rotation.recent, options.kv_heads, rotation.head_dim);
      table.rows.push_back({name, absl::StrFormat("%d", drop), absl::StrFormat("%d", error.rotations),
                            absl::StrFormat("%.2e", error.key), absl::StrFormat("%.2e", error.once),
                            absl::StrFormat("%.0f", static_cast<double>(keys) / drop),
                            absl::StrFormat("%d", QuerySegmentProducts(options.query_heads, rotation.head_dim))});
    }
  }
  absl::PrintF("%s", Format(table, options.form));
  return absl::OkStatus();
}

}  // namespace

void AddRotation(Command app, Lab& lab) {
  const Command command =
      app.add_subcommand("rotation", "What rotating stored keys at every pruning loses and costs; needs no model");
  const auto options = std::make_shared<RotationOptions>();
  DeltaRotation& rotation = options->rotation;
  command.add_option("--head-dim", rotation.head_dim, "Of a key; even").range(2, 1024).capture_default_str();
  command.add_option("--theta", rotation.theta, "Of RoPE").positive().capture_default_str();
  command.add_option("--recent", rotation.recent, "Tokens behind the sinks").range(1, 1 << 20).capture_default_str();
  command.add_option("--drops", options->drops, "Tokens that leave at one pruning")
      .delimiter(',')
      .range(1, 1 << 20)
      .capture_default_str();
  command.add_option("--query-heads", options->query_heads, "Per layer").range(1, 1024).capture_default_str();
  command.add_option("--kv-heads", options->kv_heads, "Per layer").range(1, 1024).capture_default_str();
  command.add_option("--keys", rotation.keys, "Random keys").range(1, 1 << 20).capture_default_str();
  command.add_option("--seed", rotation.seed, "Of the keys").non_negative().capture_default_str();
  AddTableOptions(command, options->form);
  command.footer(
      "Lazy Pruning shifts what is behind the dropped tokens by rotating every stored key, k' = R(-D) k, and storing "
      "it\n"
      "again. key error: |k' - k exact| / |k| when the key leaves, after all its rotations; rotated once: the same of "
      "a\n"
      "key that is rotated to its place from the raw one. Products: multiplications per layer and token that came, of\n"
      "rotating all keys at a pruning, and of rotating the query a second time for a segment whose keys rest.");
  command.callback([&lab, options] {
    if (options->rotation.head_dim % 2 != 0) {
      lab.Check(absl::InvalidArgumentError(absl::StrFormat("--head-dim: %d is odd", options->rotation.head_dim)));
    } else {
      lab.Check(RunRotation(*options));
    }
  });
}

}  // namespace ebb::lab
