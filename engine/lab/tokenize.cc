#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/lab.h"
#include "engine/model/gguf.h"
#include "engine/text/tokenizer.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

using Json = nlohmann::json;

struct TokenizeOptions {
  std::string model = {};
  std::string text = {};
  bool special = false;
};

absl::Status RunTokenize(const Lab& lab, const TokenizeOptions& options) {
  EBB_ASSIGN(const auto tokenizer, Tokenizer::Open(options.model));
  const std::vector<int32_t> ids = tokenizer->Encode(options.text, options.special ? Special::kParse : Special::kPlain,
                                                     options.special ? Start::kSequence : Start::kText);
  if (lab.json) {
    Json json = {{"tokens", ids}};
    for (const int32_t id : ids) json["pieces"].push_back(tokenizer->Decode({&id, 1}, Special::kParse));
    // Pieces may be cut inside a character.
    absl::PrintF("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
    return absl::OkStatus();
  }
  for (const int32_t id : ids) {
    absl::PrintF("%6d  %s\n", id, Printable(tokenizer->Decode({&id, 1}, Special::kParse)));
  }
  return absl::OkStatus();
}

}  // namespace

void AddTokenize(Command app, Lab& lab) {
  const Command command = app.add_subcommand("tokenize", "Cut a text into tokens");
  const auto options = std::make_shared<TokenizeOptions>();
  command.add_option("FILE", options->model, "Model file (GGUF), or a folder with tokenizer.json").required();
  command.add_option("TEXT", options->text, "The text").required();
  command.add_flag("--special", options->special,
                   "The text is trusted and begins a sequence: names of control tokens become these tokens");
  command.callback([&lab, options] { lab.Check(RunTokenize(lab, *options)); });
}

}  // namespace ebb::lab
