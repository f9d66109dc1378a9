#!/usr/bin/env python3
"""Writes the committed corpus of safetensors_fuzz, hub_fuzz, hub_tokenizer_fuzz and split_fuzz again: small sound inputs to mutate.

    make_model_corpus.py CORPUS
"""

import json
import struct
import sys
from pathlib import Path


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def text(s):
    return struct.pack("<Q", len(s)) + s


def part(number, count, tensors, total, keys=()):
    """A GGUF file with vectors of two floats by these names."""
    pairs = [text(b"split.no") + struct.pack("<IH", 2, number), text(b"split.count") + struct.pack("<IH", 2, count),
             text(b"split.tensors.count") + struct.pack("<Ii", 5, total)]
    pairs += [text(key) + struct.pack("<I", 8) + text(value) for key, value in keys]
    directory = b"".join(text(name) + struct.pack("<IQIQ", 1, 2, 0, 32 * i) for i, name in enumerate(tensors))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + directory
    return head + bytes(-len(head) % 32) + b"".join(struct.pack("<2f", 1, 2) + bytes(24) for _ in tensors)


def packed(parts):
    out = b""
    for one in parts:
        one += bytes(-len(one) % 16)
        out += bytes([len(one) // 16]) + one
    return out


CONFIG = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 12, "rms_norm_eps": 1e-5,
          "max_position_embeddings": 64, "num_attention_heads": 2, "hidden_act": "silu", "num_key_value_heads": 1,
          "tie_word_embeddings": False, "rope_theta": 10000.0, "eos_token_id": 2}


def printable():
    """The characters that stand for bytes, by byte."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(256))
    return [chr(byte if byte in prints else 256 + next(rest)) for byte in range(256)]


def tokenizer(model, config=None, **parts):
    """A tokenizer.json, and behind a zero byte a tokenizer_config.json."""
    special = [{"id": 0, "content": "<s>", "special": True}, {"id": 1, "content": "</s>", "special": True, "lstrip": True, "normalized": True}]
    file = {"added_tokens": special, "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, **parts, "model": model}
    text = json.dumps(file, separators=(",", ":")).encode()
    return text + (b"\0" + json.dumps(config).encode() if config else b"")


def vocabulary(*texts):
    return {text: i for i, text in enumerate(["<s>", "</s>", "<unk>", *texts])}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}
METASPACE = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True}
BPE = {"type": "BPE", "vocab": vocabulary(*printable(), "he", "ll"), "merges": ["h e", ["l", "l"]], "ignore_merges": True}
CHARACTERS = {"type": "BPE", "vocab": vocabulary("h", "e", "he", "_"), "merges": ["h e"], "unk_token": "<unk>", "fuse_unk": True}
FALLBACK = {"type": "BPE", "vocab": vocabulary(*(f"<0x{i:02X}>" for i in range(256)), "h", "e", "he", "_"), "merges": ["h e"], "byte_fallback": True}
UNIGRAM = {"type": "Unigram", "vocab": [["<s>", 0], ["</s>", 0], ["<unk>", 0], ["h", -1.5], ["he", -2], ["_", -1]], "unk_id": 2}
F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
INPUTS = {
    "safetensors": {
        "one": safetensors({"t": F32}, bytes(8)),
        "two": safetensors({"a": F32, "b": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [8, 12]}}, bytes(12)),
        "metadata": safetensors({"__metadata__": {"format": "pt"}, "e": {"dtype": "I8", "shape": [0], "data_offsets": [0, 0]}}),
        "overlap": safetensors({"a": F32, "b": {**F32, "data_offsets": [4, 12]}}, bytes(12)),
        "twice": safetensors(b'{"t":{},"t":{}}'),
        "deep": safetensors(b"[" * 40 + b"]" * 40),
    },
    "hub_tokenizer": {
        "bytes": tokenizer(BPE, {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True, "chat_template": "T"},
                           pre_tokenizer=BYTE_LEVEL, decoder=BYTE_LEVEL, normalizer={"type": "NFC"}),
        "cuts": tokenizer(BPE, decoder=BYTE_LEVEL, pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}|[^\s\w]+"}, "behavior": "MergedWithNext", "invert": True},
            {"type": "Punctuation", "behavior": "Contiguous"}, {**BYTE_LEVEL, "use_regex": False}, {"type": "Digits", "individual_digits": True}]}),
        "characters": tokenizer(CHARACTERS, pre_tokenizer={"type": "WhitespaceSplit"}, normalizer={"type": "Sequence", "normalizers": [
            {"type": "Lowercase"}, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]}),
        "fallback": tokenizer(FALLBACK, normalizer={"type": "Prepend", "prepend": "_"}, decoder={"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}, post_processor={"type": "TemplateProcessing", "single": [
                {"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [0]}}}),
        "unigram": tokenizer(UNIGRAM, pre_tokenizer=METASPACE, decoder=METASPACE, normalizer={"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAABhAA=="}),
    },
    "hub": {
        "llama": json.dumps(CONFIG).encode(),
        "llama3": json.dumps({**CONFIG, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                              "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}).encode(),
        "mistral": json.dumps({**CONFIG, "model_type": "mistral", "sliding_window": 4,
                               "layer_types": ["sliding_attention"] * 2}).encode(),
        "gemma3": json.dumps({**CONFIG, "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 4,
                              "query_pre_attn_scalar": 4, "sliding_window": 4, "sliding_window_pattern": 2}).encode(),
        "experts": json.dumps({**CONFIG, "model_type": "qwen3_moe", "num_experts": 2, "num_experts_per_tok": 1,
                               "moe_intermediate_size": 4, "norm_topk_prob": True}).encode(),
        "gpt2": json.dumps({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 4,
                            "activation_function": "gelu_new"}).encode(),
        "index": json.dumps(CONFIG).encode() + b"\0" + json.dumps({"weight_map": {"lm_head.weight": "model.safetensors"}}).encode(),
    },
    "split": {
        "two": packed([part(0, 2, [b"a"], 2, [(b"general.architecture", b"llama")]), part(1, 2, [b"b"], 2)]),
        "twice": packed([part(0, 2, [b"a"], 2), part(1, 2, [b"a"], 2)]),
        "three": packed([part(0, 3, [b"a"], 3), part(1, 3, [b"b"], 3), part(2, 3, [b"c"], 3, [(b"k", b"v")])]),
        "missing": packed([part(0, 2, [b"a"], 2)]),
        "second": packed([part(1, 2, [b"a"], 2)]),
    },
}


def main():
    for name, inputs in INPUTS.items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in inputs.items():
            (folder / file).write_bytes(content)


if __name__ == "__main__":
    main()
