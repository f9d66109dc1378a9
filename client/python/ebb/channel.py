"""What both clients know of the server: how to reach it, and its methods by name."""
from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import grpc

from ebb.v1 import admin_pb2_grpc, eviction_pb2_grpc, inference_pb2_grpc, session_pb2_grpc

OPTIONS = [
    ("grpc.max_receive_message_length", -1),  # the server bounds its answers
    ("grpc.initial_reconnect_backoff_ms", 100),  # a server that restarts is found when it is back
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),  # who reads sends nothing, and asks again all the same
]
KEEPALIVE = 60.0  # seconds; the server's limit is a ping every 30
SIGN_WITHIN_MAX = 20.0  # seconds


class Stubs(NamedTuple):
    """grpcio's own stubs, one for each service: for what has no method of its own here."""

    sessions: session_pb2_grpc.SessionServiceStub
    inference: inference_pb2_grpc.InferenceServiceStub
    eviction: eviction_pb2_grpc.EvictionServiceStub
    admin: admin_pb2_grpc.AdminServiceStub

    def methods(self) -> Dict[str, Any]:
        """By name: no two services have one of the same."""
        return {name: method for stub in self for name, method in vars(stub).items()}


def make_stubs(channel: Any) -> Stubs:
    return Stubs(session_pb2_grpc.SessionServiceStub(channel), inference_pb2_grpc.InferenceServiceStub(channel),
                 eviction_pb2_grpc.EvictionServiceStub(channel), admin_pb2_grpc.AdminServiceStub(channel))


class Server(NamedTuple):
    """One that is called."""

    channel: Any
    stubs: Stubs
    methods: Dict[str, Any]


class Servers:
    """Those that a client calls, each with a channel of its own from its first call on. Any thread."""

    def __init__(self, open_channel: Callable[[str], Any]):
        self._open_channel, self._lock = open_channel, threading.Lock()
        self._servers: Dict[str, Server] = {}

    def at(self, address: str) -> Server:
        with self._lock:
            if address not in self._servers:
                opened = self._open_channel(address)
                stubs = make_stubs(opened)
                self._servers[address] = Server(opened, stubs, stubs.methods())
            return self._servers[address]

    def all(self) -> List[Server]:
        with self._lock:
            return list(self._servers.values())


def opener(kind: Any, credentials: Optional[grpc.ChannelCredentials], keepalive: float) -> Callable[[str], Any]:
    """Channels of `kind`, grpc or grpc.aio; without credentials plain HTTP/2."""
    options = [*OPTIONS, ("grpc.keepalive_time_ms", round(1000 * keepalive)),
               ("grpc.keepalive_timeout_ms", round(1000 * min(keepalive, SIGN_WITHIN_MAX)))]
    if credentials is None:
        return lambda address: kind.insecure_channel(address, options)
    return lambda address: kind.secure_channel(address, credentials, options)


def credentials_of(tls: bool, ca: str, cert: str, key: str) -> Optional[grpc.ChannelCredentials]:
    """None: plain HTTP/2."""
    if bool(cert) != bool(key):
        raise ValueError("a client's certificate and its key go together: give both, or none")
    if not (tls or ca or cert):
        return None
    ca_pem, cert_pem, key_pem = (Path(path).read_bytes() if path else None for path in (ca, cert, key))
    return grpc.ssl_channel_credentials(ca_pem, key_pem, cert_pem)


def metadata_of(tenant: str, token_file: str, more: Sequence[Tuple[str, str]]) -> List[Tuple[str, str]]:
    """What goes with every call."""
    metadata = [("x-ebb-tenant", tenant)] if tenant else []
    if token_file:
        token = Path(token_file).read_text(encoding="utf-8").strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError(f"{token_file} does not hold one line with a token")
        metadata.append(("authorization", f"Bearer {token}"))
    return [*metadata, *more]


def name_of(kind: str, name: str) -> str:
    """`sessions/s1` for `s1`, as for itself."""
    return name if name.startswith(kind + "/") else f"{kind}/{name}"


def new_request_id() -> str:
    """With one, a call that is repeated after a lost answer opens no second session."""
    return uuid.uuid4().hex
