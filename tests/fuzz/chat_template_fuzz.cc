// Any bytes as a chat template and messages. It must be refused or rendered within its limits, and what a message says
// must never come out as the template's own word.
//
// Fields end at 0xFF. The first is the template; of each further one the first byte is the role (s, u, a, t) and the
// rest the content, of which every byte becomes 0x7F: no template that cannot spell 0x7F may vouch for one.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/json.h"
#include "engine/text/jinja/template.h"
#include "policies/check.h"

namespace ebb::jinja {
namespace {

constexpr char kContent = '\x7F';

std::string_view Role(char first) {
  switch (first) {
    case 's':
      return "system";
    case 'a':
      return "assistant";
    case 't':
      return "tool";
    default:
      return "user";
  }
}

List Messages(std::string_view input) {
  List messages;
  while (!input.empty()) {
    const std::string_view field = input.substr(0, input.find('\xFF'));
    input.remove_prefix(std::min(field.size() + 1, input.size()));
    if (field.empty()) continue;
    Dict dict;
    dict.Set("role", Value::Trusted(Role(field[0])));
    dict.Set("content", Value::Said(std::string(field.size() - 1, kContent)));
    messages.emplace_back(std::move(dict));
  }
  return messages;
}

void Run(std::string_view input) {
  const std::string_view source = input.substr(0, input.find('\xFF'));
  const absl::StatusOr<Template> made = Template::Parse(source);
  if (!made.ok()) return;
  const std::string said = "\"" + std::string(3, kContent) + "\"";
  const absl::StatusOr<Value> tools =
      FromJson(R"([{"name": )" + said + R"(, "list": [1, 2.5, null, true, {"a": )" + said + "}]}]");
  EBB_CHECK(tools.ok());
  const Limits limits = {.work = 100'000, .output_bytes = 100'000};
  const auto text =
      made->Render({{"messages", Value(Messages(input.substr(std::min(source.size() + 1, input.size()))))},
                    {"tools", *tools},
                    {"add_generation_prompt", Value(true)},
                    {"bos_token", Value::Trusted("<s>")},
                    {"eos_token", Value::Trusted("</s>")}},
                   {.limits = limits});
  if (!text.ok()) return;
  EBB_CHECK(text->size() <= limits.output_bytes);
  const bool spells = source.find('\\') != std::string_view::npos || source.find(kContent) != std::string_view::npos;
  for (size_t i = 0; i < text->size() && !spells; ++i) {
    EBB_CHECK(text->bytes()[i] != kContent || text->origin(i) != Origin::kTemplate);
  }
}

}  // namespace
}  // namespace ebb::jinja

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::jinja::Run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
