#!/usr/bin/env python3
"""A real volume that is full, of bytes and of files: who asks is told, nobody waits in silence, and all is well once there is room."""
import os
import re
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from binaries import Server


def namespaces():
    """A command line's beginning that may mount; None where the machine lets nobody."""
    command = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    done = subprocess.run([*command, "sh", "-c", "mount -t tmpfs tmpfs /mnt"], capture_output=True)
    return command if done.returncode == 0 else None


class Volume:
    """A server whose journals lie on a tmpfs of its own with `options`; use it in a with statement."""

    def __init__(self, options):
        self.options = options

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        script = f'mount -t tmpfs -o {self.options} tmpfs "$0" && exec "$@"'
        self.server = Server(f"--store.dir={self.folder.name}", "--store.durability=step", under=(*namespaces(), "sh", "-c", script, self.folder.name))
        self.server.__enter__()
        self.seen = f"/proc/{self.server.process.pid}/root{self.folder.name}"  # from outside its namespace
        return self

    def __exit__(self, *_):
        self.server.__exit__()
        self.folder.cleanup()

    def ready(self):
        try:
            return urllib.request.urlopen(f"http://{self.server.http}/readyz", timeout=10).read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()

    def wait_for(self, words):
        until = time.monotonic() + 60
        while words not in (said := self.ready()):
            assert time.monotonic() < until, f"{words!r} is expected, /readyz says {said!r}"
            time.sleep(0.05)
        return said


@unittest.skipUnless(namespaces(), "nobody may mount here")
class FullDisk(unittest.TestCase):
    def test_of_bytes(self):
        with Volume("size=4m") as volume:
            volume.wait_for("ready")
            self.assertEqual(volume.server.ebb("health").strip(), "SERVING")
            with self.assertRaises(OSError), open(f"{volume.seen}/fill", "wb", buffering=0) as fill:
                while True:
                    fill.write(bytes(1 << 16))
            with self.assertRaises(OSError), open(f"{volume.seen}/fill", "ab", buffering=0) as fill:
                while True:
                    fill.write(bytes(1))
            volume.wait_for("the volume has 0 bytes free, of 1048576 that are needed")
            time.sleep(1.5)  # the gRPC port says the same, up to a second later
            self.assertEqual(volume.server.ebb("health", check=1).strip(), "NOT_SERVING")
            self.assertEqual(volume.server.ebb("health", "readiness", check=1).strip(), "NOT_SERVING")
            self.assertEqual(volume.server.ebb("health", "liveness").strip(), "SERVING")
            volume.server.ebb("sessions", "create", "a", check=1)
            said = volume.server.stderr.splitlines()
            refusal = (r"^ebb: UNAVAILABLE JOURNAL_FAILED: the journal of sessions/a cannot be begun: the store has no room: writing a\.1\.snapshot: "
                       r"No space left on device; it begins with [1-9]\d* bytes in store\.dir, where 0 are free \(retry in 5s\)")
            self.assertEqual(len(said), 3, said)
            for line in said[:2]:
                self.assertRegex(line, refusal + r"; tried again in 5s$")
            self.assertRegex(said[2], refusal + "$")
            os.remove(f"{volume.seen}/fill")
            volume.server.ebb("sessions", "create", "a")
            volume.wait_for("ready")
            time.sleep(1.5)
            self.assertEqual(volume.server.ebb("health").strip(), "SERVING")

    def test_of_files(self):
        with Volume("size=16m,nr_inodes=40") as volume:
            volume.wait_for("ready")
            names = [f"{volume.seen}/{i}" for i in range(100)]
            with self.assertRaises(OSError):
                for name in names:
                    open(name, "wb").close()
            said = volume.wait_for("room for")
            self.assertIsNotNone(re.search(r"the volume has room for [0-2] files, of 3 that are needed", said), said)
            volume.server.ebb("sessions", "create", "a", check=1)
            self.assertRegex(volume.server.stderr, r"No space left on device; it begins with 3 files in store\.dir, where there is room for [0-2] \(")
            for name in filter(os.path.exists, names):
                os.remove(name)
            volume.wait_for("ready")


if __name__ == "__main__":
    unittest.main(verbosity=2)
