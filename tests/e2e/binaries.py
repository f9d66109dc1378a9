"""Runs the shipped binaries as a user would: a server on a free port, the command line against it."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("EBB_BIN", ROOT / "build" / "bin"))
MODEL = ROOT / "models" / "ebb-tiny-q8_0.gguf"


class Server:
    """An ebbd on free ports, with an empty store unless a flag names one; use it in a with statement. `addr` and `http` are where it listens,
    `log` its entries until then. `under`: a command that starts it. `listen`: where an earlier one was, whose place it takes. `chatty`: it says more
    than the pipe of its log holds, so that what it says from then on is read as it comes, and thrown away."""

    def __init__(self, *flags, under=(), listen="127.0.0.1:0", chatty=False):
        self.flags, self.under, self.listen, self.chatty = flags, under, listen, chatty

    def __enter__(self):
        self.store = tempfile.TemporaryDirectory()
        command = [*self.under, BIN / "ebbd", f"--listen={self.listen}", "--server.http_listen=127.0.0.1:0", f"--model={MODEL}", "--log.format=json"]
        if not any(flag.startswith("--store.dir=") for flag in self.flags):
            command.append(f"--store.dir={self.store.name}")
        # Without a buffer, which would have read lines that are the rest of the log, and keep them.
        self.process = subprocess.Popen([*command, *self.flags], stderr=subprocess.PIPE, bufsize=0)
        seen, self.log = [], []
        for line in iter(self.process.stderr.readline, b""):  # the server names its ports in the log once it listens
            line = line.decode()
            seen.append(line)
            entry = json.loads(line) if line.startswith("{") else {}
            self.log.append(entry)
            if entry.get("event") == "listening":
                self.addr, self.http, self.openai, self.health = (entry[port] for port in ("grpc", "http", "openai", "health"))
                if self.chatty:
                    self.reader = threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True)
                    self.reader.start()
                return self
        raise AssertionError("ebbd ended before it listened:\n" + "".join(seen))

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        if self.chatty:
            self.process.wait(timeout=60)
            self.reader.join(60)
        self.rest = self.process.communicate(timeout=60)[1].decode()
        self.store.cleanup()

    def resident(self):
        """Bytes of memory that it has now."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) << 10

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def ebb(self, *args, stdin="", check=0):
        """Runs `ebb` and returns its stdout; fails unless it exits with `check`."""
        done = subprocess.run([BIN / "ebb", f"--addr={self.addr}", *args], input=stdin, capture_output=True, text=True, timeout=120)
        assert done.returncode == check, f"ebb {' '.join(args)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        self.stderr = done.stderr
        return done.stdout
