#include "server/config_yaml.h"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "policies/status.h"

namespace ebb {
namespace {

constexpr size_t kDepthMax = 4;  // the schema's deepest key is tenants: {NAME: {key: ...}}
constexpr size_t kKeyBytesMax = 64;
constexpr size_t kSettingsMax = 50000;

absl::Status Bad(const std::string& file, int line, std::string_view what) {
  const std::string where = line > 0 ? absl::StrCat(file, ":", line) : file;
  return Refuse(absl::StatusCode::kInvalidArgument, absl::StrCat(where, ": ", std::string(what)),
                {.reason = "BAD_YAML"});
}

// Receives the parser's events; after the first error it ignores the rest.
class Collector final : public YAML::EventHandler {
 public:
  explicit Collector(const std::string& file) : file_(file) {}

  const absl::Status& status() const { return status_; }
  std::vector<ConfigSetting> Take() { return std::move(settings_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (!status_.ok() || maps_ == 0) return;  // an empty file has one null and no map
    if (TakesKey()) return Fail(mark, "a key is missing before ':'");
    Add(mark, std::nullopt);
    path_.pop_back();
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Fail(mark, "aliases (*name) are not supported"); }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    if (!status_.ok()) return;
    if (!tag.empty() && tag != "?" && tag != "!" && tag != "tag:yaml.org,2002:str") {
      return Fail(mark, absl::StrFormat("the tag %s is not supported", tag.substr(0, kKeyBytesMax)));
    }
    if (maps_ == 0) return Fail(mark, "expected keys, such as `server:`");
    if (TakesKey()) return AddKey(mark, value);
    Add(mark, value);
    path_.pop_back();
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    if (!status_.ok()) return;
    if (maps_ == 0 || TakesKey()) return Fail(mark, "expected keys, such as `server:`, not a list");
    Fail(mark, absl::StrCat(absl::StrJoin(path_, "."), ": expected one value, not a list"));
  }
  void OnSequenceEnd() override {}

  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    if (!status_.ok()) return;
    if (TakesKey()) return Fail(mark, "a key must be text");
    if (maps_ == kDepthMax) return Fail(mark, absl::StrFormat("nested deeper than %d", kDepthMax));
    if (maps_ > 0) Add(mark, std::nullopt);
    ++maps_;
  }

  void OnMapEnd() override {
    if (!status_.ok()) return;
    --maps_;
    if (maps_ > 0) path_.pop_back();
  }

 private:
  // Inside a map, `path_` has as many keys as there are maps when a value comes next, and one less when a key does.
  bool TakesKey() const { return maps_ > 0 && path_.size() < maps_; }

  void Fail(const YAML::Mark& mark, std::string_view what) {
    if (status_.ok()) status_ = Bad(file_, mark.line + 1, what);
  }

  void AddKey(const YAML::Mark& mark, const std::string& key) {
    if (key.empty() || key.size() > kKeyBytesMax) {
      return Fail(mark, absl::StrFormat("a key has 1 to %d characters", kKeyBytesMax));
    }
    path_.push_back(key);
    key_line_ = mark.line + 1;
    if (const auto [first, added] = lines_.emplace(path_, key_line_); !added) {
      Fail(mark, absl::StrFormat("%s is given twice, first in line %d", absl::StrJoin(path_, "."), first->second));
    }
  }

  // The value of the key that came last.
  void Add(const YAML::Mark& mark, std::optional<std::string> text) {
    if (settings_.size() == kSettingsMax) return Fail(mark, absl::StrFormat("more than %d keys", kSettingsMax));
    settings_.push_back({.path = path_, .text = std::move(text), .origin = absl::StrCat(file_, ":", key_line_)});
  }

  const std::string& file_;
  absl::Status status_;
  size_t maps_ = 0;  // open ones
  ConfigPath path_;
  int key_line_ = 0;
  std::map<ConfigPath, int> lines_;  // of each key
  std::vector<ConfigSetting> settings_;
};

absl::Status Parse(std::string_view yaml, const std::string& file, Collector& collector) {
  try {
    std::istringstream stream{std::string(yaml)};
    YAML::Parser parser(stream);
    parser.HandleNextDocument(collector);
    EBB_TRY(collector.status());
    Collector rest(file);
    if (parser.HandleNextDocument(rest)) return Bad(file, 0, "holds more than one document");
  } catch (const YAML::DeepRecursion& error) {
    return Bad(file, error.mark.line + 1, "nested far too deeply");
  } catch (const YAML::Exception& error) {
    return Bad(file, error.mark.is_null() ? 0 : error.mark.line + 1, error.msg);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ConfigSetting>> ReadConfigYaml(std::string_view yaml, const std::string& file) {
  if (yaml.size() > kConfigBytesMax) {
    return Bad(file, 0,
               absl::StrFormat("%d bytes are too many for a configuration, at most %d", yaml.size(), kConfigBytesMax));
  }
  if (yaml.find('\0') != std::string_view::npos) return Bad(file, 0, "holds a NUL byte, so it is no text");
  Collector collector(file);
  EBB_TRY(Parse(yaml, file, collector));
  return collector.Take();
}

}  // namespace ebb
