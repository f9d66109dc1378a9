// Any bytes as a token file. A refusal names one of its lines, and in few words, so that nothing of the line is among
// them; what is taken can be added to, is the same with comments and in other white space, and lets nobody else in.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "policies/check.h"
#include "policies/status.h"
#include "server/tokens.h"

namespace ebb {
namespace {

constexpr size_t kMessagesMax = 4;
constexpr char kToken[] = "fuzz-7d1c";  // its line, by sha256sum
constexpr char kLine[] = "\nfuzz sha256:a75cde528e4fcec4f39df2f135b56c89cf66cf08dc4daf72464c45cf2d4f93ad admin\n";

void CheckRefusal(const absl::Status& status, size_t lines) {
  static std::set<std::string> messages;
  EBB_CHECK(GetRefusal(status).reason == "BAD_TOKEN_FILE");
  const std::vector<std::string> words = absl::StrSplit(std::string(status.message()), absl::MaxSplits(": ", 1));
  size_t number = 0;
  EBB_CHECK(words.size() == 2 && absl::StartsWith(words[0], "line ") && absl::SimpleAtoi(words[0].substr(5), &number));
  EBB_CHECK(number >= 1 && number <= lines);
  messages.insert(words[1]);
  EBB_CHECK(messages.size() <= kMessagesMax);
}

void CheckFile(const std::string& text) {
  const auto tokens = BearerTokens::Parse(text);
  const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  if (!tokens.ok()) return CheckRefusal(tokens.status(), lines);
  EBB_CHECK(tokens->size() <= lines);
  EBB_CHECK(tokens->Find(text) == nullptr);
  const auto dressed =
      BearerTokens::Parse("# first\n" + absl::StrReplaceAll(text, {{"\n", "\t# comment\r\n\n"}, {" ", " \t"}}));
  EBB_CHECK(dressed.ok() && dressed->size() == tokens->size());

  const auto more = BearerTokens::Parse(text + kLine);
  if (tokens->Find(kToken) != nullptr) {
    EBB_CHECK(!more.ok());
    return;
  }
  EBB_CHECK(more.ok() && more->size() == tokens->size() + 1);
  const Caller* const caller = more->Find(kToken);
  EBB_CHECK(caller != nullptr && caller->tenant == "fuzz" && caller->admin);
  EBB_CHECK(!BearerTokens::Parse(text + kLine + kLine).ok());
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::CheckFile({reinterpret_cast<const char*>(data), size});
  return 0;
}
