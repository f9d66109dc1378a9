// make_gguf_corpus FOLDER: writes the committed corpus of gguf_fuzz again. Small files, since a mutation of a small
// file is likelier to hit something: each kind of tensor and metadata once, and beginnings of files that are not read.

#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"

namespace ebb {
namespace {

const TinyModel kSmallest = {
    .layers = 1, .dim = 4, .heads = 2, .kv_heads = 1, .head_dim = 2, .ffn_dim = 4, .vocab = 3, .context = 8};

// Block formats need rows of 32.
const TinyModel kSmallestBlocks = {.layers = 1,
                                   .dim = 32,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .head_dim = 16,
                                   .ffn_dim = 32,
                                   .vocab = 2,
                                   .context = 8,
                                   .tied_head = true};

TinyModel Typed(TinyModel model, DType type) {
  model.type = type;
  return model;
}

// Every metadata type, arrays in arrays, another alignment, a tensor that is listed but not read.
GgufWriter Metadata(uint32_t version) {
  GgufWriter writer(version);
  writer.set_alignment(64);
  writer.Add("general.alignment", uint32_t{64});
  writer.Add("general.architecture", "qwen2");
  writer.Add("u8", uint8_t{1});
  writer.Add("i8", int8_t{-1});
  writer.Add("u16", uint16_t{1});
  writer.Add("i16", int16_t{-1});
  writer.Add("i32", int32_t{-1});
  writer.Add("f32", 0.5F);
  writer.Add("bool", true);
  writer.Add("u64", ~uint64_t{0});
  writer.Add("i64", int64_t{-1});
  writer.Add("f64", 0.25);
  writer.AddArray("strings", std::vector<std::string>{"a", "", "bc"});
  writer.AddArray("floats", std::vector<float>{1, -1});
  writer.AddArray("ints", std::vector<int32_t>{1, -1});
  std::vector<std::byte> nested;
  AppendBytes(nested, static_cast<uint32_t>(GgufType::kArray));
  AppendBytes(nested, uint64_t{1});
  AppendBytes(nested, static_cast<uint32_t>(GgufType::kBool));
  AppendBytes(nested, uint64_t{2});
  AppendBytes(nested, uint16_t{1});
  writer.AddRaw("nested", GgufType::kArray, nested);
  writer.AddRawTensor("cube", 24, {2, 2, 2, 1}, std::vector<std::byte>(8));
  writer.AddRawTensor("unheard", 77, {5}, std::vector<std::byte>(3));
  return writer;
}

GgufWriter Scaled() {
  GgufWriter writer = MakeTinyTransformer(Typed(kSmallest, DType::kBf16));
  writer.Add("llama.rope.scaling.type", "linear");
  writer.Add("llama.rope.scaling.factor", 2.0F);
  writer.AddTensor("rope_freqs.weight", DType::kF32, 0, 1, std::vector<float>{8});
  return writer;
}

// The keys that some family reads beside llama's, under a name of each.
GgufWriter Keys(const std::string& family) {
  GgufWriter writer;
  writer.Add("general.architecture", family);
  for (const char* const key : {"context_length", "embedding_length", "block_count", "feed_forward_length",
                                "attention.head_count", "attention.sliding_window", "attention.sliding_window_pattern",
                                "expert_count", "expert_used_count", "expert_feed_forward_length"}) {
    writer.Add(family + "." + key, uint32_t{2});
  }
  for (const char* const key : {"attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon",
                                "rope.freq_base_swa", "attn_logit_softcapping", "final_logit_softcapping"}) {
    writer.Add(family + "." + key, 1.0F);
  }
  writer.Add(family + ".use_parallel_residual", false);
  writer.AddTensor("token_embd.weight", DType::kF32, 3, 2, std::vector<float>(6, 1.0F));
  writer.AddTensor("blk.0.attn_qkv.weight", DType::kF32, 6, 2, std::vector<float>(12, 1.0F));
  writer.AddTensor("blk.0.attn_qkv.bias", DType::kF32, 0, 6, std::vector<float>(6, 1.0F));
  return writer;
}

GgufWriter Raw(uint32_t version) {
  GgufWriter writer(version);
  writer.Add("k", uint8_t{1});
  return writer;
}

void WriteAll(const std::string& folder) {
  MakeTinyTransformer(Typed(kSmallest, DType::kF32)).Write(folder + "/llama_f32");
  MakeTinyTransformer(Typed(kSmallest, DType::kF16)).Write(folder + "/llama_f16");
  MakeTinyTransformer(Typed(kSmallestBlocks, DType::kQ8_0)).Write(folder + "/llama_q8_0");
  MakeTinyTransformer(Typed(kSmallestBlocks, DType::kQ4_0)).Write(folder + "/llama_q4_0");
  Scaled().Write(folder + "/llama_scaled");
  for (const char* const family : {"gemma3", "gptneox", "phi3", "qwen3moe"}) {
    Keys(family).Write(folder + "/keys_" + family);
  }
  Metadata(2).Write(folder + "/metadata_v2");
  Metadata(3).Write(folder + "/metadata_v3");
  Raw(1).Write(folder + "/version_1");
  Raw(0x03000000).Write(folder + "/big_endian");
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_gguf_corpus FOLDER\n");
    return 2;
  }
  ebb::WriteAll(argv[1]);
  return 0;
}
