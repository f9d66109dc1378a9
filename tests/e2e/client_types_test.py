#!/usr/bin/env python3
"""The types that come with the Node and the Python package, by the checkers of those who use them. Programs that use every public name are
right to the type but where they say otherwise; what is declared is there. Skipped, with a line that says what is missing, without TypeScript
(npm) or mypy (Debian)."""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from binaries import ROOT, Server
from npm import missing, program
import python_package

import ebb

TYPES = ROOT / "tests/e2e/client_types"
NODE = ROOT / "client/node"
PYTHON = ROOT / "client/python"


def run(*command, **environment):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240, env={**os.environ, **environment})


def node_lacks():
    if not (NODE / "node_modules/@grpc/grpc-js").is_dir():
        return "node finds no grpc-js: npm install --prefix client/node"
    return missing("typescript")


@unittest.skipIf(node_lacks(), node_lacks())
class Node(unittest.TestCase):
    def test_what_is_declared_is_what_there_is(self):
        done = run("node", TYPES / "declared.mjs", NODE)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_a_difference_would_be_seen(self):
        told = (NODE / "index.d.ts").read_text(encoding="utf-8")
        for was, becomes, problems in (
                ("  accept(", "  acept(", ["Session.acept: index.js has none", "Session.accept: index.d.ts has none"]),
                ("export function user(", "export function usr(", ["usr: index.js has none", "user: index.d.ts has none"]),
                ("readonly breaks", "readonly brakes", ["Answer.brakes: index.js has none", "Answer.breaks: index.d.ts has none"]),
                ("once(method: string, request: Message)", "once(method: string)", ["Client.once: takes 2, index.d.ts says 1"])):
            with self.subTest(becomes), tempfile.NamedTemporaryFile("w", suffix=".d.ts", encoding="utf-8") as file:
                self.assertEqual(told.count(was), 1)
                file.write(told.replace(was, becomes))
                file.flush()
                self.assertEqual(sorted(run("node", TYPES / "declared.mjs", NODE, file.name).stdout.splitlines()), sorted(problems))

    def test_a_program_that_uses_every_name_compiles_and_runs(self):
        names = re.findall(r"^export (?:class|function|interface|type|\* as) (\w+)", (NODE / "index.d.ts").read_text(encoding="utf-8"), re.M)
        used = (TYPES / "use.ts").read_text(encoding="utf-8")
        self.assertEqual([name for name in names if not re.search(rf"\b{name}\b", used)], [])
        with tempfile.TemporaryDirectory() as folder:
            project = pathlib.Path(folder) / "tsconfig.json"
            project.write_text(json.dumps({"files": [str(TYPES / "use.ts")], "compilerOptions": {
                "strict": True, "rootDir": str(TYPES), "outDir": folder, "target": "es2022", "module": "commonjs",
                "paths": {"ebb-client": [str(NODE / "index.d.ts")]}, "types": ["node"], "typeRoots": [str(NODE / "node_modules/@types")],
            }}), encoding="utf-8")
            told = run(program("tsc"), "--project", project, "--pretty", "false").stdout
            faults = re.findall(r"^(\S.*?)\(\d+,\d+\): (.*)$", told, re.M)  # the newest @types/node may be too new for this compiler
            self.assertEqual([fault for fault in faults if "node_modules" not in fault[0]], [], told)
            (pathlib.Path(folder) / "node_modules").mkdir()
            (pathlib.Path(folder) / "node_modules/ebb-client").symlink_to(NODE)
            with Server() as server:
                done = run("node", f"{folder}/use.js", EBB_ADDR=server.addr)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "done\n", ""))


@unittest.skipIf(shutil.which("mypy") is None, "there is no mypy (scripts/setup test)")
class Python(unittest.TestCase):
    def mypy(self, *what):
        with tempfile.TemporaryDirectory() as cache:
            path = f"{TYPES / 'stubs'}:{python_package.FOLDER}"
            return run("mypy", "--config-file", TYPES / "mypy.ini", "--python-executable", sys.executable, "--cache-dir", cache, "--no-error-summary",
                       *what, MYPYPATH=path)

    def test_the_package_and_a_program_that_uses_every_name(self):
        used = (TYPES / "use.py").read_text(encoding="utf-8")
        self.assertEqual([name for name in ebb.__all__ if f"ebb.{name}" not in used], [])
        package = [path for path in sorted(pathlib.Path(python_package.FOLDER).glob("ebb/*.py")) if "_pb2" not in path.name]
        done = self.mypy(*package, TYPES / "use.py")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_the_examples(self):
        if importlib.util.find_spec("numpy") is None:
            self.skipTest("no NumPy")
        done = self.mypy(*sorted((PYTHON / "examples").glob("*.py")))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
