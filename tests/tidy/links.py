#!/usr/bin/env python3
"""Markdown files point at what exists: relative links at files and headings, `folder/file` at files, `Suite.Sentence`, `Suite.Begin...`,
`Class.test_name`, `e2e/name` and `fuzz/name` at tests; and each row of a table of promises names what shows it.

    tests/tidy/links.py          prints one line per finding, exits 1 if there is any
    tests/tidy/links.py --self   checks that the rules find what they are meant to find
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)? *$")
OURS = re.compile(r"(command_line|policies|engine|server|client|proto|tests|scripts|docs|models|cmake)/[\w./-]*")
TEST = re.compile(r"[A-Z]\w+\.(?:[A-Z]|test_)\w+(?:\.\.\.)?|(?:e2e|fuzz)/\w+")
SHOWS = re.compile(r"`(?:tests/[^`]+|make \w+[^`]*)`")
FENCE = re.compile(r"^ {0,3}(```|~~~)")


def prose(text):
    """Yields (line number, line) outside of fenced code, inline code left out of links' way."""
    fence = ""
    for number, line in enumerate(text.split("\n"), 1):
        mark = FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1] == fence:
            fence = ""
        elif not fence:
            yield number, line


def anchors(text):
    """What GitHub makes of the headings: lower case, punctuation dropped, spaces to hyphens, a number for a repeated one."""
    seen, names = {}, set()
    for _, line in prose(text):
        if heading := HEADING.match(line):
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1].replace("`", ""))
            slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            names.add(f"{slug}-{count}" if count else slug)
    return names


def links(text):
    """Yields (line number, target)."""
    for number, line in prose(text):
        for match in LINK.finditer(re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", lambda code: "x" * len(code[0]), line)):
            yield number, match[1]


def is_test(name, tests):
    """Three dots stand for how the names of one or more tests go on."""
    return any(test.startswith(name[:-3]) for test in tests) if name.endswith("...") else name in tests


def mentions(path, text, exists, tests):
    """Yields (line, message) for files and tests that the prose names and that are not there."""
    for number, line in prose(text):
        for name in re.findall(r"`([^`]+)`", line):
            # A name without extension is a pair of .h and .cc. Some pages have the reader make a file of their own, fading.
            if OURS.fullmatch(name) and "fading" not in name and not exists(name.rstrip("/")) and not exists(name + ".h"):
                yield number, f"{name}: there is no such file"
            if TEST.fullmatch(name) and not path.startswith("docs/reference/") and not is_test(name, tests):
                yield number, f"{name}: there is no such test"


def unshown(text):
    """Yields (line, message) for promises that name nothing that shows them."""
    shown_by = False
    for number, line in prose(text):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells and (cells[0], cells[-1]) == ("promise", "shown by"):
            shown_by = True
        elif not cells:
            shown_by = False
        elif shown_by and set(cells[-1]) - set("-: ") and not SHOWS.search(cells[-1]) and not any(
                TEST.fullmatch(name) for name in re.findall(r"`([^`]+)`", cells[-1])):
            yield number, f"{cells[0]}: no test is named that shows it"


def test_names():
    def found(pattern, test):
        return ((source, re.findall(test, source.read_text(encoding="utf-8"), re.MULTILINE)) for source in ROOT.glob(pattern))

    names = {".".join(name) for _, names in found("tests/**/*_test.cc", r"^TEST(?:_[FP])?\((\w+), (\w+)\)") for name in names}
    names |= {f"fuzz/{source.stem.removesuffix('_fuzz')}" for source in ROOT.glob("tests/fuzz/*_fuzz.cc")}
    names |= {f"e2e/{source.stem.removesuffix('_test')}" for source in ROOT.glob("tests/e2e/*_test.py")}
    for _, lines in found("tests/**/*_test.py", r"^class (\w+)|^    def (test_\w+)"):
        of = ""
        for name, test in lines:
            of = name or of
            names |= {f"{of}.{test}"} if test else set()
    return names


def broken(path, text, exists, read):
    """Yields (line, message). `exists` and `read` take a path relative to the root."""
    for number, target in links(text):
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        if name.startswith("/"):
            yield number, f"{target}: write links relative to the file"
            continue
        to = (ROOT / Path(path).parent / name).resolve() if name else (ROOT / path).resolve()
        if not to.is_relative_to(ROOT):
            yield number, f"{target}: leads out of the repository"
            continue
        to = to.relative_to(ROOT).as_posix()
        if name and not exists(to):
            yield number, f"{target}: there is no {to}"
        elif anchor and anchor not in anchors(text if not name else read(to)):
            yield number, f"{target}: no such heading in {to if name else path}"


def self_test():
    tree = {"docs/a.md": "# One `two` (3)\n\n## Same\n\n## Same\n", "docs": ""}

    def found(text):
        return [message for _, message in broken("docs/b.md", text, tree.__contains__, tree.__getitem__)]

    good = ["[x](a.md)", "[x](a.md#one-two-3)", "[x](a.md#same-1)", "[x](https://example.org/none)", "`[x](none.md)`",
            "```\n[x](none.md)\n```", "# Here\n[x](#here)", "[`code` in text](a.md)"]
    bad = ["[x](none.md)", "[x](a.md#none)", "[x](a.md#same-2)", "[x](#none)", "[x](/docs/a.md)", "[x](../../out.md)",
           "![x](none.png)", "`a` [x](none.md) `b`", "[[x]](none.md)", "```\n```\n[x](none.md)"]
    wrong = [f"nothing found in {text!r}" for text in bad if not found(text)]
    wrong += [f"{message} in {text!r}" for text in good for message in found(text)]
    told = "`docs/a.md` `docs/` `docs/b.md` `Aa.Bb` `Aa.Cc` `policies/fading.h` `a.b`"
    told += " `Aa.test_b` `Aa.test_c` `fuzz/a` `fuzz/b` `e2e/a` `e2e/b` `Aa.Bb...` `Aa.B...` `Aa.Cc...` `e2e/` `x...`"
    known = {"Aa.Bbb", "Aa.Bb", "Aa.test_b", "fuzz/a", "e2e/a"}
    named = [message.split(":")[0] for _, message in mentions("a.md", told, tree.__contains__, known)]
    wrong += [f"found {named}"] if named != ["docs/b.md", "Aa.Cc", "Aa.test_c", "fuzz/b", "e2e/b", "Aa.Cc..."] else []
    table = "| promise | shown by |\n|---|---|\n| a | `Aa.Bb` |\n| b | trust |\n| c | `tests/a.py`, `x` |\n| d | `Aa.test_b` |\n| e | `bb` |\n\n| f | g |"
    table += "\n\n| promise | not | shown by |\n|---|---|---|\n| h | `Aa.Bb` | trust |\n| i | x | `Aa.Bb` |"
    rows = [message[0] for _, message in unshown(table)]
    wrong += [f"without a test: {rows}"] if rows != ["b", "e", "h"] else []
    for each in wrong:
        print(f"links --self: {each}")
    return 1 if wrong else 0


def main():
    if "--self" in sys.argv:
        return self_test()
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    tests = test_names()
    count, files = 0, [path for path in out.stdout.splitlines() if (ROOT / path).exists()]
    for path in files:
        text = (ROOT / path).read_text(encoding="utf-8")
        exists = lambda to: (ROOT / to).exists()  # noqa: E731
        found = [*broken(path, text, exists, lambda to: (ROOT / to).read_text(encoding="utf-8")), *mentions(path, text, exists, tests),
                 *unshown(text)]
        for line, message in found:
            print(f"{path}:{line}: {message}")
            count += 1
    print(f"links: {count} findings in {len(files)} files")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
