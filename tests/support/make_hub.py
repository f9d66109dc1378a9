#!/usr/bin/env python3
"""Lays a GGUF model out as model hubs do: config.json, generation_config.json and safetensors files.

    make_hub.py MODEL.gguf DIR [--type F32|F16|BF16] [--shards N]

What the two layouts store differently is done here in numpy, from the definitions of the models that hubs publish: heads
whose RoPE pairs lie apart, query, key and value rows by head, [in, out] matrices, norms less one, experts one by one,
positions from row two. F32 loses nothing: the way back gives the same bits. There is no tokenizer.json.

Needs python3 and numpy, nothing else. Same bytes every time.
"""

import argparse
import json
import struct
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "golden")]
sys.dont_write_bytecode = True
import reference  # noqa: E402


def halves(w, heads):
    """Rows of each head from (2i, 2i + 1) to (i, i + n / 2)."""
    return w.reshape(heads, -1, 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def by_head(w, heads):
    """From all q, all k, all v to q, k, v of each head."""
    return w.reshape(3, heads, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)


GATED = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
         "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_qkv": "self_attn.qkv_proj",
         "ffn_gate_inp": "mlp.gate", "token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
GEMMA = {**GATED, "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm"}
PHI = {**GATED, "ffn_up": "mlp.gate_up_proj"}
NEOX = {"attn_norm": "input_layernorm", "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense",
        "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
        "token_embd": "embed_in", "output_norm": "final_layer_norm", "output": "embed_out"}
BLOOM = {**NEOX, "attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense",
         "token_embd": "word_embeddings", "token_embd_norm": "word_embeddings_layernorm", "output_norm": "ln_f",
         "output": "lm_head"}
GPT = {"attn_norm": "ln_1", "attn_q": "attn.q_proj", "attn_k": "attn.k_proj", "attn_v": "attn.v_proj",
       "attn_output": "attn.out_proj", "ffn_up": "mlp.fc_in", "ffn_down": "mlp.fc_out", "ffn_norm": "ln_2",
       "token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head"}
GPT2 = {**GPT, "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
OPT = {"attn_norm": "self_attn_layer_norm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
       "attn_v": "self_attn.v_proj", "attn_output": "self_attn.out_proj", "ffn_norm": "final_layer_norm",
       "ffn_up": "fc1", "ffn_down": "fc2", "token_embd": "embed_tokens", "position_embd": "embed_positions",
       "output_norm": "final_layer_norm", "output": "lm_head"}

# architecture: (model_type, prefix of the model's tensors, of a layer's, names)
FAMILIES = {
    "llama": ("llama", "model.", "layers.", GATED),
    "qwen2": ("qwen2", "model.", "layers.", GATED),
    "qwen3": ("qwen3", "model.", "layers.", GATED),
    "qwen3moe": ("qwen3_moe", "model.", "layers.", GATED),
    "gemma2": ("gemma2", "model.", "layers.", GEMMA),
    "gemma3": ("gemma3_text", "model.", "layers.", GEMMA),
    "phi3": ("phi3", "model.", "layers.", PHI),
    "gptneox": ("gpt_neox", "gpt_neox.", "layers.", NEOX),
    "gptj": ("gptj", "transformer.", "h.", GPT),
    "gpt2": ("gpt2", "", "h.", GPT2),  # without the prefix, as it was published first
    "opt": ("opt", "model.decoder.", "layers.", OPT),
    "bloom": ("bloom", "transformer.", "h.", BLOOM),
}


def config_of(meta, tensors):
    a = meta["general.architecture"]
    get = lambda key, otherwise=None: meta.get(f"{a}.{key}", otherwise)  # noqa: E731
    exact = lambda key: float(np.float32(get(key)))  # noqa: E731
    heads, dim, layers = get("attention.head_count"), get("embedding_length"), get("block_count")
    tied = "output.weight" not in tensors
    model_type = FAMILIES[a][0]
    c = {"model_type": model_type, "tie_word_embeddings": tied, "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
         "eos_token_id": 0}
    if a in ("gpt2", "gptj"):
        c |= {"n_embd": dim, "n_layer": layers, "n_head": heads, "n_positions": get("context_length"),
              "layer_norm_epsilon": exact("attention.layer_norm_epsilon"), "activation_function": "gelu_new",
              "n_inner": None if get("feed_forward_length") == 4 * dim else get("feed_forward_length")}
        if a == "gptj":
            c["rotary_dim"] = get("rope.dimension_count")
        return c
    if a == "bloom":
        return c | {"hidden_size": dim, "n_layer": layers, "n_head": heads, "seq_length": get("context_length"),
                    "n_inner": None if get("feed_forward_length") == 4 * dim else get("feed_forward_length"),
                    "layer_norm_epsilon": exact("attention.layer_norm_epsilon")}
    c |= {"hidden_size": dim, "num_hidden_layers": layers, "num_attention_heads": heads,
          "max_position_embeddings": get("context_length"), "intermediate_size": get("feed_forward_length")}
    if a == "opt":
        return c | {"ffn_dim": c.pop("intermediate_size"), "activation_function": "relu", "do_layer_norm_before": True}
    if a == "gptneox":
        part = get("rope.dimension_count") / (dim // heads)
        return c | {"hidden_act": "gelu", "layer_norm_eps": exact("attention.layer_norm_epsilon"), "rotary_pct": part,
                    "rotary_emb_base": exact("rope.freq_base"), "use_parallel_residual": get("use_parallel_residual")}
    c |= {"num_key_value_heads": get("attention.head_count_kv"), "head_dim": get("attention.key_length"),
          "rms_norm_eps": exact("attention.layer_norm_rms_epsilon"), "rope_theta": exact("rope.freq_base"),
          "hidden_act": "silu"}
    window = get("attention.sliding_window")
    if a == "llama" and window:
        c["model_type"] = "mistral"
    if window:
        c["sliding_window"] = window
    if a.startswith("gemma"):
        del c["hidden_act"]
        c |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": c["head_dim"]}
        if a == "gemma2":
            c |= {"attn_logit_softcapping": exact("attn_logit_softcapping"),
                  "final_logit_softcapping": exact("final_logit_softcapping")}
        else:
            pattern = get("attention.sliding_window_pattern")
            c["rope_local_base_freq"] = exact("rope.freq_base_swa")
            c["layer_types"] = ["full_attention" if i % pattern == pattern - 1 else "sliding_attention"
                                for i in range(layers)]
    if a == "qwen3moe":
        c |= {"num_experts": get("expert_count"), "num_experts_per_tok": get("expert_used_count"),
              "moe_intermediate_size": get("expert_feed_forward_length"), "norm_topk_prob": True}
    if get("rope.scaling.type") == "linear":
        c["rope_scaling"] = {"type": "linear", "factor": exact("rope.scaling.factor")}
    return c


def hub_tensors(meta, tensors):
    """{name: float32 array} as hubs have them."""
    a = meta["general.architecture"]
    _, prefix, layers, names = FAMILIES[a]
    heads = meta[f"{a}.attention.head_count"]
    kv_heads = meta.get(f"{a}.attention.head_count_kv", heads)
    out = {}
    for name, w in tensors.items():
        if name == "rope_freqs.weight":
            continue
        where, stem, kind = "", name.rsplit(".", 1)[0], name.rsplit(".", 1)[1]
        if name.startswith("blk."):
            _, number, stem = stem.split(".", 2)
            where = f"{layers}{number}."
        if stem.endswith("_exps"):
            theirs = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}[stem]
            for expert, one in enumerate(w):
                out[f"{prefix}{where}mlp.experts.{expert}.{theirs}.{kind}"] = one
            continue
        if a == "llama" and stem in ("attn_q", "attn_k"):
            w = halves(w, heads if stem == "attn_q" else kv_heads)
        if a in ("gptneox", "bloom") and stem == "attn_qkv":
            w = by_head(w, heads)
        if a == "gpt2" and where and w.ndim == 2:
            w = w.T
        if a.startswith("gemma") and stem.endswith("norm"):
            w = w - np.float32(1)
        if a == "opt" and stem == "position_embd":
            w = np.concatenate([np.full((2, w.shape[1]), 9, dtype=np.float32), w])
        whole = f"{where}{names[stem]}.{kind}"
        out[whole if names[stem] in ("lm_head", "embed_out") else prefix + whole] = np.ascontiguousarray(w)
    return out


def encode(w, dtype):
    if dtype == "F32":
        return w.astype("<f4").tobytes()
    if dtype == "F16":
        return w.astype("<f2").tobytes()
    bits = w.astype("<f4").view("<u4")
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2").tobytes()


def write_safetensors(path, tensors, dtype):
    header, data = {"__metadata__": {"format": "pt"}}, []
    at = 0
    for name, w in tensors.items():
        raw = encode(w, dtype)
        header[name] = {"dtype": dtype, "shape": list(w.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def write_hub(model, out, dtype="F32", shards=1, rope_llama3=None):
    meta, tensors, _ = reference.read_gguf(model)
    tensors = {name: w.astype(np.float32) for name, w in tensors.items()}
    out.mkdir(parents=True, exist_ok=True)
    config = config_of(meta, tensors)
    if rope_llama3:
        factor, low, high, old = rope_llama3
        config["rope_scaling"] = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low,
                                  "high_freq_factor": high, "original_max_position_embeddings": int(old)}
    (out / "config.json").write_text(json.dumps(config, indent=1))
    ends = [meta["tokenizer.ggml.eos_token_id"]]
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    named = list(hub_tensors(meta, tensors).items())
    if shards == 1:
        return write_safetensors(out / "model.safetensors", dict(named), dtype)
    places = {}
    for i in range(shards):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        mine = dict(named[i * len(named) // shards : (i + 1) * len(named) // shards])
        write_safetensors(out / name, mine, dtype)
        places |= {tensor: name for tensor in mine}
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("folder", type=Path)
    p.add_argument("--type", default="F32", choices=("F32", "F16", "BF16"))
    p.add_argument("--shards", type=int, default=1)
    o = p.parse_args()
    write_hub(o.model, o.folder, o.type, o.shards)


if __name__ == "__main__":
    main()
