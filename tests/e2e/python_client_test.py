#!/usr/bin/env python3
"""The Python example, run as its README says, against a real server. Needs Debian's python3-grpcio and protoc."""
import os
import subprocess
import sys
import tempfile

from binaries import ROOT, Server

with tempfile.TemporaryDirectory() as stubs, Server() as server:
    subprocess.run([ROOT / "client/python/stubs", stubs], check=True)
    done = subprocess.run([sys.executable, ROOT / "client/python/chat.py", "The passkey of Clara is 90557. What is the passkey of Clara?",
                           "What is the passkey of Clara?"],
                          env={**os.environ, "PYTHONPATH": stubs, "EBB_ADDR": server.addr}, capture_output=True, text=True, timeout=120)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("90557") >= 3, "the question, and both answers, name the passkey"
    assert done.stdout.count("[cache ") == 2
    assert server.ebb("sessions").strip() == "no sessions"
