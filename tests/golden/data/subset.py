#!/usr/bin/env python3
"""Copies the families and cases of this folder out of the project's whole golden data.

    tests/golden/data/subset.py ../shared/golden
"""
import json
import shutil
import sys
from pathlib import Path

SUBSET = {
    "llama.f32": ["full", "shift1", "window_keep", "rand_compact"],
    "llama.q8_0": ["full", "shift_block"],
    "llama-linear.f32": ["full"],
    "llama3.f32": ["full"],
    "mistral.f32": ["full"],
    "llama-k.q4_k_m": ["full"],
}


def main():
    source, here = Path(sys.argv[1]), Path(__file__).resolve().parent
    for name, cases in SUBSET.items():
        family = json.loads((source / f"{name}.json").read_text(encoding="utf-8"))
        family["cases"] = {case: family["cases"][case] for case in cases}
        shutil.copyfile(source / family["model"], here / family["model"])
        for case in family["cases"].values():
            # The numbers an engine that dequantises exactly is held to: `exact`, or `logits` of an F32 model.
            stored = case["exact"] if "exact" in case else case["logits"]
            shutil.copyfile(source / stored, here / stored)
        (here / f"{name}.json").write_text(json.dumps(family) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
