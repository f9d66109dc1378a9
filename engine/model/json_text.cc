#include "engine/model/json_text.h"

#include <optional>
#include <set>

#include "absl/strings/str_format.h"
#include "engine/model/gguf.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr int kDepthMax = 16;

}  // namespace

absl::Status DamagedJson(const std::string& file, const std::string& where, const std::string& expected,
                         const std::string& found) {
  const std::string place = where.empty() ? "" : where + ": ";
  return Refuse(absl::StatusCode::kDataLoss,
                absl::StrFormat("%s: %sexpected %s, found %s", file, place, expected, found),
                {.reason = "MODEL_DAMAGED", .metadata = {{"file", file}}});
}

absl::StatusOr<nlohmann::json> ParseJsonObject(const std::string& file, std::string_view text, int64_t offset) {
  std::set<std::string, std::less<>> names;
  std::optional<std::string> twice;
  bool deep = false;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    if (event == nlohmann::json::parse_event_t::key && depth == 1 &&
        !names.insert(parsed.get_ref<const std::string&>()).second) {
      twice = parsed.get<std::string>();
    }
    deep = deep || depth > kDepthMax;
    return depth <= kDepthMax;  // deeper ones are dropped as they come
  };
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::parse_error& error) {
    const int64_t byte = offset + static_cast<int64_t>(error.byte == 0 ? 0 : error.byte - 1);
    return DamagedJson(file, absl::StrFormat("byte %d", byte), "JSON", "what is none there");
  } catch (const nlohmann::json::exception&) {  // a number beyond what a double holds
    return DamagedJson(file, "", "JSON whose numbers fit 64 bits", "one that does not");
  }
  if (twice) return DamagedJson(file, "", "each name once", Printable(*twice) + " again");
  if (deep) return DamagedJson(file, "", absl::StrFormat("JSON nested at most %d deep", kDepthMax), "more");
  if (!json.is_object()) return DamagedJson(file, "", "a JSON object", ShowJson(json));
  return json;
}

std::string ShowJson(const nlohmann::json& value) {
  constexpr size_t kMost = 80;
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);  // ASCII, and escaped
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

}  // namespace ebb
