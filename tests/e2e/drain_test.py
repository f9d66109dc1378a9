#!/usr/bin/env python3
"""A server that drains behind a balancer of connections, such as a Service of Kubernetes: what runs goes on, and what is new goes elsewhere."""
import contextlib
import http.client
import json
import select
import signal
import socket
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

from binaries import Server
from gate import Gate
from http2 import Connection, GOAWAY
from node_client_test import missing, node, PREFACE
from patience import PATIENCE, connected, eventually
import python_package  # noqa: F401, where ebb comes from

import ebb
import grpc
from ebb.v1 import admin_pb2, admin_pb2_grpc

POLICY = ebb.policy("streaming", budget=48)
TOKENS = 10_000  # of an answer that is still under way when all else is done
LONG = {"max_tokens": TOKENS, "ignore_eos": True}
WAITS = 10  # seconds that a client may be told to wait, all together; no clock is read


def is_ready(server):
    try:
        return urllib.request.urlopen(f"http://{server.http}/readyz", timeout=PATIENCE).status == 200
    except urllib.error.HTTPError:
        return False


class Balancer(Gate):
    """Gives each new connection to the first server that is ready; those that are there stay where they are.

    hold       while it is set nothing from a server is passed on
    asked      bytes from clients so far
    """

    def __init__(self, servers):
        super().__init__(None)
        self._servers = servers
        self.hold, self.asked = threading.Event(), 0

    def _connect(self, client):
        self.upstream = next(server.addr for server in self._servers if is_ready(server))
        super()._connect(client)

    def _pass_on(self, client, server):
        while True:
            from_server = [] if self.hold.is_set() else [server]
            for source in select.select([client, self._stopped, *from_server], [], [], 0.05)[0]:
                data = b"" if source is self._stopped else source.recv(1 << 16)
                if not data:
                    return
                self.asked += len(data) if source is client else 0
                (server if source is client else client).sendall(data)


class Dripping(threading.Thread):
    """What begins as `said` and does not end, a byte more now and then until the server hangs up."""

    def __init__(self, port, said):
        super().__init__(daemon=True)
        host, number = port.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(number)), timeout=PATIENCE)
        self.socket.sendall(said)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.join(PATIENCE)
        self.socket.close()
        assert not self.is_alive(), "the server has not hung up"

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                self.socket.sendall(b"x")
                time.sleep(0.05)


class Told(ebb.Retry):
    """The default, which notes what it was asked about and what it said."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "refusals", [])
        object.__setattr__(self, "waits", [])

    def delay(self, attempt, error, away=0.0):
        seconds = super().delay(attempt, error, away)
        self.refusals.append(error)
        self.waits.append(seconds)
        return seconds


class Drain(unittest.TestCase):
    def setUp(self):
        flags = ("--cache.arena=64MiB", "--model.threads=1", "--server.drain_timeout=100s", "--server.reader_patience=100s",
                 "--openai.listen=127.0.0.1:0")
        self.drained, self.other = (self.enterContext(Server(f"--model.name={name}", *flags)) for name in ("drained", "other"))
        self.balancer = self.enterContext(Balancer([self.drained, self.other]))
        self.retry = Told()
        self.client = self.enterContext(ebb.Client(self.balancer.addr, retry=self.retry))

    def begin(self):
        """An answer of the first server that has begun."""
        answer = self.client.session(self.client.create_session(POLICY).name).generate("Once", **LONG)
        messages = iter(answer)
        next(messages)
        return answer, messages

    def drain(self):
        """Returns when the server has sent its connections away."""
        with Connection(self.drained.addr) as watched:
            self.drained.process.send_signal(signal.SIGTERM)
            self.assertIsNotNone(watched.wait_for(GOAWAY), "a connection that is there is not told to go")

    def is_at(self, server, name):
        with ebb.Client(server.addr) as direct:
            return direct.session(name).info().name == name

    def assert_goes_on(self, answer, messages):
        self.assertIsNone(self.drained.process.poll(), "it was to be under way still")
        for _ in messages:
            pass
        self.assertEqual((len(answer.tokens), answer.breaks), (TOKENS, 0))
        self.assertEqual(self.drained.process.wait(PATIENCE), 0)

    def test_a_channel_to_it_leads_elsewhere_at_once_and_its_streams_go_on(self):
        answer, messages = self.begin()
        self.drain()
        created = self.client.create_session(POLICY)
        self.assertTrue(self.is_at(self.other, created.name))
        self.assertLess(sum(self.retry.waits), WAITS, self.retry.refusals)
        self.assert_goes_on(answer, messages)

    def test_a_call_that_meets_the_goaway_half_way_is_tried_again(self):
        answer, messages = self.begin()
        self.balancer.hold.set()
        self.drain()
        asked, created = self.balancer.asked, []
        calling = threading.Thread(target=lambda: created.append(self.client.create_session(POLICY)))
        calling.start()
        eventually(lambda: self.balancer.asked > asked, "the call goes somewhere else")
        self.balancer.hold.clear()
        calling.join(PATIENCE)
        # Every client of ours knows it by this message. Where the connection says first up to which call it goes, gRPC itself tries again.
        self.assertIn([(error.code, error.reason, error.message) for error in self.retry.refusals],
                      ([(grpc.StatusCode.UNAVAILABLE, "", "CANCELLED")], []))
        self.assertTrue(self.is_at(self.other, created[0].name))
        self.assert_goes_on(answer, messages)

    def test_who_comes_back_is_told_so_and_asked_to_go(self):
        """As when the balancer has not noticed, or there is none."""
        answer, messages = self.begin()
        self.drain()
        channel = connected(self.enterContext(grpc.insecure_channel(self.drained.addr)))
        self.assertEqual(admin_pb2_grpc.AdminServiceStub(channel).GetStatus(admin_pb2.GetStatusRequest()).state,
                         admin_pb2.SERVER_STATE_DRAINING)
        direct = self.enterContext(ebb.Client(self.drained.addr, retry=ebb.Retry(attempts=1)))
        with self.assertRaises(ebb.Unavailable) as refused:
            direct.create_session(POLICY)
        self.assertEqual((refused.exception.reason, refused.exception.retry_delay), ("DRAINING", 1))
        with Connection(self.drained.addr) as came:
            self.assertIsNotNone(came.wait_for(GOAWAY), "a connection that came back may stay")
        self.assert_goes_on(answer, messages)

    def test_a_stream_of_the_openai_port_goes_on(self):
        asked = {"model": "drained", "prompt": "Once", "max_tokens": 20000, "ignore_eos": True, "stream": True}

        def ask(**more):
            port = http.client.HTTPConnection(self.drained.openai, timeout=PATIENCE)
            self.addCleanup(port.close)
            port.request("POST", "/v1/completions", json.dumps({**asked, **more}), {"content-type": "application/json"})
            return port.getresponse()

        answer = ask(stream_options={"include_usage": True})
        events = [answer.readline()]
        self.drain()
        refused = ask()
        self.assertEqual((refused.status, refused.getheader("retry-after"), json.load(refused)["error"]["code"]), (503, "1", "DRAINING"))
        events += [line for line in answer if line.startswith(b"data: ")]
        self.assertEqual(events[-1], b"data: [DONE]\n")
        self.assertEqual(json.loads(events[-2][6:])["usage"]["completion_tokens"], 20000)

    def test_who_sends_a_request_byte_by_byte_loses_nobody_a_session(self):
        with Server("--store.durability=drain", "--openai.listen=127.0.0.1:0") as server, contextlib.ExitStack() as slow:
            server.ebb("generate", "--budget", "48", "--max-tokens", "4", "Once")
            with ebb.Client(server.addr) as direct:
                direct.create_session(POLICY)
            for port, path in ((server.http, b"/console/api/AdminService/GetStatus"), (server.openai, b"/v1/completions")):
                head = b"POST " + path + b" HTTP/1.1\r\nContent-Type: application/json\r\nX-Ebb-Console: 1\r\nContent-Length: 100000\r\n"
                slow.enter_context(Dripping(port, head + b"X: "))
                slow.enter_context(Dripping(port, head + b"\r\n"))
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(PATIENCE), 0)
        kept = [json.loads(line) for line in server.rest.splitlines() if '"event":"kept"' in line]
        self.assertEqual([(line["sessions"], line["failed"]) for line in kept], [(1, 0)])

    @unittest.skipIf(missing(), missing())
    def test_the_node_client_goes_elsewhere(self):
        done = node(["-e", PREFACE + """(async () => {
            const client = new ebb.Client(process.env.EBB_ADDR), policy = ebb.policy("streaming", { budget: 48 });
            const begun = (await client.createSession(policy)).generate("Once", { maxTokens: 3000, ignoreEos: true });
            const messages = begun[Symbol.asyncIterator]();
            await messages.next();
            process.kill(Number(process.env.DRAINED), "SIGTERM");
            while ((await fetch(process.env.READY)).ok);
            tell((await client.createSession(policy)).name);
            while (!(await messages.next()).done);
            tell([begun.tokens.length, begun.breaks]);
            client.close();
        })();"""], self.balancer.addr, DRAINED=str(self.drained.process.pid), READY=f"http://{self.drained.http}/readyz")
        self.assertEqual(done.returncode, 0, done.stderr)
        created, answer = map(json.loads, done.stdout.splitlines())
        self.assertTrue(self.is_at(self.other, created))
        self.assertEqual(answer, [3000, 0])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
