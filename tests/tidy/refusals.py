#!/usr/bin/env python3
"""Every reason that a call may be refused with is provoked by a test over gRPC, and every reason of the engine alone by some test.

    tests/tidy/refusals.py          prints one line per reason that no test names, exits 1 if there is any
    tests/tidy/refusals.py --self   checks that it finds one

The reasons are those of docs/reference/errors.tsv, which `make docs` holds to the sources.
"""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A caller who cancels, or whose deadline passes, is answered by gRPC on its own side, and sees no reason: what the server counts and
# logs is tested below gRPC.
BELOW_GRPC = {"CALL_CANCELLED", "DEADLINE_PASSED"}


def untested(table, tests):
    """Yields (reason, where it should be named); `tests` is {path: text}."""
    for line in table.splitlines():
        if line.startswith("#"):
            continue
        where, reason = line.split("\t")[:2]
        if where == "start":
            continue
        folder = "tests/integration/" if where == "call" and reason not in BELOW_GRPC else "tests/"
        if not any(path.startswith(folder) and f'"{reason}"' in text for path, text in tests.items()):
            yield reason, folder


def self_test():
    table = "# where\ncall\tSEEN\tx\ty\ncall\tUNSEEN\tx\ty\nembed\tDEEP\tx\ty\nstart\tLATER\tx\ty\ncall\tDEADLINE_PASSED\tx\ty\n"
    tests = {"tests/integration/a_test.cc": '"SEEN" UNSEEN', "tests/unit/a_test.cc": '"UNSEEN" "DEEP" "DEADLINE_PASSED"'}
    found = list(untested(table, tests))
    if found == [("UNSEEN", "tests/integration/")] and len(list(untested(table, {}))) == 4:
        return 0
    print(f"refusals --self: found {found}")
    return 1


def main():
    if "--self" in sys.argv:
        return self_test()
    tests = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*_test.cc")}
    table = (ROOT / "docs/reference/errors.tsv").read_text(encoding="utf-8")
    found = list(untested(table, tests))
    for reason, folder in found:
        print(f"docs/reference/errors.tsv: no test in {folder} names \"{reason}\"")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
