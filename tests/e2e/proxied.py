"""Two real servers behind a real HAProxy, as its tests have them."""
import contextlib
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest

from binaries import Server
import haproxy
from patience import PATIENCE, eventually
import python_package  # noqa: F401, where the stubs are, for the imports that follow

import grpc
from ebb.v1 import inference_pb2, inference_pb2_grpc, session_pb2, session_pb2_grpc

TOOLS = {"haproxy": haproxy.PROGRAM, "openssl": shutil.which("openssl")}
MISSING = [name for name, path in TOOLS.items() if not path]


def connections(port):
    """Those to `port` of this machine, as their rows (proc(5), net/tcp)."""
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]


def unread(port):
    """Bytes that lie before the process that has the connections to `port` of this machine."""
    return sum(int(row[4].split(":")[1], 16) for row in connections(port))


def small_session():
    request = session_pb2.CreateSessionRequest()
    request.policy.streaming.SetInParent()
    request.policy.trigger.budget = 32
    return request


def padded(request, size):
    """`request` with so many bytes behind it, 2^14 to 2^21, that the server skips: field 1023."""
    return type(request).FromString(request.SerializeToString() + b"\xfa\x3f" + bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14)) + bytes(size))


class Proxied(unittest.TestCase):
    """Two servers behind a proxy, anew for each test. `blind`: it does not notice that one of them goes. `flags_of`: further ones of a server."""
    blind = False
    flags_of = ((), ())

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        key, cls.certificate = pathlib.Path(cls.folder, "key"), pathlib.Path(cls.folder, "ebb.crt")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=ebb",
                        "-addext", "subjectAltName=DNS:ebb.test", "-keyout", key, "-out", cls.certificate], check=True, capture_output=True)
        cls.pem = pathlib.Path(cls.folder, "ebb.pem")
        cls.pem.write_text(cls.certificate.read_text() + key.read_text())

    def setUp(self):
        with contextlib.ExitStack() as stack:
            stores = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]
            self.flags = [(f"--model.name=server-{i}", "--cache.arena=64MiB", "--model.threads=1", "--server.drain_timeout=100s",
                           f"--store.dir={store}", "--store.durability=step", *self.flags_of[i]) for i, store in enumerate(stores)]
            self.servers = [stack.enter_context(Server(*flags)) for flags in self.flags]
            self.addCleanup(stack.pop_all().close)
        self.proxy = self.begin_proxy()

    def begin_proxy(self, **how):
        return self.enterContext(haproxy.Proxy(self.folder, self.pem, self.servers, blind=self.blind, **how))

    def channel(self, proxy=None):
        """A connection of its own through that proxy."""
        options = [("grpc.ssl_target_name_override", "ebb.test"), ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1),
                   ("grpc.enable_retries", 0)]
        return self.enterContext(grpc.secure_channel(f"127.0.0.1:{(proxy or self.proxy).port}",
                                                     grpc.ssl_channel_credentials(self.certificate.read_bytes()), options))

    def straight(self, number):
        """A connection to that server."""
        return self.enterContext(grpc.insecure_channel(self.servers[number].addr, [("grpc.enable_http_proxy", 0)]))

    def create(self, key, channel=None, request=None):
        """A new session of the caller's `key`; returns which server has it."""
        sessions = session_pb2_grpc.SessionServiceStub(channel or self.channel())
        session = sessions.CreateSession(request or small_session(), metadata=[("x-ebb-session", key)], timeout=PATIENCE, wait_for_ready=True)
        return session, int(session.model.removeprefix("server-"))

    def key_of(self, server):
        """A key whose calls go to that server."""
        channel = self.channel()
        return next(key for key in (f"caller-{i}" for i in range(50)) if self.create(key, channel)[1] == server)

    def look(self, session, key, channel=None):
        sessions = session_pb2_grpc.SessionServiceStub(channel or self.channel())
        return sessions.GetSession(session_pb2.GetSessionRequest(name=session.name), metadata=[("x-ebb-session", key)], timeout=PATIENCE)

    def generate(self, session, key, tokens, channel=None):
        request = inference_pb2.GenerateRequest(session=session.name)
        request.prompt.text = "It was a dark and stormy night"
        request.sampling.temperature = 0
        request.stopping.max_tokens = tokens
        request.stopping.ignore_eos = True
        return inference_pb2_grpc.InferenceServiceStub(channel or self.channel()).Generate(request, metadata=[("x-ebb-session", key)],
                                                                                           timeout=PATIENCE)

    def pause(self, number):
        """That server has what comes, and answers nothing; returns its port."""
        server = self.servers[number].process
        server.send_signal(signal.SIGSTOP)
        self.addCleanup(server.send_signal, signal.SIGCONT)
        eventually(lambda: all(path.read_text().rsplit(")", 1)[1].split()[0] == "T" for path in pathlib.Path(f"/proc/{server.pid}/task").glob("*/stat")),
                   "a thread runs on")
        return int(self.servers[number].addr.rsplit(":", 1)[1])
