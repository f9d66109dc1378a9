#include "engine/lab/record.h"

#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// A name may hold whatever a command line does.
template <typename Object>
std::string LineOf(const Object& object) {
  return object.dump(-1, ' ', false, Object::error_handler_t::replace) + "\n";
}

// "--length is 900 there and 800 here", for each that is not the same on both sides.
std::vector<std::string> Differences(const OrderedJson& there, const OrderedJson& here) {
  OrderedJson all = there;
  all.update(here);
  std::vector<std::string> differences;
  for (const auto& [name, _] : all.items()) {
    const std::string was = there.value(name, "not given");
    const std::string is = here.value(name, "not given");
    if (was != is) differences.push_back(absl::StrFormat("%s is %s there and %s here", name, was, is));
  }
  return differences;
}

}  // namespace

std::string HashOf(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return absl::StrFormat("%016x", hash);
}

absl::StatusOr<Record> Record::Open(const std::string& path, const Settings& run) {
  Record record;
  record.path_ = path;
  if (path.empty()) return record;
  OrderedJson here = OrderedJson::object();
  for (const Setting& setting : run) here[setting.name] = setting.value;
  const std::string first = LineOf(here);
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) return record.NotWritten();
  std::string text;
  if (std::ifstream there(path, std::ios::binary); there.is_open()) {
    text.assign(std::istreambuf_iterator<char>(there), {});
  }
  const size_t end = text.find_last_of('\n') + 1;  // 0 where no line is whole
  if (end > 0) {
    const OrderedJson there = OrderedJson::parse(text.substr(0, text.find('\n')), nullptr, false);
    if (!there.is_object() || !there.contains("ebb-lab")) return record.NotALine(1);
    for (const auto& [_, value] : there.items()) {
      if (!value.is_string()) return record.NotALine(1);
    }
    const std::vector<std::string> differences = Differences(there, here);
    if (!differences.empty()) {
      return absl::FailedPreconditionError(absl::StrFormat("--resume: %s is of another run: %s. Name another file",
                                                           path, absl::StrJoin(differences, "; ")));
    }
    EBB_TRY(record.Read(text.substr(0, end)));
  } else if (!first.starts_with(text)) {
    return record.NotALine(1);
  }
  // What is whole is never written again, so no interruption can lose it.
  failure.clear();  // that there is no such file yet
  if (end < text.size()) std::filesystem::resize_file(path, end, failure);
  record.file_.open(path, std::ios::binary | std::ios::app);
  if (failure || !record.file_) return record.NotWritten();
  if (end == 0) EBB_TRY(record.Append(first));
  return record;
}

absl::Status Record::Read(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text.substr(0, text.size() - 1), '\n');
  for (size_t i = 1; i < lines.size(); ++i) {
    Json line = Json::parse(lines[i], nullptr, false);
    if (!line.is_object() || line.size() != 2 || !line.contains("what") || !line["what"].is_string() ||
        !line.contains("is")) {
      return NotALine(i + 1);
    }
    lines_.try_emplace(line["what"].get<std::string>(), Line{.number = i + 1, .value = std::move(line["is"])});
  }
  return absl::OkStatus();
}

absl::Status Record::Add(const std::string& what, const Json& value) {
  if (path_.empty()) return absl::OkStatus();
  return Append(LineOf(OrderedJson({{"what", what}, {"is", value}})));
}

absl::Status Record::Append(const std::string& line) {
  file_ << line;
  file_.flush();
  return file_ ? absl::OkStatus() : NotWritten();
}

absl::Status Record::NotALine(size_t number) const {
  return absl::DataLossError(absl::StrFormat("--resume: %s:%d: not a line of a run's record", path_, number));
}

absl::Status Record::NotWritten() const {
  return absl::UnavailableError(absl::StrFormat("--resume: %s: cannot be written", path_));
}

}  // namespace ebb::lab
