"""What a call that failed says: one exception per gRPC code, with the server's reason, field and metadata."""
from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Optional, Tuple, Type

import grpc
from google.protobuf.message import DecodeError

from ebb import details_pb2


class Error(Exception):
    """A call that the server refused, or that did not reach it. Each gRPC code has a class of its own below.

    code         the gRPC code
    message      the server's sentence
    reason       such as NO_PAGES (docs/reference/errors.md has them all); empty where the server did not speak
    field        path of the offending field, such as policy.trigger.budget; may be empty
    metadata     what the reason comes with, such as {"pages_free": "3"}
    retry_delay  seconds after which the server asks to be tried again; None where it does not say
    """

    def __init__(self, code: grpc.StatusCode, message: str, reason: str = "", field: str = "",
                 metadata: Optional[Mapping[str, str]] = None, retry_delay: Optional[float] = None):
        text = f"{code.name} {reason}".rstrip() + f": {message}"
        super().__init__(text if retry_delay is None else f"{text} (retry in {retry_delay:g}s)")
        self.code = code
        self.message = message
        self.reason = reason
        self.field = field
        self.metadata: Dict[str, str] = dict(metadata or {})
        self.retry_delay = retry_delay
        self.known = True  # False: no server has ever answered the client

    @property
    def is_away(self) -> bool:
        """Whether there was a server and is none, as far as can be told, or it goes: another may come in its place."""
        return self.code == grpc.StatusCode.UNAVAILABLE and self.reason in ("", "DRAINING") and self.known

    @property
    def was_sent(self) -> bool:
        """False where a server cannot have got the call."""
        return not (self.code == grpc.StatusCode.UNAVAILABLE and not self.reason and self.message.startswith(_NOT_CONNECTED))


class Cancelled(Error):
    """Somebody ended the call: the caller, or who deleted the session."""


class InvalidArgument(Error):
    """The request means nothing; `field` says where."""


class DeadlineExceeded(Error):
    """The call took longer than its timeout."""


class NotFound(Error):
    """No session, snapshot, model or scorer of that name."""


class AlreadyExists(Error):
    """The name is taken."""


class ResourceExhausted(Error):
    """A quota, a length limit or a message limit."""


class FailedPrecondition(Error):
    """The session is not in the state that the call needs."""


class Aborted(Error):
    """Another call writes to the session, or has changed it."""


class Unavailable(Error):
    """The server is not there, or has no room now."""


class DataLoss(Error):
    """A snapshot is damaged."""


class NotResumable(Error):
    """A stream broke, and going on where it stopped is impossible: the message says why. `code` is that of the break."""


_CLASSES: Dict[grpc.StatusCode, Type[Error]] = {
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.ABORTED: Aborted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DATA_LOSS: DataLoss,
}


_NOT_CONNECTED = "failed to connect to all addresses"  # gRPC's own words

# With CANCELLED, all that gRPC says of a call which a server got after it had asked for another connection, as one that drains does:
# nobody cancelled it.
_SENT_AWAY = ("CANCELLED", "CANCEL")  # where its request was read, and where it was not


def from_rpc(failure: grpc.RpcError) -> Error:
    """The exception for what grpc or grpc.aio raised. Details that cannot be read are left out."""
    code, told = failure.code(), _details(failure.trailing_metadata() or ())
    if code == grpc.StatusCode.CANCELLED and failure.details() in _SENT_AWAY and not told:
        code = grpc.StatusCode.UNAVAILABLE
    return _CLASSES.get(code, Error)(code, failure.details() or "", **told)


def _details(trailers: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
    packed = next((value for key, value in trailers if key == "grpc-status-details-bin"), b"")
    told: Dict[str, Any] = {}
    try:
        for entry in details_pb2.Status.FromString(packed).details:
            kind = entry.type_url.rsplit(".", 1)[-1]
            if kind == "ErrorInfo":
                info = details_pb2.ErrorInfo.FromString(entry.value)
                told.update(reason=info.reason, metadata=dict(info.metadata))
            elif kind == "RetryInfo":
                delay = details_pb2.RetryInfo.FromString(entry.value).retry_delay
                told.update(retry_delay=delay.seconds + delay.nanos / 1e9)
            elif kind == "BadRequest":
                request = details_pb2.BadRequest.FromString(entry.value)
                told.update(field=request.field_violations[0].field if request.field_violations else "")
    except DecodeError:
        pass
    return told
