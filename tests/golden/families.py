#!/usr/bin/env python3
"""Makes golden data where none is stored: small models, token sequences with evictions, and the logits that the float64
reference (reference.py) computes for them. A folder of it is read by `ebb-lab golden` like any other.

    families.py OUT

Needs python3 and numpy, nothing else. Same bytes every time.
"""

import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
sys.dont_write_bytecode = True
import make_models  # noqa: E402
import reference  # noqa: E402

# name: (arguments of make_models.py, cases). Windows are of 24, so that a prompt outgrows them.
COMPACTS = ("full", "blocks", "shift1", "shift_block", "rand_compact", "rand_keep")
KEEPS = ("full", "blocks", "window_keep", "rand_keep")
FAMILIES = {
    "llama": ("--preset tiny-llama --seed 52", ("full", "rand_compact")),
    "llama3": ("--preset tiny-llama3 --seed 53", ("full",)),
    "gemma2": ("--preset tiny-gemma2 --seed 31", COMPACTS),
    "gemma3": ("--preset tiny-gemma3 --seed 32", COMPACTS),
    "gemma3-stretched": ("--preset tiny-gemma3 --rope-linear 8 --seed 33", ("full",)),
    "mistral-window": ("--preset tiny-mistral --window 24 --seed 34", COMPACTS),
    "phi3": ("--preset tiny-phi3 --seed 35", COMPACTS),
    "gptj": ("--preset tiny-gptj --seed 36", COMPACTS),
    "qwen2": ("--preset tiny-qwen2 --seed 40", ("full", "rand_compact")),
    "qwen3": ("--preset tiny-qwen3 --seed 41", ("full", "rand_compact")),
    "gptneox": ("--preset tiny-gptneox --seed 42", ("full", "rand_compact")),
    "gptneox-seq": ("--preset tiny-gptneox-seq --seed 43", ("full",)),
    "gpt2": ("--preset tiny-gpt2 --seed 44", KEEPS),
    "opt": ("--preset tiny-opt --seed 37", KEEPS),
    "bloom-6-heads": ("--preset tiny-bloom --dim 96 --heads 6 --seed 38", COMPACTS),
    "qwen3moe": ("--preset tiny-qwen3moe --seed 39", COMPACTS),
    "qwen3moe.q8_0": ("--preset tiny-qwen3moe --type q8_0 --seed 39", ("full", "shift1")),
    "llama.q4_1": ("--preset tiny-llama --type q4_1 --seed 45", ("full",)),
    "llama.q5_0": ("--preset tiny-llama --type q5_0 --seed 46", ("full",)),
    "llama.q5_1": ("--preset tiny-llama --type q5_1 --seed 47", ("full",)),
    "llama.q2_k": ("--preset tiny-llama-256 --type q2_k --seed 48", ("full",)),
    "llama.q3_k": ("--preset tiny-llama-256 --type q3_k --seed 49", ("full",)),
    "qwen2.iq4_nl": ("--preset tiny-qwen2 --type iq4_nl --seed 50", ("full",)),
    "phi3.mxfp4": ("--preset tiny-phi3 --type mxfp4 --seed 51", ("full",)),
}
TOKENS, PROMPT, CAP, SINK, BLOCK = 96, 40, 48, 4, 10


def steps_of(case, tokens, rng):
    """Ops of a case: what leaves before each step, and where the new tokens go (README of the stored golden data)."""
    compacts = case.startswith("shift") or case == "rand_compact"
    evicts = case not in ("full", "blocks")
    size = BLOCK if case in ("blocks", "shift_block") else 1
    live = list(range(PROMPT))  # positions in the cache, ascending
    steps = [[["D", int(t), i] for i, t in enumerate(tokens[:PROMPT])]]
    at = PROMPT
    while at < len(tokens):
        count = min(size, len(tokens) - at)
        step = []
        for _ in range(max(0, len(live) + count - CAP) if evicts else 0):
            i = int(rng.integers(SINK, len(live) - 1)) if case.startswith("rand") else SINK
            position = live.pop(i)
            step.append(["R", position, position + 1])
            if compacts:
                step.append(["A", position + 1, -1, -1])
                live = [p - (p > position) for p in live]
        first = live[-1] + 1 if compacts else at
        step += [["D", int(t), first + i] for i, t in enumerate(tokens[at : at + count])]
        live += range(first, first + count)
        steps.append(step)
        at += count
    return steps


def make(out, name, arguments, cases):
    options = make_models.options([*arguments.split(), "-o", str(out / f"{name}.gguf")])
    meta, weights = make_models.build(options)
    make_models.write_gguf(options.output, meta, weights.list)
    model = reference.Model(options.output)
    rng = np.random.default_rng(7)
    tokens = rng.integers(0, model.vocab - 3, TOKENS)
    family = {"format": 1, "model": f"{name}.gguf", "made": f"make_models.py {arguments}",
              "tensor_types": sorted({k for n, k in model.kinds.items() if model.w[n].ndim > 1}), "cases": {}}
    for case in cases:
        steps = steps_of(case, tokens, rng)
        logits = model.run(steps).astype("<f4")
        np.save(out / f"{name}.{case}.npy", logits)
        family["cases"][case] = {"rows": len(logits), "steps": steps, "logits": f"{name}.{case}.npy",
                                 "exact": f"{name}.{case}.npy"}
    (out / f"{name}.json").write_text(json.dumps(family))
    return len(cases)


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    made = sum(make(out, name, *of) for name, of in FAMILIES.items())
    print(f"{len(FAMILIES)} families, {made} cases")


if __name__ == "__main__":
    main()
