"""A Docker daemon of its own, in namespaces of its own: its bridge, rules, mounts and processes are gone when it is, and its ports are nobody else's, so
that commands run as a page has them. Images that no registry is at hand for are made of this machine's programs."""
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import contained
from patience import eventually

FOLDER = "DOCKER_TEST_FOLDER"  # the variable that says where its files are; set inside
ETC = pathlib.Path("/etc/docker")  # where it writes a key, whatever it is told
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
NAMESPACES = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]


def why_not():
    """Why no daemon can be run here, as far as that can be said before it is tried; None where one can."""
    for program, package in (("dockerd", "docker.io"), ("docker", "docker.io"), ("iptables", "iptables"), ("unshare", "util-linux")):
        if shutil.which(program, path=PATH) is None:
            return f"{program} is not installed (Debian: {package})"
    if os.geteuid() != 0:
        return "dockerd takes root"
    if subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode:
        return "namespaces are not to be had, in which dockerd would run"
    return None


def inside():
    return FOLDER in os.environ


def within(script):
    """Runs `script` again in namespaces and with a folder of its own, takes away what it leaves, and returns how it ended."""
    made = not ETC.exists()
    ETC.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if not re.fullmatch("(?i)DOCKER_.*|COMPOSE_.*|[a-z]+_proxy", name)}
        try:
            return subprocess.run([*NAMESPACES, sys.executable, "-B", script, *sys.argv[1:]],
                                  env={**environment, "PATH": PATH, "DOCKER_CONFIG": f"{folder}/config", FOLDER: folder}).returncode
        finally:
            for hierarchy in pathlib.Path("/sys/fs/cgroup").glob(f"**/{cgroup(folder)}"):
                for each, _, _ in os.walk(hierarchy, topdown=False):
                    os.rmdir(each)
            if made:
                ETC.rmdir()


def cgroup(folder):
    return f"ebb-{pathlib.Path(folder).name}"


class Daemon:
    """Use it in a with statement, inside. What is not there for it to run is told by NotHere."""

    class NotHere(Exception):
        pass

    def __enter__(self):
        folder = os.environ[FOLDER]
        contained.loopback_up()
        data = pathlib.Path(folder, "data")  # in memory, some 500 MB: it takes a disk as long to lose them as to have them
        data.mkdir()
        for hidden in ("/run", ETC, data):  # with the socket of a daemon that this machine may have
            contained.mount("-t", "tmpfs", "-o", "size=3g", "tmpfs", hidden)
        config = pathlib.Path(folder, "daemon.json")
        config.write_text("{}")
        self.log = pathlib.Path(folder, "log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(["dockerd", f"--config-file={config}", f"--data-root={data}", f"--cgroup-parent=/{cgroup(folder)}",
                                             "--exec-opt=native.cgroupdriver=cgroupfs"], stdout=log, stderr=log)
        eventually(lambda: self.process.poll() is not None or subprocess.run(["docker", "version"], capture_output=True).returncode == 0,
                   lambda: "dockerd does not answer:\n" + self.log.read_text())
        if self.process.returncode is not None:
            raise self.NotHere("dockerd does not run here: " + (self.log.read_text().splitlines() or ["it says nothing"])[-1])
        # Debian's own program, with a network and a port, has to run before one of ours is asked to.
        stand_in("probe", "true", "ENTRYPOINT [\"true\"]")
        tried = subprocess.run(["docker", "run", "--rm", "--read-only", "--publish=127.0.0.1:7700:7700", "--memory=64m", "probe"], capture_output=True,
                               text=True)
        if tried.returncode:
            self.__exit__()
            raise self.NotHere("dockerd can run no container here: " + tried.stderr.strip().splitlines()[0])
        return self

    def __exit__(self, *_):
        self.process.kill()  # what it runs goes with the namespaces, and its files with the folder
        self.process.wait()


def stand_in(name, program, *changes, folders=()):
    """An image `name` of this machine's `program` and the libraries that it is linked with, nothing else, and of `changes`, lines as of a Dockerfile.
    `folders`: further ones, as (path, owner)."""
    path = shutil.which(program, path=PATH)
    libraries = re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", dereference=True) as files:
        for each in libraries:
            files.add(os.path.realpath(each), each.lstrip("/"))
        files.add(os.path.realpath(path), f"usr/bin/{program}")
        for folder, owner in (("tmp", 0), *folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o755, owner, owner
            files.addfile(entry)
    told = [word for change in ("ENV PATH=/usr/bin", *changes) for word in ("--change", change)]
    subprocess.run(["docker", "import", *told, "-", name], input=content.getvalue(), stdout=subprocess.DEVNULL, check=True)
