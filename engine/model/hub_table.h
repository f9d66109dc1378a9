// How model hubs lay out the families of architecture_table.h: which number of config.json is which key of ours, and
// which tensor of the safetensors files is which of ours. A family is a row.

#ifndef EBB_ENGINE_MODEL_HUB_TABLE_H_
#define EBB_ENGINE_MODEL_HUB_TABLE_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace ebb {

// A number of config.json that is written as a key.
struct HubKey {
  enum class Kind { kInt, kReal, kFlag };
  enum class Missing { kRefused, kLeftOut, kFallback };  // or null
  std::string_view name = {};
  std::string_view key = {};  // behind "ARCHITECTURE."
  Kind kind = Kind::kInt;
  Missing missing = Missing::kRefused;
  double fallback = 0;
};

// A number or flag of config.json that would make it another model, unless it has this value; missing, it has
// `otherwise`.
struct HubDemand {
  std::string_view name = {};
  double value = 0;
  double otherwise = 0;
};

// What is done to a tensor on its way. Heads are of head_dim rows each.
enum class HubLayout {
  kSame,
  kQueryPairs,  // the rows of each query head: from (i, i + head_dim / 2) that RoPE turns together to neighbours
  kKeyPairs,    // the same of each key head
  kByHead,      // from query, key and value rows of each head to all queries, all keys, all values
  kTransposed,  // from [in, out]
  kPlusOne,     // a norm's weight is stored less 1
  kFromRow2,    // the first two rows are no positions
  kExpert,      // '*' in the name is the expert's number; one after another they are ours
};

struct HubTensor {
  std::string_view name = {};  // behind the family's prefix, or behind "LAYERS.N."
  std::string_view ours = {};  // of a layer behind "blk.N."
  HubLayout layout = HubLayout::kSame;
};

// What a row leaves out is as most families have it.
struct HubFamily {
  std::string_view model_type = {};            // of config.json
  std::string_view architecture = {};          // of architecture_table.h
  std::string_view prefix = "model.";          // of names; may be left out in the file
  std::string_view layers = "layers.";         // behind the prefix, before a layer's number
  std::string_view activation = "hidden_act";  // of config.json; empty: there is only one
  bool tied = false;                           // the head is the embedding, unless `tie_word_embeddings` says otherwise
  // Of a feed-forward part whose size config.json leaves out: so many times the width.
  int32_t ffn_widths = 0;
  std::string_view rotary_part = {};  // the part of a head that RoPE turns
  double rotary_otherwise = 1;
  std::string_view query_scale = {};  // must be what the architecture divides scores by, squared
  std::span<const HubKey> keys = {};
  std::span<const HubDemand> demands = {};
  std::span<const HubTensor> model_tensors = {};
  std::span<const HubTensor> layer_tensors = {};
};

inline constexpr std::string_view kHubHead = "lm_head.weight";  // left out, or not read, where the head is tied

// RoPE's frequencies and masks, which layers of old checkpoints hold: they follow from the configuration.
inline constexpr std::string_view kHubUnused[] = {"self_attn.rotary_emb.inv_freq",
                                                  "attention.rotary_emb.inv_freq",
                                                  "attention.bias",
                                                  "attention.masked_bias",
                                                  "attn.bias",
                                                  "attn.masked_bias"};

std::span<const HubFamily> HubFamilies();

// The row by model_type, or null.
const HubFamily* FindHubFamily(std::string_view model_type);

}  // namespace ebb

#endif  // EBB_ENGINE_MODEL_HUB_TABLE_H_
