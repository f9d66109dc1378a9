"""deploy/haproxy/haproxy.cfg, run by a real HAProxy. Addresses, and how it speaks to clients, are the caller's; all else is as it is shipped."""
import os
import pathlib
import shutil
import socket
import subprocess

from binaries import ROOT

CONFIG = ROOT / "deploy/haproxy/haproxy.cfg"
PROGRAM = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def replaced(text, was, becomes):
    assert text.count(was) == 1, f"{CONFIG.name} has {text.count(was)} of {was!r}"
    return text.replace(was, becomes)


class Proxy:
    """On a free port of loopback, `port`, before two `servers`; use it in a with statement. `speaks`: the parameters of its bind line. Its files are
    in `folder`. `under`: a command that starts it."""

    def __init__(self, folder, speaks, servers, under=()):
        self.under = under
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        text = replaced(CONFIG.read_text(encoding="utf-8"), "bind :7743 ssl crt /etc/haproxy/ebb.pem alpn h2", f"bind fd@{self.listener.fileno()} {speaks}")
        for number, server in enumerate(servers):
            text = replaced(text, f"ebb-{number}:7700", f"{server.addr} port {server.http.rsplit(':', 1)[1]}")
        self.config = pathlib.Path(folder, f"haproxy-{self.port}.cfg")
        self.config.write_text(text)

    def __enter__(self):
        self.log = self.config.with_suffix(".log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen([*self.under, PROGRAM, "-db", "-f", self.config], pass_fds=[self.listener.fileno()], stdout=log, stderr=log)
        self.listener.close()  # HAProxy has it
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
