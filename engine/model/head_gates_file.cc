#include "engine/model/head_gates_file.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/file_beside.h"
#include "engine/model/model_path.h"
#include "policies/check.h"
#include "policies/status.h"

namespace ebb {
namespace {

absl::Status Damaged(const std::string& path, const std::string& place, const std::string& expected) {
  return Refuse(absl::StatusCode::kDataLoss, absl::StrFormat("%s: %s: expected %s", path, place, expected),
                {.reason = "HEAD_GATES_DAMAGED"});
}

absl::Status Foreign(const std::string& name, const std::string& made_for, const std::string& model) {
  return Refuse(absl::StatusCode::kFailedPrecondition,
                absl::StrFormat("policy.duo: %s was made for the model %s, and this is %s; make one with `ebb-lab "
                                "heads`, or use another allocation",
                                name, made_for, model),
                {.reason = "HEAD_GATES_FOREIGN", .field = "policy.duo"});
}

constexpr FileBeside kKind = {
    .ending = ".heads.json", .format = "ebb head gates", .damaged = Damaged, .foreign = Foreign};

// The gates of one layer, appended.
absl::Status ReadRow(const std::string& path, const OrderedJson& row, int32_t layer, int32_t kv_heads,
                     HeadGates& gates) {
  const std::string place = absl::StrFormat("gates[%d]", layer);
  if (!row.is_array() || static_cast<int64_t>(row.size()) != kv_heads) {
    return Damaged(path, place, absl::StrFormat("%d gates, found %s", kv_heads, row.dump()));
  }
  for (size_t head = 0; head < row.size(); ++head) {
    const double gate = row[head].is_number() ? row[head].get<double>() : -1;
    if (!(gate >= 0 && gate <= 1)) {
      return Damaged(path, absl::StrFormat("%s[%d]", place, head), "a number in [0, 1], found " + row[head].dump());
    }
    gates.push_back(gate);
  }
  return absl::OkStatus();
}

}  // namespace

std::string HeadGatesPath(const std::string& model_path) { return PathBeside(model_path, kKind.ending); }

HeadGatesOr ReadHeadGates(const std::string& path, const ModelConfig& model) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return HeadGatesMissing(NameOfFile(path));
  return ParseHeadGates(path, std::string((std::istreambuf_iterator<char>(file)), {}), model);
}

HeadGatesOr ParseHeadGates(const std::string& path, const std::string& text, const ModelConfig& model) {
  EBB_ASSIGN(const OrderedJson json, ParseBeside(kKind, path, text));
  EBB_TRY(CheckHeadBeside(kKind, path, json, model));
  const OrderedJson rows = json.value("gates", OrderedJson());
  if (!rows.is_array() || static_cast<int64_t>(rows.size()) != model.layers) {
    return Damaged(path, "gates", absl::StrFormat("a row for each of %d layers", model.layers));
  }
  HeadGates gates;
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    EBB_TRY(ReadRow(path, rows[static_cast<size_t>(layer)], layer, model.kv_heads, gates));
  }
  return std::make_shared<const HeadGates>(std::move(gates));
}

absl::Status WriteHeadGates(const std::string& path, const ModelConfig& model, const std::string& source,
                            const HeadGates& gates) {
  EBB_CHECK(static_cast<int64_t>(gates.size()) == int64_t{model.layers} * model.kv_heads);
  OrderedJson json = HeadBeside(kKind, model, source);
  json["gates"] = OrderedJson::array();
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    const auto first = gates.begin() + std::ptrdiff_t{layer} * model.kv_heads;
    json["gates"].push_back(std::vector<double>(first, first + model.kv_heads));
  }
  return WriteBeside(path, json);
}

}  // namespace ebb
