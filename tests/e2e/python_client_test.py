#!/usr/bin/env python3
"""The Python example, run as its README says, against a real server. Needs Debian's python3-grpcio and protoc."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from binaries import ROOT, Server


def run(program, *arguments, **environment):
    return subprocess.run([sys.executable, ROOT / "client/python" / program, *arguments], env={**os.environ, **environment},
                          capture_output=True, text=True, timeout=120)


class PythonClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stubs = cls.enterClassContext(tempfile.TemporaryDirectory())
        subprocess.run([ROOT / "client/python/stubs", cls.stubs], check=True)

    def test_converses_and_tidies_up(self):
        with Server() as server:
            done = run("chat.py", "The passkey of Clara is 90557. What is the passkey of Clara?", "What is the passkey of Clara?",
                       PYTHONPATH=self.stubs, EBB_ADDR=server.addr)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertGreaterEqual(done.stdout.count("90557"), 3, "the question, and both answers, name the passkey")
            self.assertEqual(done.stdout.count("[cache "), 2)
            self.assertEqual(server.ebb("sessions").strip(), "no sessions")

    def test_drafts_what_the_model_would_say_anyway(self):
        text = "one two three four one two three four one two three four one two three"
        with Server() as server:
            done = run("draft.py", text, PYTHONPATH=self.stubs, EBB_ADDR=server.addr)
            self.assertEqual(done.returncode, 0, done.stderr)
            said, rounds = re.fullmatch(r"(.*)\n\[48 tokens in (\d+) rounds\]\n", done.stdout, re.DOTALL).groups()
            plain = server.ebb("generate", "--temperature", "0", "--max-tokens", "48", "--ignore-eos", text)
            self.assertEqual(said.strip(), plain.strip())
            self.assertLess(int(rounds), 48, "a draft pays where the model repeats itself")
            self.assertEqual(server.ebb("sessions").strip(), "no sessions")

    def test_evicts_a_cache_that_is_not_ours(self):
        with Server() as server:
            done = run("plan_eviction.py", PYTHONPATH=self.stubs, EBB_ADDR=server.addr)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("256 tokens through 64 slots in 4 heads: 768 evictions", done.stdout)
        numbers = re.search(r"(\S+) apart before the first eviction, (\S+) after, a sliding window (\S+)", done.stdout).groups()
        before, planned, window = map(float, numbers)
        self.assertEqual(before, 0, "nothing has left yet")
        self.assertGreater(planned, 0)
        self.assertLess(planned, window, "what each head looks for stays")
        kept = re.findall(r"head \d: (\d+)", done.stdout)
        self.assertEqual(len(kept), 4)
        self.assertTrue(all(int(n) >= 4 for n in kept), f"the four sinks of each head stay: {done.stdout}")

    def test_says_in_a_line_what_is_missing(self):
        for missing, environment, says in (("server", {"PYTHONPATH": self.stubs, "EBB_ADDR": "127.0.0.1:1"}, "UNAVAILABLE from 127.0.0.1:1"),
                                           ("stubs", {"PYTHONPATH": ""}, "no module ebb")):
            for program in ("chat.py", "draft.py", "plan_eviction.py"):
                with self.subTest(program, missing=missing):
                    done = run(program, **environment)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(says, done.stderr)
                    self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
