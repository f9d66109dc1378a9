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
#include <string_view>
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

// The token that a key names; absent where the file has no such key. MODEL_DAMAGED: it is no id.
absl::StatusOr<std::optional<int32_t>> ReadTokenId(const GgufFile& file, std::string_view key);

// Unless it is among them.
void AddEnd(int32_t id, HubEnds& ends);

// As keys of a GGUF file: bos_token_id; eos_token_id, eot_token_id and eom_token_id. Reading: MODEL_DAMAGED. Writing:
// UNSUPPORTED_MODEL_FEATURE, which names `name`: more than three.
bool IsEndKey(std::string_view key);
absl::StatusOr<HubEnds> ReadEnds(const GgufFile& file);
absl::Status WriteEnds(const std::string& name, const HubEnds& ends, GgufHeader& header);

// Adds the keys, with empty tokens up to `vocab` (0: as many as the file has); where the folder has no tokenizer.json,
// `ends` alone. Errors name file and place: MODEL_DAMAGED, UNSUPPORTED_TOKENIZER; UNSUPPORTED_MODEL_FEATURE: more ends
// than three.
absl::Status AddHubTokenizer(const std::string& folder, const ReadHubFile& read, int64_t vocab, HubEnds ends,
                             GgufHeader& header);

// A tokenizer by its path: of a folder alone, as a file without tensors, and a model need not be in it, whose `vocab`
// and `ends` are as above; else a GGUF file. NOT_FOUND FILE_UNREADABLE: there is no tokenizer.json.
absl::StatusOr<GgufFile> OpenTokenizerFile(const std::string& path, int64_t vocab = 0, HubEnds ends = {});

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_HUB_TOKENIZER_H_
