#!/usr/bin/env python3
"""A machine where IPv6 is switched off, though a name has an address of it, as `localhost` has almost everywhere: the shipped server listens at the
name's other addresses. All of it runs in namespaces of its own, which are that machine."""
import errno
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from binaries import BIN, MODEL, Server
import contained

OUTSIDE = "OUTSIDE_NETWORK"  # the network namespace from which this was begun in one of its own
HERE = os.readlink("/proc/self/ns/net")
INSIDE = os.environ.get(OUTSIDE, HERE) != HERE
SWITCH = "/proc/sys/net/ipv6/conf/all/disable_ipv6"  # there is none where the kernel has no IPv6
HOSTS = "127.0.0.1 localhost\n::1 localhost six\n"
PORTS = ("server.listen", "server.http_listen", "server.health_listen", "openai.listen")


def namespaces():
    """A command line's beginning that has a network and mounts of its own; None where the machine lets nobody."""
    command = ["unshare", "--net", "--mount", *(["--map-root-user"] if os.geteuid() != 0 else [])]
    attempt = [*command, "sh", "-c", f"mount --bind /etc/hosts /etc/hosts && {{ test ! -e {SWITCH} || echo 1 > {SWITCH}; }}"]
    return command if shutil.which("unshare") and subprocess.run(attempt, capture_output=True).returncode == 0 else None


@unittest.skipUnless(INSIDE, "nobody may have a network of his own here")
class NoIpv6(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        contained.loopback_up()
        if os.path.exists(SWITCH):
            pathlib.Path(SWITCH).write_text("1", encoding="ascii")
        hosts = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()), "hosts")
        hosts.write_text(HOSTS, encoding="ascii")
        contained.mount("--bind", str(hosts), "/etc/hosts")
        cls.addClassCleanup(subprocess.run, ["umount", "/etc/hosts"], check=True)

    def test_the_machine_is_such_a_one(self):
        self.assertEqual({at[0] for *_, at in socket.getaddrinfo("localhost", 0)}, {"::1", "127.0.0.1"})
        with self.assertRaises(OSError) as refused, socket.socket(socket.AF_INET6) as six:
            six.bind(("::1", 0))
        self.assertIn(refused.exception.errno, (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))

    def test_each_port_answers_at_the_address_that_there_is(self):
        for host in ("localhost", "0.0.0.0", "[::]"):
            with self.subTest(host), Server(*(f"--{port}={host}:0" for port in PORTS)) as server:
                at = {}
                for name in ("addr", "http", "health", "openai"):
                    named, number = getattr(server, name).rsplit(":", 1)
                    self.assertEqual(named, host)
                    at[name] = f"127.0.0.1:{number}"
                for name in ("addr", "health"):
                    done = subprocess.run([BIN / "ebb", f"--addr={at[name]}", "health"], capture_output=True, text=True, timeout=120)
                    self.assertEqual(done.stdout.strip(), "SERVING", f"{name}: {done.stderr}")
                for name, path, says in (("http", "healthz", "ok"), ("http", "metrics", "ebb_build_info"), ("openai", "v1/models", '"object":"list"')):
                    with urllib.request.urlopen(f"http://{at[name]}/{path}", timeout=120) as page:
                        self.assertIn(says, page.read().decode())

    def test_an_address_that_nobody_can_have_is_refused_by_name(self):
        for port in PORTS:
            for host in ("[::1]", "six"):
                with self.subTest(port=port, host=host):
                    others = [f"--{other}=127.0.0.1:0" for other in PORTS if other != port]
                    done = subprocess.run([BIN / "ebbd", f"--model={MODEL}", "--store.durability=off", *others, f"--{port}={host}:0"], capture_output=True,
                                          text=True, timeout=120)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertRegex(done.stderr, re.escape(f"{port}: cannot listen on {host}:0: ") + "(Cannot assign requested address|Address family not)")


if __name__ == "__main__":
    if not INSIDE and (command := namespaces()):
        os.execvpe(command[0], [*command, sys.executable, "-B", *sys.argv], {**os.environ, OUTSIDE: HERE})
    unittest.main(verbosity=2)
