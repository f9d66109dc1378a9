#!/usr/bin/env python3
"""Examples that no package's own test runs: the C++ client's against a real server. The Go example is built by hand, see client/go/README.md."""
import os
import subprocess
import unittest

from binaries import ROOT, Server

TURNS = ["The passkey of Clara is 90557. What is the passkey of Clara?", "What is the passkey of Clara?"]


class Examples(unittest.TestCase):
    def chat(self, address):
        return subprocess.run([os.environ["EBB_CHAT_EXAMPLE"], *TURNS], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "EBB_ADDR": address})

    def test_the_cpp_example_converses_and_tidies_up(self):
        with Server() as server:
            done = self.chat(server.addr)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertGreaterEqual(done.stdout.count("90557"), 3)
            self.assertIn("tokens seen]", done.stdout)
            self.assertEqual(server.ebb("sessions").strip(), "no sessions")

    def test_the_cpp_example_says_what_is_wrong(self):
        done = self.chat("127.0.0.1:1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("chat: ", done.stderr)

    def test_examples_are_short(self):
        for path in (ROOT / "client/examples/chat.cc", ROOT / "client/go/chat.go"):
            self.assertLess(len(path.read_text().splitlines()), 40, path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
