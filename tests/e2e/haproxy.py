"""deploy/haproxy/haproxy.cfg, run by a real HAProxy. Addresses, and the certificate, are the caller's; all else is as it is shipped."""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess

from binaries import ROOT
from patience import eventually

CONFIG = ROOT / "deploy/haproxy/haproxy.cfg"
PROGRAM = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def replaced(text, was, becomes):
    assert text.count(was) == 1, f"{CONFIG.name} has {text.count(was)} of {was!r}"
    return text.replace(was, becomes)


def kept_port():
    """A free port of loopback, as a socket that keeps it: it never listens, and HAProxy may share it."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    kept.bind(("127.0.0.1", 0))
    return kept


class Proxy:
    """On two free ports of loopback, `port` and, for the OpenAI API, `openai`, before two `servers`; use it in a with statement. `pem`: its certificate,
    and the key; none: it speaks without TLS. Its files are in `folder`. `under`: a command that starts it. `blind`: it asks no server how it is, so that
    one that goes is there to it. `peers`: of each proxy that shares its keys, the port for it that kept_port() gave; `peer`: which of them this one is.
    `master`: as services and HAProxy's image run it, by a process that takes signals, which starts the one that works; reload() is for that alone."""

    def __init__(self, folder, pem, servers, under=(), blind=False, peers=None, peer=0, master=False):
        self.under, self.master = under, master
        self.kept = [] if peers else [kept_port()]
        # Of clients, of those that speak the OpenAI API, and of its own before each server.
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2 + len(servers))]
        self.port, self.openai, *inner = (listener.getsockname()[1] for listener in self.listeners)
        grpc, openai, *fds = [f"bind fd@{listener.fileno()} " for listener in self.listeners]
        text = CONFIG.read_text(encoding="utf-8")
        for bind, becomes, speaks in (("bind :7743 ", grpc, "alpn h2\n"), ("bind :7742 ", openai, "alpn h2,http/1.1\n")):
            text = replaced(text, f"{bind}ssl crt /etc/haproxy/ebb.pem {speaks}", f"{becomes}ssl crt {pem} {speaks}" if pem else f"{becomes}\n")
        for number, (server, port) in enumerate(zip(servers, inner)):
            text = replaced(text, f"bind 127.0.0.1:{7744 + number} ", fds[number])
            text = replaced(text, f"127.0.0.1:{7744 + number} ", f"127.0.0.1:{port} ")
            text = replaced(text, f" ebb-{number}:7700 proto h2 check ", f" {server.addr} proto h2 port {server.http.rsplit(':', 1)[1]} check ")
            text = replaced(text, f" ebb-{number}:7700 proto h2 init-addr", f" {server.addr} proto h2 init-addr")
            for limit in ("", "maxconn 16 "):  # one that has no OpenAI port: nobody is there, either
                text = replaced(text, f" ebb-{number}:7702 {limit}track ", f" {server.openai or '127.0.0.1:9'} {limit}track ")
        lines = [f"    peer proxy-{i} 127.0.0.1:{kept.getsockname()[1]}\n" for i, kept in enumerate(peers or self.kept)]
        text = replaced(text, "    peer proxy-0 127.0.0.1:7746\n", "".join(lines))
        text = replaced(text, "    localpeer proxy-0\n", f"    localpeer proxy-{peer}\n")
        if blind:
            text = re.sub(" check check-proto h1| track ebb/ebb-.", "", text)
        self.config = pathlib.Path(folder, f"haproxy-{self.port}.cfg")
        self.config.write_text(text)

    def __enter__(self):
        self.log = self.config.with_suffix(".log")
        with self.log.open("w") as log:
            command = [*self.under, PROGRAM, *(["-W"] if self.master else []), "-db", "-f", self.config]
            self.process = subprocess.Popen(command, pass_fds=[listener.fileno() for listener in self.listeners], stdout=log, stderr=log)
        for listener in self.listeners:
            listener.close()  # HAProxy has it
        return self

    def workers(self):
        """The processes that serve, of a master's: those from before a reload, too, while they have calls."""
        return pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii").split()

    def reload(self):
        """Its configuration is read anew, by a new process, and calls that begin from now on are that one's. Returns which one was there before."""
        before = re.findall(r"New worker \((\d+)\) forked", self.log.read_text())[-1]
        self.process.send_signal(signal.SIGUSR2)
        eventually(lambda: f"({before}) : Proxy ebb stopped" in self.log.read_text(), "the process from before listens on")
        return before

    def __exit__(self, *_):
        self.process.terminate()  # a master ends what it started
        self.process.wait()
        for kept in self.kept:
            kept.close()
