#!/usr/bin/env python3
"""Style that a program can check: who includes whom, file sizes, guards, leftovers, words that must not appear.

    tests/tidy/tidy.py          prints one line per finding, exits 1 if there is any
    tests/tidy/tidy.py --self   checks that each rule finds what it is meant to find
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = (".h", ".cc")

# folder: folders of ours that it may include from, or files of them, itself apart. Tests may include anything.
ARROWS = {
    "command_line": set(),
    "policies": set(),
    "engine": {"policies"},
    "engine/lab": {"command_line", "policies"},
    "server": {"engine", "policies"},
    "client": {"command_line"},
    # What servers have seen is added up by the code that sums up what one has seen.
    "client/cli": {"command_line", "server/experiments", "server/experiment_parts.h", "server/experiment_results.h"},
    "client/cli/main.cc": {"bench", "command_line"},  # the `ebb` command has the bench's verbs; nothing else of the client knows them
    "bench": {"client", "command_line", "engine", "policies"},
}
OURS = {path.split("/")[0] for path in ARROWS} | {"tests"}
# Generated code (ebb/v1, grpc, google) belongs to proto/; the engine and the policies know none of it.
FOREIGN_TO_ENGINE = re.compile(r'#include [<"](grpc|grpcpp|google/protobuf|google/rpc|prometheus|ebb/)')
LINES_MAX = 600
# Kernel files are compiled once per instruction set: an inline function of a library compiled there could be the copy that the
# linker keeps, and would then kill an older CPU.
KERNELS = re.compile(r"^engine/ops/cpu/(attend|linear|norm|rope|activation)[a-z_]*(?<!_op)\.cc$")
# A GPU's kernels are compiled by nvcc, hipcc and the host's compiler, and say only what device.h says for all three.
GPU_KERNELS = re.compile(r"^engine/ops/gpu/(?!emulat)[a-z_]+\.cc$")
GPU_KERNEL_INCLUDES = re.compile(r'#include (<cstdint>|"engine/ops/gpu/[a-z_]+\.h")')
KERNEL_INCLUDES = re.compile(r'#include (<cstdint>|<cstddef>|"engine/ops/cpu/[a-z_]+\.h")')


def guard(path):
    return "EBB_" + re.sub(r"[/.]", "_", path).upper() + "_"


def findings(path, text):
    """Yields (line, message) for one file; path is relative to the root."""
    lines = text.split("\n")
    suffix = Path(path).suffix
    top = path.split("/")[0]
    allowed = ARROWS.get(path, ARROWS.get(str(Path(path).parent), ARROWS.get(top)))
    if suffix in CODE:
        if len(lines) > LINES_MAX:
            yield 1, f"{len(lines)} lines; split the file (at most {LINES_MAX})"
        if suffix == ".h" and f"#ifndef {guard(path)}" not in text:
            yield 1, f"include guard is not {guard(path)}"
        for number, line in enumerate(lines, 1):
            match = re.match(r'#include "(([a-z_]+)/[^"]*)"', line)
            if match and match[2] in OURS and allowed is not None and not any(match[1] == it or match[1].startswith(it + "/") for it in allowed | {top}):
                yield number, f"{top} may not include from {match[2]}"
            if top in ("engine", "policies") and FOREIGN_TO_ENGINE.match(line):
                yield number, f"{top} may not know gRPC, protobuf or Prometheus"
            if KERNELS.match(path) and line.startswith("#include") and not KERNEL_INCLUDES.match(line):
                yield number, "a kernel file includes vec.h, kernels.h and <cstdint> only"
            if GPU_KERNELS.match(path) and line.startswith("#include") and not GPU_KERNEL_INCLUDES.match(line):
                yield number, "a GPU's kernel file includes <cstdint> and headers of engine/ops/gpu only"
            if re.search(r"catch \(\.\.\.\)", line):
                yield number, "catch (...) hides what went wrong"
            if top in ("engine", "server") and not path.startswith("engine/lab/") and re.search(r'"(h2o|streaming)"', line):
                yield number, "a scorer's name outside policies/: go by the registry"
    if suffix in CODE + (".py", ".proto", ".cmake", ".sh") or Path(path).name in ("CMakeLists.txt", "Makefile"):
        for number, line in enumerate(lines, 1):
            if re.search(r"\b(TODO|FIXME|XXX)\b(?! #\d)", line) and top != "tests":
                yield number, "a leftover without an issue number"
            if line != line.rstrip():
                yield number, "trailing white space"
    if suffix in CODE and Path(path).stem in ("utils", "util", "common", "helpers", "misc", "types"):
        yield 1, f"'{Path(path).stem}' says nothing about what the file is for"


def tracked():
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [p for p in out.splitlines() if Path(p).suffix in CODE + (".py", ".proto", ".cmake", ".sh", ".txt") or p == "Makefile"]


def self_test():
    bad = {
        "policies/a.cc": '#include "engine/engine.h"\n',
        "engine/a.cc": "#include <grpcpp/grpcpp.h>\n",
        "client/a.cc": '#include "policies/spec.h"\n',
        "client/b.cc": '#include "bench/bench.h"\n',
        "client/c.cc": '#include "server/experiments/sum.h"\n',
        "client/cli/a.cc": '#include "server/experiment_file.h"\n',
        "bench/a.cc": '#include "server/worker.h"\n',
        "engine/ops/cpu/attend.cc": "#include <vector>\n",
        "engine/ops/gpu/attend.cc": "#include <cmath>\n",
        "server/a.cc": 'Use("h2o");\n',
        "engine/b.h": "#ifndef WRONG\n",
        "engine/c.cc": "x\n" * (LINES_MAX + 1),
        "engine/d.cc": "// TODO: later\n",
        "engine/g.cc": '#include "command_line/command_line.h"\n',
        "engine/e.cc": "catch (...) {\n",
        "engine/f.cc": "int x; \n",
        "engine/utils.h": "#ifndef EBB_ENGINE_UTILS_H_\n",
    }
    missed = [path for path, text in bad.items() if not list(findings(path, text))]
    good = "#ifndef EBB_SERVER_A_H_\n" + '#include "engine/engine.h"\n#include "ebb/v1/policy.pb.h"\n// issue: TODO #12\n'
    false = list(findings("server/a.h", good))
    for path in missed:
        print(f"tidy --self: nothing found in {path}")
    for line, message in false:
        print(f"tidy --self: good file, line {line}: {message}")
    return 1 if missed or false else 0


def main():
    if "--self" in sys.argv:
        return self_test()
    count = 0
    files = tracked()
    for path in files:
        for line, message in findings(path, (ROOT / path).read_text(encoding="utf-8", errors="replace")):
            print(f"{path}:{line}: {message}")
            count += 1
    print(f"tidy: {count} findings in {len(files)} files")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
