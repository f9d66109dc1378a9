"""What hostile clients do to a port, each attack a function of the address: once through, without a word about how the server takes it.
abuse_test.py says what must hold afterwards, abuse_latency.py how others fare meanwhile."""
import contextlib
import gzip
import itertools
import math
import random
import socket
import struct
import time

from http2 import (ACK, CONTINUATION, Connection, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, STREAMS,
                   WINDOW_UPDATE, call_headers, frame, integer, literal, message)
import python_package  # noqa: F401  where the stubs are, for the imports that follow

import grpc
from ebb.v1 import (admin_pb2 as admin, admin_pb2_grpc, eviction_pb2 as eviction, inference_pb2 as inference, inference_pb2_grpc, policy_pb2 as policy,
                    sampling_pb2 as sampling, session_pb2 as session, session_pb2_grpc)

ENDLESS = sampling.Stopping(max_tokens=1 << 24, ignore_eos=True)
SMALL = policy.PolicySpec(streaming=policy.Streaming(), trigger=policy.Trigger(budget=24))
TEXT = inference.Prompt(text="Once upon a time")
CANCEL = struct.pack(">I", 8)  # why a stream is reset
AT_ONCE = 50  # calls that are sent together


class Client:
    """All services; `made` opens a session with a prompt in it."""

    def __init__(self, addr):
        self.channel = grpc.insecure_channel(addr, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)])
        for stub in (session_pb2_grpc.SessionServiceStub, inference_pb2_grpc.InferenceServiceStub, admin_pb2_grpc.AdminServiceStub):
            self.__dict__.update(stub(self.channel).__dict__)

    def made(self):
        name = self.CreateSession(session.CreateSessionRequest(policy=SMALL, block_size=8)).name
        list(self.Prefill(inference.PrefillRequest(session=name, prompt=TEXT)))
        return name

    def state(self, name):
        return self.GetSession(session.GetSessionRequest(name=name)).state

    def running(self):
        """Calls that run or wait, of everybody."""
        work = self.GetStatus(admin.GetStatusRequest()).work
        return work.requests_running + work.requests_queued


def what_is_no_http2(addr):
    noise = random.Random(5)
    for said in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512), b"\0" * 4096,
                 noise.randbytes(4096), PREFACE + noise.randbytes(4096), PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(4096),
                 PREFACE + frame(SETTINGS, 0, 0, bytes(7)), PREFACE + frame(SETTINGS, 0, 0) + frame(DATA, 0, 1, b"too early"),
                 PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 0)),
                 PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, b"\xff" * 100),
                 PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 2, call_headers("AdminService/GetStatus"))):
        with Connection(addr, greet=False) as connection:
            connection.send(said)
            with contextlib.suppress(OSError):  # the server may have ended it
                connection.socket.shutdown(socket.SHUT_WR)
            for _ in connection.frames():  # whatever it is, it ends
                pass


def silent_connections(addr):
    with contextlib.ExitStack() as all_of_them:
        for index in range(200):
            all_of_them.enter_context(Connection(addr, greet=index % 2 == 0))


def clients_that_are_killed(addr):
    """Each while an answer comes."""
    for _ in range(10):
        killed = Connection(addr)
        killed.call(1, "InferenceService/Generate", inference.GenerateRequest(prompt=TEXT, policy=SMALL, block_size=8, stopping=ENDLESS))
        killed.wait_for(DATA)
        killed.abort()


def readers_that_take_nothing(addr):
    """Of eight answers, each of which stops once what it holds back is full."""
    request = inference.GenerateRequest(prompt=TEXT, policy=SMALL, block_size=8, stopping=sampling.Stopping(max_tokens=1 << 24, ignore_eos=True, logprobs=20))
    with Connection(addr) as connection:
        for stream in STREAMS[:8]:
            connection.call(stream, "InferenceService/Generate", request)
        time.sleep(2)


def streams_that_are_reset(addr):
    request = inference.GenerateRequest(prompt=TEXT, policy=SMALL, block_size=8, stopping=ENDLESS)
    with Connection(addr) as connection:
        for stream in STREAMS[:200]:
            if not (connection.call(stream, "InferenceService/Generate", request) and connection.send(frame(RST_STREAM, 0, stream, CANCEL))):
                break


def streams_without_a_request(addr):
    """More than a connection may have."""
    with Connection(addr) as connection:
        for stream in STREAMS[:1000]:
            if not connection.send(frame(HEADERS, END_HEADERS, stream, call_headers("InferenceService/Generate"))):
                break


def headers_without_an_end(addr):
    piece = literal("x-large", "a" * 16000)
    with Connection(addr) as connection:
        connection.send(frame(HEADERS, 0, 1, call_headers("AdminService/GetStatus")))
        for _ in range(2000):
            if not connection.send(frame(CONTINUATION, 0, 1, piece)):
                break


def headers_that_are_named_often(addr):
    """One, told once and named four thousand times in each call."""
    headers = call_headers("AdminService/GetStatus")
    named = integer(62, 7, 0x80) * 4000
    with Connection(addr) as connection:
        connection.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, headers + literal("x-large", "a" * 3900, 0x40)))
        for stream in STREAMS[1:200]:
            if not connection.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, headers + named)):
                break


def settings_without_an_end(addr):
    """Each asks for an answer, which nobody reads."""
    many = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)) * 100
    with Connection(addr) as connection:
        connection.socket.settimeout(2)
        with contextlib.suppress(TimeoutError):  # the server reads no more
            for _ in range(500):
                if not connection.send(many):
                    break


def compressed_bombs(addr, bomb=gzip.compress(bytes(16 << 20), 1)):
    with Connection(addr) as connection:
        calls(connection, itertools.repeat(("InferenceService/Tokenize", message(bomb, compressed=True)), AT_ONCE), ("grpc-encoding", "gzip"))


def calls(connection, requests, *more):
    """Makes all of them, (method, message), AT_ONCE together, and reads the answers."""
    streams, requests = iter(STREAMS), iter(requests)
    while batch := list(itertools.islice(requests, AT_ONCE)):
        begun = set()
        for (method, request), stream in zip(batch, streams):
            begun.add(stream)
            data = [frame(DATA, 0, stream, request[at:at + 16384]) for at in range(0, len(request), 16384)]
            if not connection.send(frame(HEADERS, END_HEADERS, stream, call_headers(method, *more)), *data, frame(DATA, END_STREAM, stream)):
                return
        for kind, flags, stream, payload in connection.frames():
            if kind == PING and not flags & ACK:
                connection.send(frame(PING, ACK, 0, payload))
            if kind == DATA and payload:
                connection.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", len(payload))))
            if kind == RST_STREAM or kind in (HEADERS, DATA) and flags & END_STREAM:
                begun.discard(stream)
            if not begun:
                break
        if begun:  # the server has hung up
            return


def requests_that_are_no_message(addr):
    with Connection(addr) as connection:
        calls(connection, itertools.repeat(("SessionService/GetSession", message(b"\xff\xff\xff")), 1000))


METHODS = [method for services in (session, inference, eviction, admin) for service in services.DESCRIPTOR.services_by_name.values()
           for method in service.methods]
NUMBERS = (0, 1, -1, 0.5, 8, 24, 1000, 2**31 - 1, -2**31, 2**32 - 1, 2**63 - 1, -2**63, 2**64 - 1, 1e308, math.nan, math.inf)


def random_message(kind, noise, words, depth=0):
    """Any of its fields, with any value that the type holds."""
    made = kind._concrete_class()

    def value(field):
        if field.message_type:
            return random_message(field.message_type, noise, words, depth + 1)
        drawn = noise.choice({field.CPPTYPE_STRING: words, field.CPPTYPE_BOOL: (False, True)}.get(field.cpp_type, NUMBERS))
        return drawn.encode() if field.type == field.TYPE_BYTES else drawn

    for field in kind.fields:
        if depth > 4 or noise.random() < 0.5:
            continue
        given = [value(field) for _ in range(noise.randrange(4))] if field.label == field.LABEL_REPEATED else value(field)
        with contextlib.suppress(TypeError, ValueError, AttributeError):  # beyond what the type holds; or a map
            made.MergeFrom(type(made)(**{field.name: given}))
    return made


def random_calls(addr, noise=random.Random(7)):
    """Of every method, one after the other; a stream is left after two messages."""
    client = Client(addr)
    with client.channel:
        words = ("", "a", "\0", "x" * 5000, TEXT.text, client.made(), "sessions/none", "tenants/some")
        for _ in range(500):
            method = noise.choice(METHODS)
            said = random_message(method.input_type, noise, words).SerializeToString() if noise.random() < 0.9 else noise.randbytes(noise.randrange(64))
            name = f"/{method.containing_service.full_name}/{method.name}"
            answer = client.channel.unary_stream(name)(said, timeout=1)
            with contextlib.suppress(grpc.RpcError):
                for _ in itertools.islice(answer, 2):
                    pass
            answer.cancel()


def orderly_calls(addr):
    """No attack: the same number, all good, to compare with."""
    with Connection(addr) as connection:
        calls(connection, itertools.repeat(("AdminService/GetStatus", message(b"")), 1000))


def orderly_answers(addr):
    """No attack either: eight at once, each of 16 tokens."""
    request = inference.GenerateRequest(prompt=TEXT, policy=SMALL, block_size=8, stopping=sampling.Stopping(max_tokens=16, ignore_eos=True))
    with Connection(addr) as connection:
        calls(connection, itertools.repeat(("InferenceService/Generate", message(request.SerializeToString())), 8))


ATTACKS = (what_is_no_http2, silent_connections, clients_that_are_killed, readers_that_take_nothing, streams_that_are_reset, streams_without_a_request, headers_without_an_end,
           headers_that_are_named_often, settings_without_an_end, compressed_bombs, requests_that_are_no_message, random_calls)
ORDERLY = (orderly_calls, orderly_answers)
