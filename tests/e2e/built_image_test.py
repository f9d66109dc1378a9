#!/usr/bin/env python3
"""The image that `make image` built runs as its own configuration says, from its root filesystem, read-only and without capabilities.

EBB_IMAGE names it, or build/image/ebb.tar is it; it is skipped where there is none, since building it takes minutes and Debian's mirror, and
where it is older than the programs that it should have: what it would say is of other ones.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest

from binaries import ROOT
import contained
from patience import eventually

GIVEN = "EBB_IMAGE" in os.environ
IMAGE = pathlib.Path(os.environ.get("EBB_IMAGE", ROOT / "build/image/ebb.tar"))
SIZE_MAX = 250 << 20  # bytes, unpacked: it was 181 MB when this was written, two thirds of it Debian's base
WITHOUT = ("cc gcc g++ c++ clang cpp as ld make cmake ninja go rustc python3 protoc "  # nothing that makes programs,
           "curl wget nc ncat ssh gpg").split()  # or fetches them


def may_contain():
    done = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True) if shutil.which("unshare") else None
    return done is not None and done.returncode == 0 and os.geteuid() == 0


def older_than(image, folder):
    """The first of the image's programs in `folder` that is newer than `image`; None where none is."""
    if not image.exists():
        return None
    made = image.stat().st_mtime
    return next((path.name for name in ("ebbd", "ebb") if (path := folder / name).exists() and path.stat().st_mtime > made), None)


STALE = None if GIVEN else older_than(IMAGE, ROOT / "build/bin")


def packages(status):
    """{name: [[alternatives of one dependency]]} of dpkg's list."""
    found = {}
    for entry in status.split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)$", entry, re.MULTILINE))
        if "ok installed" in fields.get("Status", ""):
            needs = ", ".join(fields[name] for name in ("Depends", "Pre-Depends") if name in fields)
            provides = [re.split(r"[ (:]", word)[0] for word in fields.get("Provides", "").split(", ")]
            found[fields["Package"]] = ([[re.split(r"[ (:]", word)[0] for word in one.split(" | ")] for one in needs.split(", ") if one], provides)
    return found


class Stale(unittest.TestCase):
    def test_an_image_is_as_old_as_the_newest_of_its_programs(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        image = folder / "ebb.tar"
        self.assertIsNone(older_than(image, folder), "there is none")
        for path, seconds in ((image, 20), (folder / "ebbd", 10)):
            path.touch()
            os.utime(path, (seconds, seconds))
        self.assertIsNone(older_than(image, folder))
        (folder / "ebb").touch()
        self.assertEqual(older_than(image, folder), "ebb")


@unittest.skipUnless(IMAGE.exists(), f"there is no image at {IMAGE}: make image-test")
@unittest.skipIf(STALE, f"{IMAGE} is older than build/bin/{STALE}, so that it has another one: make image-test")
@unittest.skipUnless(may_contain(), "namespaces are not to be had: they take root")
class BuiltImage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        with tarfile.open(IMAGE) as image:
            (manifest,) = json.load(image.extractfile("manifest.json"))
            cls.config = json.load(image.extractfile(manifest["Config"]))["config"]
            cls.root = cls.folder / "root"
            cls.root.mkdir(mode=0o755)
            for layer in manifest["Layers"]:
                with tarfile.open(fileobj=image.extractfile(layer)) as files:
                    files.extraction_filter = staticmethod(lambda member, _: member)  # it is ours, and has to be whole
                    for member in files:  # what a later layer takes away
                        name = pathlib.Path(member.name)
                        if name.name.startswith(".wh."):
                            gone = cls.root / name.with_name(name.name.removeprefix(".wh."))
                            shutil.rmtree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink(missing_ok=True)
                        else:
                            files.extract(member, cls.root, numeric_owner=True)

    def files(self):
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = pathlib.Path(folder, name)
                if stat.S_ISREG((status := path.lstat()).st_mode):
                    yield path, status

    def test_it_says_what_it_is(self):
        self.assertEqual(self.config["User"], "65532:65532")
        self.assertEqual(self.config["StopSignal"], "SIGTERM")
        self.assertEqual(self.config["Healthcheck"]["Test"], ["CMD", "ebb", "--addr=127.0.0.1:7703", "health"])
        self.assertEqual(sorted(self.config["ExposedPorts"]), ["7700/tcp", "7701/tcp"])
        self.assertEqual(list(self.config["Volumes"]), ["/var/lib/ebb"], "the root may be read-only where nobody gave it one")
        labels = self.config["Labels"]
        self.assertEqual((labels["org.opencontainers.image.title"], labels["org.opencontainers.image.licenses"]), ("ebb", "Apache-2.0"))
        self.assertRegex(labels["org.opencontainers.image.revision"], "^[0-9a-f]{12}$")
        self.assertRegex(labels["org.opencontainers.image.created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")

    def test_it_holds_little(self):
        size = sum(status.st_size for _, status in self.files())
        print(f"the image's files: {size / 1e6:.0f} MB")
        self.assertLess(size, SIZE_MAX)
        there = {path.name for folder in ("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin") for path in (self.root / folder).iterdir()}
        self.assertLessEqual({"ebbd", "ebb", "setpriv"}, there)
        self.assertEqual([name for name in there if re.sub(r"-\d+$|^x86_64-linux-gnu-", "", name) in WITHOUT], [])

    def test_nobody_becomes_somebody_else(self):
        self.assertEqual([path for path, status in self.files() if status.st_mode & 0o6000], [])
        writable = [path for path, status in self.files() if status.st_uid == 65532 or status.st_mode & 0o002]
        self.assertEqual(writable, [])
        store = (self.root / "var/lib/ebb").stat()
        self.assertEqual((store.st_uid, store.st_gid, stat.S_IMODE(store.st_mode)), (65532, 65532, 0o700))

    def test_its_packages_are_the_bases_and_what_the_programs_need(self):
        there = packages((self.root / "var/lib/dpkg/status").read_text(encoding="utf-8"))
        (section,) = re.findall(r"^\[run\]\n(.*?)(?:^\[|\Z)", (ROOT / "packages.txt").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        wanted = section.split()
        self.assertLessEqual(set(wanted), set(there))
        # Debian's base is what is essential, apt, and what they need.
        essential = re.findall(r"^Package: (\S+)\n(?:(?!Package: )[^\n]+\n)*?(?:Essential: yes|Priority: required)",
                               (self.root / "var/lib/dpkg/status").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertIn("dpkg", essential)
        provided = {virtual: name for name, (_, provides) in there.items() for virtual in provides}
        explained, left = set(), [*wanted, *essential, "apt"]
        while left:
            name = provided.get(left[0], left[0])
            left.pop(0)
            if name in there and name not in explained:
                explained.add(name)
                left += [word for one in there[name][0] for word in one]
        self.assertEqual(set(there) - explained, set(), "packages that nothing in the image needs")

    def test_it_runs_read_only_and_without_capabilities(self):
        store = self.folder / "store"
        store.mkdir()
        os.chown(store, 65532, 65532)
        user = int(self.config["User"].split(":")[0])
        environment = dict(each.split("=", 1) for each in self.config["Env"])
        for session, has in (("first", []), ("second", ["first"])):  # docker/ebb.yaml says durability: drain
            server = contained.start(self.root, user, store, self.config["Entrypoint"], env=environment, stderr=subprocess.PIPE, bufsize=0)
            try:
                seen = []
                for line in iter(server.stderr.readline, b""):
                    seen.append(line.decode())
                    if '"event":"listening"' in seen[-1]:
                        break
                else:
                    self.fail("it ended before it listened:\n" + "".join(seen))
                self.assertIn('"0.0.0.0:7700"', seen[-1])

                def inside(*command, check=0):
                    done = contained.enter(server, user, command, env=environment)
                    self.assertEqual(done.returncode == 0, check == 0, f"{command}\n{done.stdout}\n{done.stderr}")
                    return done.stdout + done.stderr
                eventually(lambda: inside(*self.config["Healthcheck"]["Test"][1:]) == "SERVING\n", "it is not healthy")
                status = dict(re.findall(r"^(\w+):\s*(.*)$", inside("cat", "/proc/1/status"), re.MULTILINE))
                self.assertEqual(status["Name"], "ebbd", "the server is the first process, which gets the signal")
                self.assertEqual(set(status["Uid"].split() + status["Gid"].split()), {str(user)})
                self.assertEqual({status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}, {"0" * 16})
                self.assertEqual(status["NoNewPrivs"], "1")
                for folder in ("/", "/etc/ebb", "/usr/local/bin", "/tmp", "/var/lib"):
                    self.assertRegex(inside("touch", f"{folder}/x", check=1), "Read-only file system|Permission denied")
                self.assertIn("Read-only file system", inside("touch", "/tmp/x", check=1))
                sessions = inside("ebb", "--json", "sessions")
                self.assertEqual([name for name in ("first", "second") if f"sessions/{name}" in sessions], has)
                inside("ebb", "sessions", "create", session, "--policy=streaming", "--budget=32")
                self.assertGreater(len(inside("ebb", "generate", "--quiet", f"--session={session}", "--max-tokens=48", "It was a dark and stormy night")), 48)
            finally:
                if server.poll() is None:
                    with open(f"/proc/{server.pid}/task/{server.pid}/children", encoding="ascii") as children:
                        os.kill(int(children.read().split()[0]), signal.SIGTERM)  # as a runtime does: to the first process
                rest = server.communicate(timeout=120)[1].decode()
            self.assertEqual(server.returncode, 0, rest)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
