"""The client that blocks: ebb.Client. `ebb.aio` has the same for asyncio."""
from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, Generic, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

import grpc

from ebb import channel, fields, flow
from ebb.errors import Error, NotFound, from_rpc
from ebb.homes import Homes
from ebb.progress import AnswerState, Progress
from ebb.retry import Retry
from ebb.v1 import admin_pb2, eviction_pb2, inference_pb2, session_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
OnBlock = Optional[Callable[[inference_pb2.PrefillResponse], None]]


class Client:
    """One channel to a server. May be used by many threads at once; an Answer by one at a time.

    tenant       sent as x-ebb-tenant
    token_file   whose one line is sent as a bearer's token
    tls, ca      speak TLS; the PEM file of who signed the server's certificate, if the system does not trust them
    cert, key    PEM files of a certificate of yours and its key, for a server that asks for one; TLS, too
    credentials  of grpc.ssl_channel_credentials, instead of these four
    metadata     pairs sent with every call
    timeout      of one try of a unary call, in seconds
    retry        of unary calls, and of streams while nothing has come
    resume       of a session's streams that broke; None: a break is an Error
    follow       other servers that a call may go to, with your token, when its session has moved there: `host:port`, or `*.domain:port`
                 for all of a domain. Default: none, and the move is an Error (Unavailable, SESSION_MOVED)
    keepalive    seconds of silence after which a server that owes an answer is asked for a sign, which it has to give within as long again,
                 20 s at most: else the connection is broken. A server ends one that asks more often than every 30 s
    """

    def __init__(self, address: str = "127.0.0.1:7700", *, tenant: str = "", token_file: str = "", tls: bool = False, ca: str = "",
                 cert: str = "", key: str = "", credentials: Optional[grpc.ChannelCredentials] = None,
                 metadata: Sequence[Tuple[str, str]] = (), timeout: float = 60, retry: Retry = Retry(),
                 resume: Optional[Retry] = Retry(attempts=10), follow: Sequence[str] = (), keepalive: float = channel.KEEPALIVE):
        self._servers = channel.Servers(channel.opener(grpc, credentials or channel.credentials_of(tls, ca, cert, key), keepalive))
        self._homes = Homes(address, follow)
        self.stubs = self._servers.at(address).stubs
        self._metadata = channel.metadata_of(tenant, token_file, metadata)
        self._timeout, self._retry, self._resume = timeout, retry, resume

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        for server in self._servers.all():
            server.channel.close()

    def create_session(self, policy: Optional[fields.Policy] = None, *, id: str = "",
                       **options: Unpack[fields.SessionOptions]) -> Session:
        """A new session, deleted at the end of a with statement. `policy` is a scorer's name or what `policy()` makes."""
        request = session_pb2.CreateSessionRequest(session_id=id, request_id=channel.new_request_id())
        fields.fill(request, policy=fields.to_policy(policy), **options)
        return Session(self, self._call("CreateSession", request).name, owned=True)

    def session(self, name: str) -> Session:
        """One that exists, by name or id. A with statement leaves it where it is."""
        return Session(self, channel.name_of("sessions", name), owned=False)

    def restore(self, snapshot: str, *, id: str = "", model: str = "") -> Session:
        """A session that goes on where the saved one was."""
        request = session_pb2.RestoreSessionRequest(snapshot=channel.name_of("snapshots", snapshot), session_id=id, model=model,
                                                    request_id=channel.new_request_id())
        return Session(self, self._call("RestoreSession", request).name, owned=True)

    def sessions(self) -> List[session_pb2.Session]:
        return self._run(flow.pages("ListSessions", session_pb2.ListSessionsRequest(), "sessions", self._retry))

    def snapshots(self) -> List[session_pb2.Snapshot]:
        return self._run(flow.pages("ListSnapshots", session_pb2.ListSnapshotsRequest(), "snapshots", self._retry))

    def delete_snapshot(self, name: str) -> None:
        self._call("DeleteSnapshot", session_pb2.DeleteSnapshotRequest(name=channel.name_of("snapshots", name)))

    def generate(self, prompt: fields.Prompt, *, policy: Optional[fields.Policy] = None, model: str = "", on_block: OnBlock = None,
                 **options: Unpack[fields.GenerateOptions]) -> Answer:
        """An answer in a throw-away session. It is gone when the stream breaks, so that nothing can go on."""
        request = fields.fill(fields.generate_request("", prompt, options), policy=fields.to_policy(policy), model=model)
        progress = Progress(request)
        return Answer(self, flow.stream("Generate", request, self._retry, True, progress), progress, on_block)

    def tokenize(self, prompt: fields.Prompt, *, omit_begin: bool = False, model: str = "") -> List[int]:
        request = inference_pb2.TokenizeRequest(prompt=fields.to_prompt(prompt), omit_begin=omit_begin, model=model)
        return list(self._call("Tokenize", request).ids)

    def detokenize(self, ids: Sequence[int], *, render_special: bool = False, model: str = "") -> str:
        return self._call("Detokenize", inference_pb2.DetokenizeRequest(ids=ids, render_special=render_special, model=model)).text

    def score(self, target: fields.Prompt, context: Optional[fields.Prompt] = None, *,
              policy: Optional[fields.Policy] = None, model: str = "") -> inference_pb2.ScoreResponse:
        """Log-probabilities of `target` after `context`."""
        request = inference_pb2.ScoreRequest(target=fields.to_prompt(target), model=model)
        fields.fill(request, context=None if context is None else fields.to_prompt(context), policy=fields.to_policy(policy))
        return self._call("Score", request)

    def plan_eviction(self, rows: Sequence[Mapping[str, Any]],
                      **options: Unpack[fields.PlanOptions]) -> List[eviction_pb2.PlannedRow]:
        """Who should leave a cache that is not Ebb's. A row has the fields of PlanRow; arrays may be NumPy's."""
        return list(self._call("PlanEviction", fields.plan_request(rows, options)).rows)

    def set_policy_of_all(self, policy: fields.Policy, *, dry_run: bool = False, model: str = "") -> List[eviction_pb2.PolicyChange]:
        """For every session of the tenant that is of one model; a change says why its session kept the former policy, if it did."""
        request = eviction_pb2.SetPolicyRequest(all_sessions=True, policy=fields.to_policy(policy), dry_run=dry_run, model=model)
        return list(self._call("SetPolicy", request).changes)

    def watch_evictions(self, session: str = "", *, every: Optional[int] = None,
                        list_victims: bool = False, model: str = "") -> Stream[eviction_pb2.WatchEvictionsResponse]:
        """What leaves the caches of the tenant with one model, or of one session, while it leaves; without end."""
        request = eviction_pb2.WatchEvictionsRequest(session=session and channel.name_of("sessions", session), every=every,
                                                     list_victims=list_victims, model=model)
        return Stream(self, flow.stream("WatchEvictions", request, self._retry, True))

    def status(self) -> admin_pb2.GetStatusResponse:
        return self._call("GetStatus", admin_pb2.GetStatusRequest())

    def models(self) -> List[admin_pb2.Model]:
        """Of the server, with their state: the one that it started with first, which calls mean that name none."""
        return list(self._call("ListModels", admin_pb2.ListModelsRequest()).models)

    def policies(self, *, model: str = "") -> admin_pb2.ListPoliciesResponse:
        """Every scorer, modifier and allocation, with parameters, defaults and papers."""
        return self._call("ListPolicies", admin_pb2.ListPoliciesRequest(model=model))

    def _call(self, method: str, request: Any, *, repeatable: bool = True) -> Any:
        return self._run(flow.call(method, request, self._retry, repeatable))

    def _run(self, calls: flow.Flow) -> Any:
        return _Run(self, calls).advance().result

    def _wait(self, step: flow.Wait, address: str) -> None:
        """A channel that no call waits on and nobody watches does not get on with connecting again."""
        waits_on = self._servers.at(address).channel
        if step.disconnected:
            waits_on.subscribe(_ignore, try_to_connect=True)
        time.sleep(step.seconds)
        if step.disconnected:
            waits_on.unsubscribe(_ignore)


def _ignore(state: grpc.ChannelConnectivity) -> None:
    pass


class Session:
    """One session of the server. A with statement deletes it at its end, if it was opened by `create_session`, `fork` or `restore`.

    Each call's `expected_generation` has it refused (Aborted, GENERATION_MISMATCH) where somebody changed the session meanwhile.
    """

    def __init__(self, client: Client, name: str, owned: bool):
        self.name = name
        self._client, self._owned = client, owned

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if not self._owned:
            return
        try:
            self.delete()
        except NotFound:
            pass
        except Error:
            if kind is None:
                raise

    def info(self) -> session_pb2.Session:
        """The session as it stands: tokens, cache, policy, generation."""
        return self._client._call("GetSession", session_pb2.GetSessionRequest(name=self.name))

    def delete(self) -> None:
        self._client._call("DeleteSession", session_pb2.DeleteSessionRequest(name=self.name))

    def fork(self, policy: Optional[fields.Policy] = None, *, id: str = "", **options: Unpack[fields.ForkOptions]) -> Session:
        """A branch: the same tokens and cache, a future of its own."""
        request = session_pb2.ForkSessionRequest(session=self.name, session_id=id, request_id=channel.new_request_id())
        fields.fill(request, policy=fields.to_policy(policy), **options)
        return Session(self._client, self._client._call("ForkSession", request).name, owned=True)

    def save(self, snapshot: str = "", *, expected_generation: Optional[int] = None) -> session_pb2.Snapshot:
        """Keeps the session in the server's store, under its id or another."""
        request = session_pb2.SaveSessionRequest(session=self.name, snapshot_id=snapshot, expected_generation=expected_generation)
        return self._client._call("SaveSession", request).snapshot

    def prefill(self, prompt: fields.Prompt, *, on_block: OnBlock = None,
                **options: Unpack[fields.PrefillOptions]) -> inference_pb2.PrefillResponse:
        """Appends a prompt; `on_block` is called after each block. Returns the last message, which has usage and generation."""
        request = inference_pb2.PrefillRequest(session=self.name, prompt=fields.to_prompt(prompt))
        answer = self._answer(fields.fill(request, **options), on_block)
        answer.read()
        return answer._progress.read

    def generate(self, prompt: fields.Prompt, *, on_block: OnBlock = None,
                 **options: Unpack[fields.GenerateOptions]) -> Answer:
        """Appends a prompt and answers it. The call begins when the answer is read."""
        return self._answer(fields.generate_request(self.name, prompt, options), on_block)

    def decode(self, **options: Unpack[fields.DecodeOptions]) -> Answer:
        """Goes on from the end of the session's log. The call begins when the answer is read."""
        return self._answer(fields.with_options(inference_pb2.DecodeRequest(session=self.name), options), None)

    def verify(self, draft: Sequence[int], **options: Unpack[fields.VerifyOptions]) -> inference_pb2.VerifyResponse:
        """Runs a draft in one step; with mode="manual" it waits for `accept`."""
        request = inference_pb2.VerifyRequest(session=self.name, draft_tokens=draft)
        return self._client._call("Verify", fields.with_options(request, options), repeatable=False)

    def accept(self, count: int, *, expected_generation: Optional[int] = None) -> inference_pb2.AcceptResponse:
        """Keeps the first `count` tokens of the draft that waits, and forgets the others."""
        request = inference_pb2.AcceptRequest(session=self.name, count=count, expected_generation=expected_generation)
        return self._client._call("Accept", request, repeatable=False)

    def edit(self, *spans: Tuple[int, int, Union[str, Sequence[int], None]],
             **options: Unpack[fields.EditOptions]) -> inference_pb2.EditResponse:
        """Replaces spans of the log: (start, end, text or token ids, or None to delete)."""
        return self._client._call("Edit", fields.edit_request(self.name, spans, options), repeatable=False)

    def set_policy(self, policy: fields.Policy, *, dry_run: bool = False,
                   expected_generation: Optional[int] = None) -> eviction_pb2.PolicyChange:
        """Another policy on the warm cache; the answer says what left."""
        request = eviction_pb2.SetPolicyRequest(session=self.name, policy=fields.to_policy(policy), dry_run=dry_run,
                                                expected_generation=expected_generation)
        return self._client._call("SetPolicy", request).changes[0]

    def evict(self, *, range: Optional[Tuple[int, int]] = None, keep: Optional[int] = None, scorer: str = "",
              older_than: Optional[int] = None, slots: Optional[Mapping[Tuple[int, int], Sequence[int]]] = None,
              **options: Unpack[fields.EvictOptions]) -> eviction_pb2.EvictResponse:
        """Evicts now, by one of: tokens [start, end) of the log; pruning to `keep` tokens, by another `scorer` if named; age; exact
        slots by (layer, head)."""
        request = fields.evict_request(self.name, range, keep, scorer, older_than, slots, options)
        return self._client._call("Evict", request, repeatable=False)

    def describe(self, layer: Optional[int] = None, head: Optional[int] = None,
                 stride: Optional[int] = None) -> eviction_pb2.DescribeCacheResponse:
        """What is cached: slots, tokens, positions and scores, lane by lane."""
        request = eviction_pb2.DescribeCacheRequest(session=self.name, layer=layer, head=head, stride=stride)
        return self._client._call("DescribeCache", request)

    def watch_evictions(self, *, every: Optional[int] = None,
                        list_victims: bool = False) -> Stream[eviction_pb2.WatchEvictionsResponse]:
        return self._client.watch_evictions(self.name, every=every, list_victims=list_victims)

    def _answer(self, request: Any, on_block: OnBlock) -> Answer:
        progress, client = Progress(request), self._client
        return Answer(client, flow.answer(progress, client._retry, client._resume), progress, on_block)


class Stream(Generic[T]):
    """The messages of a stream, as they come. A with statement ends it."""

    def __init__(self, client: Client, calls: flow.Flow):
        self._steps = _Run(client, calls)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        step = self._steps.advance()
        if isinstance(step, flow.Done):
            raise StopIteration
        return step.message

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the call. What was done until then is in the session."""
        self._steps.close()


class Answer(AnswerState):
    """An answer while it is made: iterate over it for its text, piece by piece, or over `messages()` for tokens, log-probabilities and
    cache lengths beside it. After a break of the connection it goes on by itself, with the same tokens."""

    def __init__(self, client: Client, calls: flow.Flow, progress: Progress, on_block: OnBlock):
        super().__init__(progress)
        self._stream: Stream[Any] = Stream(client, calls)
        self._on_block = on_block

    def __iter__(self) -> Iterator[str]:
        for message in self.messages():
            if message.text:
                yield message.text

    def messages(self) -> Iterator[inference_pb2.DecodeResponse]:
        for message in self._stream:
            if isinstance(message, inference_pb2.DecodeResponse):
                yield message
            elif self._on_block is not None:
                self._on_block(message)

    def read(self) -> str:
        """Reads to the end and returns the whole text."""
        for _ in self.messages():
            pass
        return self.text

    def close(self) -> None:
        """Ends the call. What was done until then is in the session."""
        self._stream.close()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Run(flow.Run):
    """Does what a flow says."""

    def advance(self) -> Any:
        """The next message, as a flow.Give, or the flow's end, a flow.Done."""
        reply: Any = None
        failure: Optional[Error] = None
        while True:
            step = self.next_step(reply, failure)
            if isinstance(step, (flow.Give, flow.Done)):
                return step
            reply = failure = None
            try:
                reply = self._do(step)
            except grpc.RpcError as error:
                failure = self.failed(from_rpc(error))
            except BaseException:
                self.leave()
                raise

    def _do(self, step: Any) -> Any:
        client = self._client
        if isinstance(step, flow.Call):
            reply = self.method(step)(step.request, timeout=client._timeout, metadata=client._metadata)
            client._homes.heard(self.address)
            return reply
        if isinstance(step, flow.Open):
            self._open = self.method(step)(step.request, metadata=client._metadata)
        elif isinstance(step, flow.Read):
            message = next(self._open, None)
            client._homes.heard(self.address)
            return message
        else:
            client._wait(step, self.address)
        return None
