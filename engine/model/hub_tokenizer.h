// The tokenizer of a hub's folder: tokenizer.json, tokenizer_config.json and chat_template.jinja, written as the keys
// of a GGUF file. The vocabulary becomes the keys that such files have; how text is cut, which they have only names
// for, is kept as tokenizer.json says it, in a key of our own. Its meaning is not read here
// (engine/text/tokenizer_rules.h).

#ifndef EBB_ENGINE_MODEL_HUB_TOKENIZER_H_
#define EBB_ENGINE_MODEL_HUB_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/model/gguf_header.h"

namespace ebb {

// A file of the folder, by its name; NOT_FOUND where there is none. The bytes outlive what is made of them.
using ReadHubFile = std::function<absl::StatusOr<std::span<const std::byte>>(const std::string& name)>;

// tokenizer.json without its vocabulary and merges, and with those added tokens only that say more than the vocabulary.
inline constexpr char kTokenizerRulesKey[] = "tokenizer.ebb.rules";

// Tokens that end a text: eos, eot and eom are all that files have keys for.
inline constexpr size_t kEndsMax = 3;

// Tokens that a model's configuration names.
struct HubEnds {
  std::optional<int32_t> bos = {};
  std::vector<int32_t> eos = {};  // all that end a text
};

// Adds the keys, with empty tokens up to `vocab` (0: as many as the file has); where the folder has no tokenizer.json,
// `ends` alone. Errors name file and place: MODEL_DAMAGED, UNSUPPORTED_TOKENIZER; UNSUPPORTED_MODEL_FEATURE: more ends
// than three.
absl::Status AddHubTokenizer(const std::string& folder, const ReadHubFile& read, int64_t vocab, HubEnds ends,
                             GgufHeader& header);

// A tokenizer by its path: of a folder alone, as a file without tensors, and a model need not be in it; else a GGUF
// file. NOT_FOUND FILE_UNREADABLE: there is no tokenizer.json.
absl::StatusOr<GgufFile> OpenTokenizerFile(const std::string& path);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_HUB_TOKENIZER_H_
