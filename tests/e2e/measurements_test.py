#!/usr/bin/env python3
"""The commands that measured what docs/benchmarks and others tell run as they stand, but short: with a small model, and as few rounds, prompts and tokens
as a flag allows, so that they tell nothing of speed or quality. A folder stands for the clone, one for each page: what a command writes is there for the
next one, and nowhere else."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

from binaries import BIN, MODEL, ROOT, Server
from pages import OTHERS, commands, parts

BENCH = "build/release/tests/bench/"
TEXT_BYTES = 24_000  # of a text no more is read
BATCH = {"--rounds": "1", "--read-mib": "4", "--sessions": "2", "--slots": "128", "--steps": "1"}
# What makes a command short: the value that a flag has instead, also where a page does not give it but the verb knows it. The first row that a
# command begins like says it.
SHORT = (
    (f"{BENCH}attend_bench", {"--benchmark_filter": "plain/1/1024/"}),
    (f"{BENCH}linear_bench", {"--benchmark_min_time": "0.001", "--benchmark_filter": "Q8_0/1/"}),
    (BENCH, {}),
    (r"\S+ebb bench verify", {"--rounds": "1", "--read-mib": "4", "--sessions": "2", "--tokens": "4", "--slots": "64"}),
    (r"\S+ebb bench batch .*--compare", {**BATCH, "--depths": "256"}),  # which there are only beside it
    (r"\S+ebb bench (decode|batch)", BATCH),
    (r"\S+ebb bench attention", {"--rounds": "1", "--read-mib": "4", "--slots": "256"}),
    (r"\S+ebb (--addr \S+ )?bench", {"--rounds": "1", "--read-mib": "4", "--tokens": "256", "--requests": "2", "--max-tokens": "8", "--warm-up": "1"}),
    (r"\S+ebb-lab cases", {"--prompts": "1", "--budgets": "128", "--tasks": "prefill"}),  # which the model's card has
    (r"\S+ebb-lab calibrate", {"--documents": "1", "--window": "256"}),
    (r"\S+ebb-lab", {"--prompts": "1", "--budgets": "64", "--windows": "1", "--window": "128", "--length": "512", "--samples": "2"}),
    (r"\S+ tests/e2e/abuse_latency\.py", {"--seconds": "0.2", "--after": "0", "--rounds": "1"}),
    (r"\S+ tests/e2e/greedy_latency\.py", {"--count": "3"}),
)
ATTACK = "orderly_calls"  # of abuse_latency.py, where a page has it make all of them
# What measures and is not run, with the reason.
NOT_RUN = {
    f"{BENCH}onednn_bench ": "oneDNN, which nothing that is shipped uses",
    r"/usr/bin/python3 tests/support/make_models\.py ": "models of half a gigabyte; the build of the tests makes smaller ones",
}


def measures(words):
    """Whether a command is one of this test."""
    return re.match(rf"((build/bin/)?(ebb|ebb-lab) |{BENCH}|/usr/bin/python3 tests/)", " ".join(words)) is not None


def clone():
    """What a page's commands read, where they read it; in a folder of its own."""
    folder = tempfile.TemporaryDirectory()
    root = pathlib.Path(folder.name)
    for name in ("models/text", "docs/benchmarks", "build", "store", "tmp"):
        (root / name).mkdir(parents=True)
    (root / "build/bin").symlink_to(BIN.resolve())
    (root / "build/release").symlink_to(BIN.resolve().parent / "release")
    (root / "tests").symlink_to(ROOT / "tests")
    shutil.copy(MODEL, root / "models")
    for text in (ROOT / "models/text").glob("*.txt"):
        (root / "models/text" / text.name).write_bytes(text.read_bytes()[:TEXT_BYTES])
    cases = json.loads((ROOT / "models/ebb-tiny.cases.json").read_text())
    short = {kind: cases[kind][:1] for kind in ("passkey", "again")}
    short["windows"] = [window[:128] for window in cases["windows"][:1]]
    (root / "models/ebb-tiny.cases.json").write_text(json.dumps(short))
    outcomes = json.loads((ROOT / "models/ebb-tiny.outcomes.json").read_text())
    (root / "models/ebb-tiny.outcomes.json").write_text(json.dumps([{**row, "right": row["right"][:1]} for row in outcomes]))
    return folder


class Measurements(unittest.TestCase):
    def setUp(self):
        self.helps, self.used = {}, set()
        # What stands for the models of the presets perf-*, which have a context of many thousand tokens: a thousandth of one.
        self.perf = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "perf.gguf"
        sizes = {"layers": 2, "dim": 64, "heads": 2, "kv-heads": 1, "head-dim": 32, "ffn": 128}
        subprocess.run([sys.executable, ROOT / "tests/support/make_models.py", "--preset=perf-0.5b", "--type=q8_0", f"--output={self.perf}",
                        *(f"--{name}={size}" for name, size in sizes.items())], check=True, stdout=subprocess.DEVNULL)

    def knows(self, flag, words):
        """Whether the verb of a command has a flag."""
        verbs = [word for word in words[1:] if re.fullmatch("[a-z][a-z-]*", word)]
        command = (words[0], *(words[1:2] if words[1].endswith(".py") else verbs[:2 if words[0].endswith("/ebb") else 1]))
        if command not in self.helps:
            self.helps[command] = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60).stdout
        return re.search(rf"(?m)^ +(--[\w-]+,)?{flag}\b", self.helps[command]) is not None

    def shortened(self, words):
        begins, values = next((begins, values) for begins, values in SHORT if re.match(begins, " ".join(words)))
        words = list(words)
        for flag, value in values.items():
            given = [at for at, word in enumerate(words) if word.split("=")[0] == flag]
            for at in given:
                if "=" in words[at]:
                    words[at] = f"{flag}={value}"
                else:
                    words[at + 1] = value
            if not given and (words[0].startswith(BENCH) or self.knows(flag, words)):
                words.append(f"{flag}={value}")
            if any(word.split("=")[0] == flag for word in words):
                self.used.add((begins, flag))
        if "abuse_latency" in " ".join(words[:2]) and not any(re.fullmatch("[a-z]+(_[a-z]+)+", word) for word in words):
            words.append(ATTACK)
        return words

    def to_run(self, words, folder, address):
        """A page's words with what stands for the files, the folders and the server that its reader has."""
        words = [word.strip("[]").replace("/tmp/", "tmp/").replace("$on", "h2o") for word in words]
        words = [{"FOLDER": "store", "ADDRESS": address, "127.0.0.1:7799": address}.get(word, word) for word in words]
        if words[0] in ("ebb", "ebb-lab"):
            words[0] = f"build/bin/{words[0]}"
        for model in (word for word in words if word.endswith(".gguf") and not (folder / word).exists()):
            (folder / model).parent.mkdir(parents=True, exist_ok=True)
            (folder / model).symlink_to(self.perf if "perf" in model else folder / "models" / MODEL.name)
        return self.shortened(words)

    def test_every_measurement_runs(self):
        ran = 0
        for page in OTHERS:
            measured = [words for line in commands(page) for words in parts(line) if measures(words) and not re.match("|".join(NOT_RUN), " ".join(words))]
            if not measured:
                continue
            before = set()  # of this page: what a command writes is there once
            with clone() as folder, Server() as server:
                for words in measured:
                    to_run = self.to_run(words, pathlib.Path(folder), server.addr)
                    if shlex.join(to_run) in before:
                        continue
                    before.add(shlex.join(to_run))
                    ran += 1
                    with self.subTest(page=page, command=shlex.join(words)):
                        done = subprocess.run(to_run, cwd=folder, env={**os.environ, "EBB_ADDR": server.addr, "EBB_BIN": str(BIN.resolve()), "EBB_BENCH_SHORT": "1"},
                                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
                        self.assertEqual(done.returncode, 0, f"{shlex.join(to_run)}\n{done.stdout}\n{done.stderr}")
        self.assertGreater(ran, 50)
        self.assertEqual(self.used, {(begins, flag) for begins, values in SHORT for flag in values}, "a flag that no command has any more")

    def test_what_is_not_run_is_on_a_page(self):
        lines = [" ".join(words) for page in OTHERS for line in commands(page) for words in parts(line)]
        for pattern in NOT_RUN:
            self.assertTrue(any(re.match(pattern, line) for line in lines), f"no page has such a line any more: {pattern}")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
