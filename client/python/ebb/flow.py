"""Calls that are tried again and streams that go on after a break, once for both clients.

A flow is a generator: it yields what is to be done (the classes below), gets the result sent, or an `Error` thrown, and returns the
call's result. Who runs it, `ebb.client` or `ebb.aio`, does the waiting; `Run` is what both do alike.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Generator, List, Optional, Set

import grpc

from ebb.errors import Aborted, Cancelled, Error, NotResumable
from ebb.progress import Progress, Request
from ebb.retry import Retry, Tries
from ebb.v1 import session_pb2


@dataclasses.dataclass(frozen=True)
class Call:
    """One try of a unary call; the result is its answer. `method` is its name in ebb.v1."""

    method: str
    request: Any


@dataclasses.dataclass(frozen=True)
class Open:
    """Starts a stream, in the place of the one before."""

    method: str
    request: Any


@dataclasses.dataclass(frozen=True)
class Read:
    """The open stream's next message; None at its end."""


@dataclasses.dataclass(frozen=True)
class Give:
    """Hands a message to who reads the stream."""

    message: Any


@dataclasses.dataclass(frozen=True)
class Wait:
    seconds: float
    disconnected: bool  # the error before came from no server


@dataclasses.dataclass(frozen=True)
class Done:
    """The flow has ended. No flow yields it: `Run.next_step` gives it."""

    result: Any


Flow = Generator[Any, Any, Any]


class Run:
    """A flow that is under way, and the stream that it has opened."""

    def __init__(self, client: Any, calls: Flow):
        self._client, self._calls = client, calls
        self._open: Any = None
        self._asked: Any = None  # the request of the last call, or of the stream
        self.address: str = client._homes.own  # whom it was sent to
        self._left = False  # a wait was interrupted: what would have come is lost

    def next_step(self, reply: Any, failure: Optional[Error]) -> Any:
        """What is to be done after the step before, which had this reply or failed so. What the flow raises is the call's end."""
        if self._left:
            raise Cancelled(grpc.StatusCode.CANCELLED, "reading was interrupted before, which ended the call")
        try:
            return self._calls.throw(failure) if failure else self._calls.send(reply)
        except StopIteration as done:
            return Done(done.value)

    def method(self, step: Any) -> Any:
        """Of the server that has the session of a Call or an Open."""
        self._asked, self.address = step.request, self._client._homes.of(step.request)
        return self._client._servers.at(self.address).methods[step.method]

    def failed(self, failure: Error) -> Error:
        """The failure of that call or stream, and where to go on is remembered."""
        return self._client._homes.heed(self._asked, self.address, failure)

    def leave(self) -> None:
        """To be called where a wait was interrupted."""
        self._left = True
        self.close()

    def close(self) -> None:
        self._calls.close()
        if self._open is not None:
            self._open.cancel()


def call(method: str, request: Any, retry: Retry, repeatable: bool) -> Flow:
    """A unary call. One that is not `repeatable` is tried again only after a refusal, or where nobody got it: where the connection
    broke, the server may have done it."""
    tries = Tries()
    while True:
        try:
            return (yield Call(method, request))
        except Error as error:
            delay = tries.delay(retry, error) if repeatable or _undone(error) else None
            if delay is None:
                raise
            wait = Wait(delay, not error.reason)
        yield wait


def stream(method: str, request: Any, retry: Retry, repeatable: bool, progress: Optional[Progress] = None) -> Flow:
    """A stream that is tried again only while nothing has come; if it is not `repeatable`, as `call`."""
    begun, tries = False, Tries()
    while True:
        try:
            yield Open(method, request)
            while (message := (yield Read())) is not None:
                begun = True
                new = progress.take(message) if progress else message
                if new is not None:
                    yield Give(new)
            return
        except Error as error:
            delay = tries.delay(retry, error) if not begun and (repeatable or _undone(error)) else None
            if delay is None:
                raise
            wait = Wait(delay, not error.reason)
        yield wait


def pages(method: str, request: Any, entries: str, retry: Retry) -> Flow:
    """All entries of a listing, as a list."""
    found: List[Any] = []
    while True:
        page = yield from call(method, request, retry, repeatable=True)
        found += getattr(page, entries)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def answer(progress: Progress, retry: Retry, resume: Optional[Retry]) -> Flow:
    """Prefill, Decode or Generate on a session; without `resume` a break is an error."""
    if resume is None:
        return stream(_method(progress.asked), progress.asked, retry, False, progress)
    return resuming(progress, retry, resume)


def resuming(progress: Progress, retry: Retry, resume: Retry) -> Flow:
    """Prefill, Decode or Generate on a session, gone on with after each break: `resume` is for tries since something new came,
    `retry` for those before the first message."""
    tries = Tries()
    begun = False  # a message has come
    broken: Optional[Error] = None  # how the last stream ended that may have changed the session
    while True:
        opened = came = False
        try:
            now = yield Call("GetSession", session_pb2.GetSessionRequest(name=progress.asked.session))
            request: Optional[Request]
            if broken is None:
                request = progress.begin(now)
            elif now.state == session_pb2.SESSION_STATE_BUSY:
                raise Aborted(grpc.StatusCode.ABORTED, f"{now.name} is written to by another call", "SESSION_BUSY")
            else:
                request = progress.after_break(broken, now)
            if request is None:
                return
            opened = True
            yield Open(_method(request), request)
            while (message := (yield Read())) is not None:
                begun = came = True
                new = progress.take(message)
                if new is not None:
                    tries = Tries()
                    yield Give(new)
            return
        except NotResumable:
            raise
        except Error as error:
            policy = resume if begun else retry
            delay = tries.delay(policy, error)
            if delay is None and error.reason in _passing(progress, broken):
                delay = policy.backoff(tries.attempt)
            if delay is None:
                raise
            if progress.is_whole:
                return
            if opened and error.reason not in ("GENERATION_MISMATCH", "SESSION_BUSY"):  # which only answer a call that has done nothing
                broken = error
                progress.breaks += came or not error.reason
            wait = Wait(delay, not error.reason)
        yield wait


def _undone(error: Error) -> bool:
    """Whether the call that failed so changed nothing."""
    return bool(error.reason) or not error.was_sent


def _method(request: Request) -> str:
    return request.DESCRIPTOR.name[:-len("Request")]


def _passing(progress: Progress, broken: Optional[Error]) -> Set[str]:
    """Reasons that say to go on, or to look again: a broken stream's call may not be over yet, and another caller may have come between
    a look at the session and the call that is tied to it."""
    looked = broken is not None or not progress.asked.HasField("expected_generation")
    return {"SLOW_READER"} | ({"GENERATION_MISMATCH"} if looked else set()) | ({"SESSION_BUSY"} if broken else set())
