"""Which server has which session, where several share them: as SESSION_MOVED says, among servers that the caller has named."""
from __future__ import annotations

import re
from typing import Any, Dict, List, Sequence, Set

import grpc

from ebb.errors import Error

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")  # of an address that a pattern may match: no scheme, no path
_SESSIONS_MAX = 10_000  # that are remembered


class Homes:
    """`own` is where calls go that are about no session, and about one that was never said to be elsewhere.

    follow  `host:port`, or `*.domain:port` for every host of the domain: who else may be called, and be sent token and prompts. Where
            nobody answers, the next of those that are named in full is asked.
    """

    def __init__(self, own: str, follow: Sequence[str]):
        self.own = own
        self._patterns: List[str] = []
        self._ring = [own]
        for each in follow:
            host, colon, port = each.rpartition(":")
            if not colon or not port.isdigit() or not host or "*" in host.removeprefix("*."):
                raise ValueError(f"follow: {each!r} is neither host:port nor *.domain:port")
            servers = self._patterns if host.startswith("*.") else self._ring
            if each not in servers:  # each once, so that it has one successor
                servers.append(each)
        self._follows = bool(follow)
        self._at: Dict[str, str] = {}  # by session; not those at `own`
        self._silent: Set[str] = set()  # who did not answer the last time
        self._known = False  # anybody has ever answered

    def may_call(self, address: str) -> bool:
        host, _, port = address.rpartition(":")
        return address in self._ring or bool(_HOST.fullmatch(host)) and any(
            port == of and host.endswith(domain[1:]) for domain, _, of in (pattern.rpartition(":") for pattern in self._patterns))

    def of(self, request: Any) -> str:
        """Whom to ask."""
        return self._at.get(_session_of(request), self.own) if self._at else self.own

    def heard(self, address: str) -> None:
        """It has answered."""
        self._known = True
        self._silent.discard(address)

    def heed(self, request: Any, address: str, error: Error) -> Error:
        """Where to ask next, `address` having refused so; of an error that says where, RetryInfo becomes 0: it may be followed at
        once."""
        session = _session_of(request)
        if error.reason:
            self.heard(address)
        error.known = self._known
        if not self._follows or not session:
            return error
        moved = error.metadata.get("endpoint", "") if error.reason == "SESSION_MOVED" else ""
        if moved and moved != address and self.may_call(moved):
            self._put(session, moved)
            if moved not in self._silent:
                error.retry_delay = 0.0
        elif not error.reason and error.code == grpc.StatusCode.UNAVAILABLE:
            self._silent.add(address)
            self._put(session, self._ring[(self._ring.index(address) + 1) % len(self._ring)] if address in self._ring else self.own)
        return error

    def _put(self, session: str, address: str) -> None:
        self._at.pop(session, None)
        if address == self.own:
            return
        while len(self._at) >= _SESSIONS_MAX:
            self._at.pop(next(iter(self._at)), None)
        self._at[session] = address


def _session_of(request: Any) -> str:
    """The session that a request of ebb.v1 is about; empty: none, or one that it opens."""
    name = getattr(request, "session", "") or getattr(request, "name", "")
    return name if isinstance(name, str) and name.startswith("sessions/") else ""
