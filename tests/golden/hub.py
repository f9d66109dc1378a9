#!/usr/bin/env python3
"""Models of golden data laid out as hubs do, and converted back: the same tensors bit for bit, so the same logits.

    hub.py EBB_LAB GOLDEN OUT

Takes every F32 model of the folder GOLDEN, writes its folder of safetensors (tests/support/make_hub.py), converts that with
`ebb-lab convert`, compares, and leaves in OUT what `ebb-lab golden` reads. Needs python3 and numpy, nothing else.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
sys.dont_write_bytecode = True
import make_hub  # noqa: E402
import reference  # noqa: E402

LLAMA3 = [8.0, 1.0, 4.0, 256.0]  # of the preset tiny-llama3


def convert(lab, source, tokenizer, out, kind="f32", *more):
    run = [lab, "convert", str(source), "--tokenizer", str(tokenizer), "-o", str(out), "--type", kind, *more]
    done = subprocess.run(run, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(run)}: {done.stderr}")


def differences(original, made):
    meta, tensors, _ = original
    made_meta, made_tensors, _ = made
    if tensors.keys() != made_tensors.keys():
        yield f"tensors {sorted(tensors.keys() ^ made_tensors.keys())}"
    for name in tensors.keys() & made_tensors.keys():
        a, b = tensors[name].astype("<f4"), made_tensors[name].astype("<f4")
        if a.shape != b.shape or not np.array_equal(a.view("<u4"), b.view("<u4")):
            yield f"tensor {name}"
    arch = meta["general.architecture"]
    silent = {f"{arch}.vocab_size", f"{arch}.rope.dimension_count"}  # say what follows from others
    for key in meta.keys() - silent:
        if (key.startswith(arch) or key.startswith("tokenizer.")) and made_meta.get(key) != meta[key]:
            yield f"{key}: {made_meta.get(key)} for {meta[key]}"


def main():
    lab, golden, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    failed = count = 0
    for i, description in enumerate(sorted(golden.glob("*.json"))):
        family = json.loads(description.read_text())
        if set(family.get("tensor_types", [])) != {"F32"}:
            continue
        name, model = description.stem, golden / family["model"]
        original = reference.read_gguf(model)
        folder = out / "hub" / name
        factors = LLAMA3 if "rope_freqs.weight" in original[1] else None
        make_hub.write_hub(model, folder, shards=1 + i % 3, rope_llama3=factors)
        convert(lab, folder, model, out / family["model"])
        found = list(differences(original, reference.read_gguf(out / family["model"])))
        failed += bool(found)
        count += 1
        print(f"{name}: {'; '.join(found) or 'the same'}")
        shutil.copy(description, out)
        for case in family["cases"].values():
            for array in {case.get("logits"), case.get("exact")} - {None}:
                shutil.copy(golden / array, out)
    print(f"{count - failed} of {count} the same")
    sys.exit(failed > 0 or count == 0)


if __name__ == "__main__":
    main()
