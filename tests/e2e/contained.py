#!/usr/bin/env python3
"""Runs a command from an image's root filesystem, as a container would that may do little: root read-only, no capabilities, no new
privileges, namespaces of its own, and no network but its own loopback.

    contained.py ROOT USER WRITABLE COMMAND...    USER is a number, WRITABLE a folder that ROOT/var/lib/ebb becomes

Must be root, and started by `unshare` with the namespaces; `start` does, `enter` joins one that runs.
"""
import fcntl
import os
import socket
import struct
import subprocess
import sys

SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def bare(user):
    """A command line's beginning that leaves it nothing but its user; setpriv is the image's own."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


def start(root, user, writable, command, **popen):
    return subprocess.Popen(["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", sys.executable, "-B", __file__, root,
                             str(user), writable, *command], **popen)


def enter(process, user, command, **run):
    """Runs another command where `process`, of start(), has its first."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as children:
        first = children.read().split()[0]
    return subprocess.run(["nsenter", f"--target={first}", "--mount", "--net", "--pid", "--ipc", "--uts", "--root", "--wd", *bare(user), *command],
                          **{"capture_output": True, "text": True, "timeout": 120, **run})


def loopback_up():
    """What a network namespace has of its own is down at first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def mount(*words):
    subprocess.run(["mount", *words], check=True)


def main(root, user, writable, *command):
    mount("--make-rprivate", "/")
    mount("--bind", root, root)
    mount("--bind", writable, f"{root}/var/lib/ebb")
    mount("-t", "proc", "proc", f"{root}/proc")
    mount("-t", "tmpfs", "-o", "mode=755,size=64k", "tmpfs", f"{root}/dev")
    for name in ("null", "zero", "urandom"):
        os.mknod(f"{root}/dev/{name}", 0o020666, os.stat(f"/dev/{name}").st_rdev)
        os.chmod(f"{root}/dev/{name}", 0o666)
    mount("-o", "remount,bind,ro", root)
    loopback_up()
    os.chroot(root)
    os.chdir("/var/lib/ebb")
    os.execvp("setpriv", [*bare(user), *command])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
