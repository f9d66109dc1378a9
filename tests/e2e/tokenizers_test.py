#!/usr/bin/env python3
"""Texts become the tokens that Hugging Face's own tokenizers make of them, for every family, and read back as what they were.

    tokenizers_test.py [--lines N] [--seed S] [--only FAMILY] | --speed

N lines (100,000) are shared out among the families; `make tokenizers` gives that many to each. Needs what `scripts/setup test`
installs from npm, and is skipped, and says so, without it. Of lines that are not UTF-8, which the others do not take, it is asked
alone that they read back.
"""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "tokenizers")]
import corpus  # noqa: E402
import families  # noqa: E402
import npm  # noqa: E402

TOKENIZE = os.environ.get("EBB_TOKENIZE_LINES", str(HERE.parents[1] / "build/release/tests/e2e/tokenize_lines"))
# Those that change a text, or drop some of it, before it is cut.
LOSSY = {"qwen2", "gptneox", "normalizers", "splits", "spm-unknown", "unigram", "unigram-bytes"}
ENGLISH = ["persuasion.txt", "calibration_sherlock_holmes.txt"]
# Those with normal forms, whose tables are of a Unicode older than ours in the others' libraries.
NORMAL_FORMS = {"qwen2", "gptneox", "normalizers", "splits", "unigram", "unigram-bytes"}
# Of families whose GGUF files say no more than a rule's name of how texts are cut: that name.
RULES = {"gpt2": "gpt-2", "llama3": "llama-bpe", "starcoder": "starcoder", "falcon": "falcon", "deepseek-llm": "deepseek-llm",
         "deepseek-coder": "deepseek-coder", "deepseek3": "deepseek-v3", "bloom": "bloom", "gpt-4o": "gpt-4o"}
SPACED = {"llama2", "gemma", "spm-first"}  # write spaces as a character of their own, and put one before a text


def numbers(data, at):
    count, = struct.unpack_from("<I", data, at)
    return struct.unpack_from(f"<{count}I", data, at + 4), at + 4 + 4 * count


def ours(folder, lines, *flags):
    """[(tokens, the text that they stand for)]"""
    out = subprocess.run([TOKENIZE, folder, *flags], input=corpus.packed(lines), stdout=subprocess.PIPE, check=True).stdout
    found, at = [], 0
    while at < len(out):
        ids, at = numbers(out, at)
        size, = struct.unpack_from("<I", out, at)
        found.append((ids, out[at + 4:at + 4 + size]))
        at += 4 + size
    return found


def theirs(folder, lines, modules):
    out = subprocess.run(["node", HERE / "tokenizers/reference.mjs", folder / "tokenizer.json", modules], input=corpus.packed(lines),
                         stdout=subprocess.PIPE, check=True).stdout
    found, at = [], 0
    while at < len(out):
        ids, at = numbers(out, at)
        found.append(ids)
    return found


def is_utf8(line):
    try:
        line.decode()
        return True
    except UnicodeDecodeError:
        return False


def reads_back(family, names, line, text):
    if family in LOSSY or any(name.encode() in line for name in (*names, "▁")):  # names take spaces along, or have one put after them
        return True
    return text == line or (family in SPACED and text.removeprefix(b" ") == line)


def compare_rule(family, folder, names, expected):
    """The rule that GGUF files name, on lines without added tokens, of which such a file knows less; `expected`: {line: tokens}. The number
    of differences."""
    lines = [line for line in expected if not any(name.encode() in line for name in names)]
    made = ours(folder, lines, "--pre", RULES[family])
    wrong = [line for line, (ids, _) in zip(lines, made, strict=True) if ids != expected[line]]
    for line in wrong[:3]:
        print(f"{family} by the rule {RULES[family]}: {line!r}\n  theirs {expected[line]}")
    print(f"{family} by the rule {RULES[family]}: {len(lines)} lines: {len(wrong)} differences", flush=True)
    return len(wrong) + (not lines)


def compare(family, folder, names, lines, modules):
    """Prints the first differences; their number."""
    made = ours(folder, lines)
    assert len(made) == len(lines)
    valid = [line for line in lines if is_utf8(line)]
    by_line = dict(zip(valid, theirs(folder, valid, modules), strict=True))
    wrong = compare_rule(family, folder, names, by_line) if family in RULES else 0
    for line, (ids, text) in zip(lines, made):
        other = by_line.get(line, ids)
        if ids == other and reads_back(family, names, line, text):
            continue
        wrong += 1
        if wrong <= 3:
            print(f"{family}: {line!r}\n  ours   {ids}\n  theirs {other}\n  read back {text!r}")
    print(f"{family}: {len(lines)} lines, {len(valid)} of them UTF-8: {wrong} differences", flush=True)
    return wrong


def measure(family, folder, text):
    """The fastest of three, on one core: what else the machine does only slows it down."""
    times = [json.loads(subprocess.run([TOKENIZE, folder, "--speed", text], stdout=subprocess.PIPE, check=True).stdout) for _ in range(3)]
    best = min(times, key=lambda one: one["encode_s"])
    print(f"| {family} | {best['tokens']} | {best['encode_s']:.2f} | {min(one['open_s'] for one in times):.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--each", action="store_true", help="so many for each family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--speed", action="store_true", help="compare nothing; print how long 1 MB of English takes each family")
    parser.add_argument("--modules", type=pathlib.Path, default=npm.MODULES, help="the folder node_modules")
    options = parser.parse_args()
    if lacking := npm.missing("tokenizers", *families.PACKAGES.values()):
        if options.modules == npm.MODULES:
            print(f"skipped: {lacking}")
            return 0
    with tempfile.TemporaryDirectory() as out:
        every = [family for family in families.folders(options.modules, pathlib.Path(out)) if options.only in (None, family[0])]
        if options.speed:
            english = pathlib.Path(out) / "english.txt"
            books = "".join((HERE.parents[1] / "models/text" / name).read_text() for name in ENGLISH)
            english.write_text((books * (1_000_000 // len(books) + 1))[:1_000_000])
            for name, folder, _ in every:
                measure(name, folder, english)
            return 0
        count = options.lines if options.each else -(-options.lines // len(every))
        return sum(compare(name, folder, names, corpus.lines(count, options.seed, names, name in NORMAL_FORMS), options.modules) for name, folder, names in every) > 0


if __name__ == "__main__":
    sys.exit(main())
