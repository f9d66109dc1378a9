"""The pages of the documentation, and what stands in their fenced blocks."""
import itertools
import re
import shlex
import textwrap

from binaries import ROOT

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*/*.md") if p.parent.name in ("how-to", "tutorials"))]
OTHERS = [str(p.relative_to(ROOT)) for glob in ("CONTRIBUTING.md", "docs/*/*.md", "client/*/README.md", "models/text/README.md") for p in sorted(ROOT.glob(glob))
          if str(p.relative_to(ROOT)) not in PAGES]
VARIABLE = re.compile(r"[A-Z_]+=")  # that is set for one command


def fences(page):
    """[(what it is, its text)] of each fenced block, also of one in a list."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(kind, textwrap.dedent(block)) for _, kind, block in re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)]


def blocks(page, kind):
    return [block for each, block in fences(page) if each == kind]


def spans(page):
    """What stands between backquotes within sentences and tables."""
    text = re.sub(r"^( *)```\w*\n.*?^\1```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", text)


def commands(page):
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def parts(words):
    """The commands of a line, without the variables that are set for them."""
    for joined, each in itertools.groupby(words, lambda word: word == "&&"):
        if not joined:
            yield list(itertools.dropwhile(VARIABLE.match, each))
