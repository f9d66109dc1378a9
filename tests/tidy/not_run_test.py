#!/usr/bin/env python3
"""scripts/not-run finds each reason in ctest's log for which a test was skipped, and every Python test gives its own."""
import importlib.machinery
import importlib.util
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("not_run", str(ROOT / "scripts/not-run"))
not_run = importlib.util.module_from_spec(importlib.util.spec_from_loader("not_run", loader))
loader.exec_module(not_run)

ENTRY = '"{0}" start time: Nov 25 18:56 UTC\nOutput:\n----------\n{1}<end of output>\nTest time =   0.00 sec\n----------\n"{0}" end time: Nov 25 18:56 UTC\n'
LOG = "".join(ENTRY.format(name, text) for name, text in (
    ("e2e/chart", "test_a (chart_test.Rendered)\nSays what. ... skipped 'no helm'\ntest_b ... ok\n\nOK (skipped=1)\n"),
    ("e2e/docs", 'test_c (docs_test.Commands) ... skipped "there\'s no openssl"\n'),
    ("e2e/image", "test_d ... skipped 'no helm'\n"),
    ("e2e/tokenizers", "skipped: no package.json's packages\n"),
    ("unit/metrics_test.A", "[ RUN      ] metrics_test.A\n/x/metrics_test.cc:255: Skipped\npromtool is not installed\n\n[  SKIPPED ] metrics_test.A\n"),
    ("unit/select_test.B", "free slots are skipped\n[       OK ] select_test.B\n")))


class NotRun(unittest.TestCase):
    def test_each_reason_is_found_once_with_whose_it_is(self):
        self.assertEqual(not_run.reasons(LOG), {
            "no helm": {"e2e/chart", "e2e/image"}, "there's no openssl": {"e2e/docs"}, "no package.json's packages": {"e2e/tokenizers"},
            "promtool is not installed": {"unit/metrics_test.A"}})
        self.assertIn("skipped: no helm (e2e/chart, e2e/image)", not_run.report(LOG, has_npm=True))

    def test_a_run_that_skips_nothing_says_so_and_names_the_rest(self):
        lines = not_run.report("", has_npm=True)
        self.assertEqual(lines[0], "skipped: nothing")
        self.assertEqual(len(lines), 3 + len(not_run.NEVER) + len(not_run.LONG))

    def test_a_missing_npm_is_named(self):
        self.assertIn("there is no npm", not_run.report("", has_npm=False)[0])

    def test_the_verbs_it_names_are_there(self):
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for verb in re.findall(r"make (\S+)", str((not_run.NEVER, not_run.LONG)).replace("'", " ")):
            self.assertRegex(makefile, rf"(?m)^{verb}:")

    def test_every_python_test_gives_its_reasons(self):
        for path in ROOT.glob("tests/**/*_test.py"):
            if "node_modules" not in path.parts:
                self.assertNotRegex(path.read_text(encoding="utf-8"), r"unittest\.main\(\)", f"{path}: verbosity=2 shows why a test is skipped")


if __name__ == "__main__":
    unittest.main(verbosity=2)
