"""deploy/haproxy/haproxy.cfg, run by a real HAProxy. Addresses, and how it speaks to clients, are the caller's; all else is as it is shipped."""
import os
import pathlib
import re
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
    in `folder`. `under`: a command that starts it. `blind`: it asks no server how it is, so that one that goes is there to it."""

    def __init__(self, folder, speaks, servers, under=(), blind=False):
        self.under = under
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(1 + len(servers))]  # of clients, and of its own before each server
        self.port, *inner = (listener.getsockname()[1] for listener in self.listeners)
        fds = [f"bind fd@{listener.fileno()} " for listener in self.listeners]
        text = replaced(CONFIG.read_text(encoding="utf-8"), "bind :7743 ssl crt /etc/haproxy/ebb.pem alpn h2", fds[0] + speaks)
        for number, (server, port) in enumerate(zip(servers, inner)):
            text = replaced(text, f"bind 127.0.0.1:{7744 + number} ", fds[1 + number])
            text = replaced(text, f"127.0.0.1:{7744 + number} ", f"127.0.0.1:{port} ")
            text = replaced(text, f" ebb-{number}:7700 proto h2 check ", f" {server.addr} proto h2 port {server.http.rsplit(':', 1)[1]} check ")
            text = replaced(text, f" ebb-{number}:7700 proto h2 init-addr", f" {server.addr} proto h2 init-addr")
        if blind:
            text = re.sub(" check check-proto h1| track ebb/ebb-.", "", text)
        self.config = pathlib.Path(folder, f"haproxy-{self.port}.cfg")
        self.config.write_text(text)

    def __enter__(self):
        self.log = self.config.with_suffix(".log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen([*self.under, PROGRAM, "-db", "-f", self.config], pass_fds=[listener.fileno() for listener in self.listeners], stdout=log, stderr=log)
        for listener in self.listeners:
            listener.close()  # HAProxy has it
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
