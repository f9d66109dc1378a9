#!/usr/bin/env python3
"""What a port gets to see that others can reach: no HTTP/2, half of it, floods, bombs, clients that vanish or do not read. Somebody else's
answer goes on all the while, and when all is over the server holds nothing and is as it was.

    make abuse                          against a build with AddressSanitizer; abuse_latency.py then measures what the other one felt

Needs Debian's python3-grpcio and protoc."""
import contextlib
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

import attacks
from attacks import Client, ENDLESS, SMALL, TEXT
from binaries import BIN, Server
from http2 import ACK, Connection, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, STREAMS, WINDOW_UPDATE, call_headers, frame, message
from patience import PATIENCE, eventually

import grpc
from ebb.v1 import admin_pb2 as admin, inference_pb2 as inference, sampling_pb2 as sampling, session_pb2 as session

SANITIZED = bool(os.environ.get("EBB_SANITIZED"))  # which keeps freed memory, so that its size says nothing
MEMORY = 384 << 20  # bytes by which an attack that would have it take gigabytes may let the server grow: gRPC's buffers have 256 MiB


class Witness(threading.Thread):
    """Reads an answer without end; `heard` counts its messages."""

    def __init__(self, client):
        super().__init__(daemon=True)
        self.name_of_session, self.heard, self.ended = client.made(), 0, None
        self.stream = client.Decode(inference.DecodeRequest(session=self.name_of_session, stopping=ENDLESS))
        self.start()

    def run(self):
        try:
            for _ in self.stream:
                self.heard += 1
            self.ended = "an endless answer ended"
        except grpc.RpcError as error:
            self.ended = error

    def goes_on(self, messages=20):
        wanted = self.heard + messages
        eventually(lambda: self.ended or self.heard >= wanted, lambda: f"the witness hears no more: {self.heard} of {wanted}")
        assert self.ended is None, self.ended


class Abuse(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--server.keepalive=5s", "--cache.arena=32MiB", "--store.durability=off"))
        cls.addr, cls.pid = cls.server.addr, cls.server.process.pid
        cls.said = []  # a pipe that nobody empties would be one more slow reader
        cls.reader = threading.Thread(target=lambda: cls.said.extend(line.decode() for line in cls.server.process.stderr), daemon=True)
        cls.reader.start()
        cls.client = Client(cls.addr)
        cls.witness = Witness(Client(cls.addr))  # gRPC ends a whole connection for metadata that is too large
        cls.witness.goes_on(300)
        cls.files = cls.server.open_files()

    @classmethod
    def tearDownClass(cls):
        cls.witness.stream.cancel()
        cls.witness.join(PATIENCE)
        eventually(lambda: cls.client.state(cls.witness.name_of_session) == session.SESSION_STATE_IDLE, "the witness does not leave")
        assert cls.witness.ended.code() == grpc.StatusCode.CANCELLED, cls.witness.ended
        work = cls.client.GetStatus(admin.GetStatusRequest()).work
        assert (work.requests_running, work.requests_queued) == (0, 0), work
        for reason in ("UNKNOWN", "INTERNAL", "DATA_LOSS"):
            assert cls.metric(f'ebb_errors_total{{reason="{reason}"}}') == 0, reason
        eventually(lambda: cls.server.open_files() <= cls.files + 2, lambda: f"{cls.server.open_files()} files are open, {cls.files} were before")
        cls.server.process.terminate()
        assert cls.server.process.wait(timeout=PATIENCE) == 0, "".join(cls.said[-50:])
        cls.reader.join(PATIENCE)
        for line in cls.said:
            assert line.startswith("{") and json.loads(line), line  # what libraries say, too

    @classmethod
    def metric(cls, series):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{cls.server.http}/metrics", timeout=PATIENCE) as answer:
            return float(re.search(rf"^{re.escape(series)} (\S+)$", answer.read().decode(), re.M).group(1))

    def setUp(self):
        self.memory = self.server.resident()

    def tearDown(self):
        self.witness.goes_on()
        self.assertIsNone(self.server.process.poll(), "the server has ended")
        late_comer = Client(self.addr)
        answer = late_comer.Generate(inference.GenerateRequest(prompt=TEXT, policy=SMALL, block_size=8, stopping=sampling.Stopping(max_tokens=5)))
        self.assertGreater(len(list(answer)), 0)
        late_comer.channel.close()
        if not SANITIZED:
            self.assertLess(self.server.resident() - self.memory, MEMORY)

    def is_idle_but_for_the_witness(self):
        return self.client.running() <= 1

    def running(self, connection, stream=1):
        """A session that answers on this connection without end."""
        name = self.client.made()
        connection.call(stream, "InferenceService/Decode", inference.DecodeRequest(
            session=name, stopping=sampling.Stopping(max_tokens=1 << 24, ignore_eos=True, logprobs=20)))
        self.assertIsNotNone(connection.wait_for(DATA))
        return name

    def ends(self, name):
        eventually(lambda: self.client.state(name) == session.SESSION_STATE_IDLE, f"{name} is still busy")

    def test_threads_of_grpc_come_after_those_of_the_engine(self):
        nice = {"nexting_thread": [], "default-executo": [], "acceptor": [], "ebbd": []}
        for thread in sorted(pathlib.Path(f"/proc/{self.pid}/task").iterdir(), key=lambda path: int(path.name)):
            with contextlib.suppress(OSError):  # it has ended
                name, fields = re.fullmatch(r"\d+ \((.*)\) (.*)\n", (thread / "stat").read_text(encoding="ascii")).groups()
                nice.get(name, []).append(int(fields.split()[16]))
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        behind = min(mine + 5, 19)
        self.assertEqual(set(nice["ebbd"]), {mine})
        self.assertEqual(set(nice["nexting_thread"]), {behind})
        self.assertEqual(set(nice["acceptor"]), {behind})
        self.assertEqual(nice["default-executo"][0], behind)  # further ones are of whoever had no time for the work

    def test_what_is_no_http2(self):
        attacks.what_is_no_http2(self.addr)

    def test_connections_that_say_nothing_keep_nobody_out(self):
        silent = [Connection(self.addr, greet=index % 2 == 0) for index in range(200)]
        self.witness.goes_on()
        self.assertEqual(self.client.state(self.witness.name_of_session), session.SESSION_STATE_BUSY)
        for index, connection in enumerate(silent):
            if index % 2 == 1:  # it has not even greeted, for which there are ten seconds
                while connection.socket.recv(4096):
                    continue
            connection.socket.close()

    def test_a_client_that_vanishes_is_found_out(self):
        with Connection(self.addr) as connection:  # stays open, and answers no ping
            self.ends(self.running(connection))

    def test_a_client_that_is_killed_leaves_its_session_free(self):
        crashed = Connection(self.addr)
        name = self.running(crashed)
        crashed.abort()
        self.ends(name)
        with Connection(self.addr) as left:
            name = self.running(left)
        self.ends(name)

    def test_a_reader_that_does_not_read_stalls_itself_alone(self):
        with Connection(self.addr) as connection:
            name, tokens = self.client.made(), -1
            connection.call(1, "InferenceService/Decode", inference.DecodeRequest(session=name, stopping=sampling.Stopping(
                max_tokens=1 << 24, ignore_eos=True, logprobs=20)))

            alive = threading.Thread(target=connection.answer_pings, daemon=True)  # and grants no window
            alive.start()

            def is_stalled():
                nonlocal tokens
                before, tokens = tokens, self.client.GetSession(session.GetSessionRequest(name=name)).tokens
                self.witness.goes_on(50)
                return before == tokens
            eventually(is_stalled, "it never stalls")
            self.assertEqual(self.client.state(name), session.SESSION_STATE_BUSY)
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
            alive.join(PATIENCE)
        self.ends(name)

    def test_streams_that_are_reset_at_once(self):
        for _ in range(10):
            attacks.streams_that_are_reset(self.addr)
        eventually(self.is_idle_but_for_the_witness, "streams that were reset run on")

    def test_more_streams_than_a_connection_may_have(self):
        with Connection(self.addr) as connection:
            for stream in STREAMS[:1000]:  # calls that never send their request
                if not connection.send(frame(HEADERS, END_HEADERS, stream, call_headers("InferenceService/Generate"))):
                    break
            self.witness.goes_on()
        eventually(self.is_idle_but_for_the_witness, "they are still there")

    def test_more_streams_than_the_client_has_acknowledged(self):
        endless = inference.GenerateRequest(prompt=TEXT, policy=SMALL, block_size=8, stopping=ENDLESS)
        with Connection(self.addr) as connection:
            self.assertIsNotNone(connection.wait_for(SETTINGS))
            connection.send(frame(SETTINGS, ACK, 0))
            for stream in STREAMS[:200]:
                if not connection.call(stream, "InferenceService/Generate", endless):
                    break
            for _ in connection.frames():  # the server hangs up
                pass
        eventually(self.is_idle_but_for_the_witness, "its calls run on")

    def test_metadata_that_is_too_large(self):
        with self.assertRaises(grpc.RpcError) as caught:
            Client(self.addr).GetStatus(admin.GetStatusRequest(), metadata=[("x-large", "a" * 20000)])
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        attacks.headers_without_an_end(self.addr)
        attacks.headers_that_are_named_often(self.addr)

    def test_a_compressed_bomb_is_not_expanded(self):
        for kind in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            with self.assertRaises(grpc.RpcError) as caught:
                self.client.channel.unary_unary("/ebb.v1.InferenceService/Tokenize")(bytes(256 << 20), compression=kind, timeout=PATIENCE)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED, "refused for being compressed, whatever its size")
            self.assertIn("disabled", caught.exception.details())
        with Connection(self.addr) as connection:  # compressed, it says, without saying how
            connection.send(frame(HEADERS, END_HEADERS, 1, call_headers("InferenceService/Tokenize")),
                            frame(DATA, END_STREAM, 1, message(b"\x1f\x8b\x08" + bytes(20), compressed=True)))
            self.assertIsNotNone(connection.wait_for(HEADERS), "it is answered")

    def test_bytes_that_are_no_message(self):
        for method in ("InferenceService/Tokenize", "SessionService/GetSession", "EvictionService/PlanEviction"):
            for request in (b"\xff\xff\xff", b"\x0a\x10abc", b"\x0a\x02\xff\xfe"):
                with self.assertRaises(grpc.RpcError) as caught:
                    self.client.channel.unary_unary(f"/ebb.v1.{method}")(request, timeout=PATIENCE)
                self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        with Connection(self.addr) as connection:  # longer than anything may be, or so it says
            connection.send(frame(HEADERS, END_HEADERS, 1, call_headers("InferenceService/Tokenize")),
                            frame(DATA, 0, 1, struct.pack(">?I", False, 0xFFFFFFFF) + bytes(1000)))
            self.assertIsNotNone(connection.wait_for(HEADERS), "it is refused before it has come")

    def test_frames_that_ask_for_answers_which_nobody_reads(self):
        with Connection(self.addr) as connection:
            for _ in range(2000):
                if not connection.send(frame(PING, 0, 0, bytes(8))):
                    break
            self.assertIsNotNone(connection.wait_for(GOAWAY), "too many pings")
        attacks.settings_without_an_end(self.addr)


class Limits(unittest.TestCase):
    """What needs a server of its own."""

    def test_an_old_connection_takes_no_more_calls_and_cuts_none(self):
        with Server("--server.connection_age_max=1s") as server:
            client = Client(server.addr)
            with Connection(server.addr) as connection:
                connection.call(1, "InferenceService/Decode", inference.DecodeRequest(session=client.made(), stopping=ENDLESS))
                frames, told, after = connection.frames(), 0, 0
                while after < 50:
                    kind, flags, stream, payload = next(frames)
                    if kind == PING and not flags & ACK:
                        connection.send(frame(PING, ACK, 0, payload))
                    if kind == DATA:
                        connection.send(*(frame(WINDOW_UPDATE, 0, on, struct.pack(">I", len(payload))) for on in (0, 1) if payload))
                        after += told > 0
                    told += kind == GOAWAY
                    self.assertFalse(kind == RST_STREAM or kind == HEADERS and flags & END_STREAM, "the call was cut off")
            self.assertTrue(client.made(), "and a client that heard of it makes another connection")
            client.channel.close()

    def test_more_connections_than_an_address_may_have(self):
        file = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "ebb.yaml"
        file.write_text("server: {connections_per_address: 3}\n")
        with Server(f"--config={file}", "--server.reload=1h") as server:
            def connect(source):
                return self.enterContext(Connection(server.addr, source=source))

            def is_let_in(connection):
                return connection.wait_for(SETTINGS) is not None
            first = [connect("127.0.0.2") for _ in range(3)]
            self.assertTrue(all(map(is_let_in, first)))
            self.assertFalse(is_let_in(connect("127.0.0.2")), "a fourth")
            self.assertTrue(is_let_in(connect("127.0.0.3")), "another address has its own")
            first[0].socket.close()
            eventually(lambda: is_let_in(connect("127.0.0.2")), "one that was closed makes no room")
            self.assertFalse(is_let_in(connect("127.0.0.2")))
            file.write_text("server: {connections_per_address: 5}\n")
            self.assertIn("server.connections_per_address: 3 -> 5", server.ebb("reload"))
            self.assertEqual([is_let_in(connect("127.0.0.2")) for _ in range(3)], [True, True, False], "a running server takes another number")
        refused = [json.loads(line) for line in server.rest.splitlines() if '"connections_refused"' in line]
        self.assertEqual([line["address"] for line in refused], ["127.0.0.2"], "the log says so once a minute")

    def test_more_connections_begun_than_an_address_may(self):
        with Server("--server.new_connections_per_address=60") as server:
            def is_let_in(source):
                with Connection(server.addr, source=source) as connection:
                    return connection.wait_for(SETTINGS) is not None
            begun = time.monotonic()
            self.assertTrue(all(is_let_in("127.0.0.2") for _ in range(60)), "a minute's")
            more = sum(is_let_in("127.0.0.2") for _ in range(60))
            self.assertLessEqual(more, time.monotonic() - begun, "one a second, however soon they end")
            self.assertTrue(is_let_in("127.0.0.3"), "another address has its own")
            eventually(lambda: is_let_in("127.0.0.2"), "none is begun later")
        refused = [json.loads(line) for line in server.rest.splitlines() if '"connections_refused"' in line]
        self.assertEqual({line["address"] for line in refused}, {"127.0.0.2"})
        self.assertIn("server.new_connections_per_address", refused[0]["msg"])

    def test_a_head_that_asks_for_thousands_of_copies_or_has_a_long_path(self):
        ranges = b"Range: bytes=0-" + b",0-" * 2700 + b"\r\n"
        # So large are threads' stacks where the limit is `unlimited`. The library recurses for each byte of what it looks through.
        under = () if SANITIZED else ("prlimit", f"--stack={2 << 20}:{2 << 20}")
        with Server("--openai.listen=127.0.0.1:0", "--store.durability=off", under=under) as server:
            def ask(port, asked, *headers):
                with socket.create_connection(getattr(server, port).rsplit(":", 1), timeout=PATIENCE) as connection:
                    connection.sendall(asked + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n" + b"".join(headers) + b"\r\n")
                    answer = bytearray()
                    while piece := connection.recv(1 << 16):
                        answer += piece
                        self.assertLess(len(answer), MEMORY)
                head, _, body = bytes(answer).partition(b"\r\n\r\n")
                return head.split(b"\r\n")[0].decode(), body
            for port, page, above in (("http", b"/metrics", b"/console/api/"), ("openai", b"/v1/models", b"/v1/models/")):
                with self.subTest(port):
                    self.assertEqual(ask(port, b"GET " + page, ranges)[0], "HTTP/1.1 200 OK")
                    self.assertEqual(ask(port, b"GET " + page, b"Range: bytes=" + b"9" * 8000 + b"-\r\n")[0], "HTTP/1.1 200 OK")
                    for method in (b"GET ", b"POST "):
                        code, body = ask(port, method + above + b"x" * 8000)
                        self.assertIn("414", code)
                        self.assertIn(b"the path with its query has more than 1024 bytes", body)
                        self.assertRegex(ask(port, method + above + b"x" * (1024 - len(above)))[0], " 40[345] ")
            self.assertIsNone(server.process.poll())

    def test_more_connections_than_files(self):
        for port in ("addr", "health", "http", "openai"):
            with self.subTest(port):
                self.flood(port)

    def flood(self, port):
        with Server("--server.health_listen=127.0.0.1:0", "--openai.listen=127.0.0.1:0", under=("prlimit", "--nofile=64:64")) as server:
            connections = []
            for _ in range(300):
                connections.append(Connection(getattr(server, port), greet=False))
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

            def refused():
                try:
                    with opener.open(f"http://{server.http}/metrics", timeout=PATIENCE) as answer:  # which takes a file, too
                        return float(re.search(r'^ebb_connections_refused_total{reason="files"} (\S+)$', answer.read().decode(), re.M).group(1))
                except OSError as error:
                    self.assertEqual(port, "http", error)  # until those of the flood have waited too long for their head
                    return 0
            eventually(lambda: refused() >= 200, lambda: f"{refused()} were refused")
            for connection in connections:
                connection.socket.close()
            client = Client(server.addr)
            eventually(lambda: self.answers(client), "nobody is let in after the flood")
            client.channel.close()
            for service in ("liveness", "readiness"):
                done = subprocess.run([BIN / "ebb", f"--addr={server.health}", "health", service], capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("connections_refused", server.rest)

    @staticmethod
    def answers(client):
        try:
            return client.GetStatus(admin.GetStatusRequest(), timeout=5)
        except grpc.RpcError:
            return None


if __name__ == "__main__":
    unittest.main(verbosity=2)
