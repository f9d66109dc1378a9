"""What both clients know of the server: how to reach it, and its methods by name."""
from __future__ import annotations

import uuid
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ebb.v1 import admin_pb2_grpc, eviction_pb2_grpc, inference_pb2_grpc, session_pb2_grpc

OPTIONS = [
    ("grpc.max_receive_message_length", -1),  # the server bounds its answers
    ("grpc.initial_reconnect_backoff_ms", 100),  # a server that restarts is found when it is back
    ("grpc.max_reconnect_backoff_ms", 2000),
]


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


def metadata_of(tenant: str, more: Sequence[Tuple[str, str]]) -> List[Tuple[str, str]]:
    """What is sent with every call."""
    return [("x-ebb-tenant", tenant), *more] if tenant else list(more)


def name_of(kind: str, name: str) -> str:
    """`sessions/s1` for `s1`, as for itself."""
    return name if name.startswith(kind + "/") else f"{kind}/{name}"


def new_request_id() -> str:
    """With one, a call that is repeated after a lost answer opens no second session."""
    return uuid.uuid4().hex
