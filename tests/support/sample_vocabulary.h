// Small vocabularies for tests: byte-level BPE and SPM, complete, so that any bytes can be encoded.

#ifndef EBB_TESTS_SUPPORT_SAMPLE_VOCABULARY_H_
#define EBB_TESTS_SUPPORT_SAMPLE_VOCABULARY_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/vocabulary.h"

namespace ebb {

// How GGUF files write bytes in byte-level vocabularies: 0x20 is U+0120.
std::string PrintableBytes(std::string_view bytes);

// Byte 0xNN is token NN; then one token per merge, in order; then the controls: <|begin|>, <|end|>, <|user|>. A merge
// is two byte strings whose tokens exist by then. bos is <|begin|>, eos is <|end|>.
Vocabulary SampleBpe(const std::string& pre, const std::vector<std::pair<std::string, std::string>>& merges);

// 0 <unk>, 1 <s> (bos), 2 </s> (eos), byte 0xNN is token 3 + NN, then one token per piece from 259 on, its score the
// negative of its index in `pieces`; in a piece U+2581 stands for a space.
Vocabulary SampleSpm(const std::vector<std::string>& pieces);

// The same as a tokenizer.json: of SampleBpe byte-level BPE by GPT-2's rule, of SampleSpm Unigram with bytes, which
// puts a space before a text.
nlohmann::json SampleTokenizerJson(const Vocabulary& vocabulary);

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_SAMPLE_VOCABULARY_H_
