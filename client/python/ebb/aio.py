"""The client for asyncio: ebb.aio.Client. What its calls mean is said in `ebb.client`, which has the same ones for who waits."""
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Generic, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

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
    """As ebb.Client. Make it inside the event loop that it is used in."""

    def __init__(self, address: str = "127.0.0.1:7700", *, tenant: str = "", token_file: str = "", tls: bool = False, ca: str = "",
                 cert: str = "", key: str = "", credentials: Optional[grpc.ChannelCredentials] = None,
                 metadata: Sequence[Tuple[str, str]] = (), timeout: float = 60, retry: Retry = Retry(),
                 resume: Optional[Retry] = Retry(attempts=10), follow: Sequence[str] = (), keepalive: float = channel.KEEPALIVE):
        self._servers = channel.Servers(channel.opener(grpc.aio, credentials or channel.credentials_of(tls, ca, cert, key), keepalive))
        self._homes = Homes(address, follow)
        self.stubs = self._servers.at(address).stubs
        self._metadata = channel.metadata_of(tenant, token_file, metadata)
        self._timeout, self._retry, self._resume = timeout, retry, resume

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        for server in self._servers.all():
            await server.channel.close()

    async def create_session(self, policy: Optional[fields.Policy] = None, *, id: str = "",
                             **options: Unpack[fields.SessionOptions]) -> Session:
        request = session_pb2.CreateSessionRequest(session_id=id, request_id=channel.new_request_id())
        fields.fill(request, policy=fields.to_policy(policy), **options)
        return Session(self, (await self._call("CreateSession", request)).name, owned=True)

    def session(self, name: str) -> Session:
        return Session(self, channel.name_of("sessions", name), owned=False)

    async def restore(self, snapshot: str, *, id: str = "", model: str = "") -> Session:
        request = session_pb2.RestoreSessionRequest(snapshot=channel.name_of("snapshots", snapshot), session_id=id, model=model,
                                                    request_id=channel.new_request_id())
        return Session(self, (await self._call("RestoreSession", request)).name, owned=True)

    async def sessions(self) -> List[session_pb2.Session]:
        return await self._run(flow.pages("ListSessions", session_pb2.ListSessionsRequest(), "sessions", self._retry))

    async def snapshots(self) -> List[session_pb2.Snapshot]:
        return await self._run(flow.pages("ListSnapshots", session_pb2.ListSnapshotsRequest(), "snapshots", self._retry))

    async def delete_snapshot(self, name: str) -> None:
        await self._call("DeleteSnapshot", session_pb2.DeleteSnapshotRequest(name=channel.name_of("snapshots", name)))

    def generate(self, prompt: fields.Prompt, *, policy: Optional[fields.Policy] = None, model: str = "", on_block: OnBlock = None,
                 **options: Unpack[fields.GenerateOptions]) -> Answer:
        request = fields.fill(fields.generate_request("", prompt, options), policy=fields.to_policy(policy), model=model)
        progress = Progress(request)
        return Answer(self, flow.stream("Generate", request, self._retry, True, progress), progress, on_block)

    async def tokenize(self, prompt: fields.Prompt, *, omit_begin: bool = False, model: str = "") -> List[int]:
        request = inference_pb2.TokenizeRequest(prompt=fields.to_prompt(prompt), omit_begin=omit_begin, model=model)
        return list((await self._call("Tokenize", request)).ids)

    async def detokenize(self, ids: Sequence[int], *, render_special: bool = False, model: str = "") -> str:
        return (await self._call("Detokenize", inference_pb2.DetokenizeRequest(ids=ids, render_special=render_special, model=model))).text

    async def score(self, target: fields.Prompt, context: Optional[fields.Prompt] = None, *,
                    policy: Optional[fields.Policy] = None, model: str = "") -> inference_pb2.ScoreResponse:
        request = inference_pb2.ScoreRequest(target=fields.to_prompt(target), model=model)
        fields.fill(request, context=None if context is None else fields.to_prompt(context), policy=fields.to_policy(policy))
        return await self._call("Score", request)

    async def plan_eviction(self, rows: Sequence[Mapping[str, Any]],
                            **options: Unpack[fields.PlanOptions]) -> List[eviction_pb2.PlannedRow]:
        return list((await self._call("PlanEviction", fields.plan_request(rows, options))).rows)

    async def set_policy_of_all(self, policy: fields.Policy, *, dry_run: bool = False, model: str = "") -> List[eviction_pb2.PolicyChange]:
        request = eviction_pb2.SetPolicyRequest(all_sessions=True, policy=fields.to_policy(policy), dry_run=dry_run, model=model)
        return list((await self._call("SetPolicy", request)).changes)

    def watch_evictions(self, session: str = "", *, every: Optional[int] = None,
                        list_victims: bool = False, model: str = "") -> Stream[eviction_pb2.WatchEvictionsResponse]:
        request = eviction_pb2.WatchEvictionsRequest(session=session and channel.name_of("sessions", session), every=every,
                                                     list_victims=list_victims, model=model)
        return Stream(self, flow.stream("WatchEvictions", request, self._retry, True))

    async def status(self) -> admin_pb2.GetStatusResponse:
        return await self._call("GetStatus", admin_pb2.GetStatusRequest())

    async def models(self) -> List[admin_pb2.Model]:
        return list((await self._call("ListModels", admin_pb2.ListModelsRequest())).models)

    async def policies(self, *, model: str = "") -> admin_pb2.ListPoliciesResponse:
        return await self._call("ListPolicies", admin_pb2.ListPoliciesRequest(model=model))

    async def _call(self, method: str, request: Any, *, repeatable: bool = True) -> Any:
        return await self._run(flow.call(method, request, self._retry, repeatable))

    async def _run(self, calls: flow.Flow) -> Any:
        return (await _Run(self, calls).advance()).result


class Session:
    """As ebb.Session, with `async with`."""

    def __init__(self, client: Client, name: str, owned: bool):
        self.name = name
        self._client, self._owned = client, owned

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, kind: Any, *_: Any) -> None:
        if not self._owned:
            return
        try:
            await self.delete()
        except NotFound:
            pass
        except Error:
            if kind is None:
                raise

    async def info(self) -> session_pb2.Session:
        return await self._client._call("GetSession", session_pb2.GetSessionRequest(name=self.name))

    async def delete(self) -> None:
        await self._client._call("DeleteSession", session_pb2.DeleteSessionRequest(name=self.name))

    async def fork(self, policy: Optional[fields.Policy] = None, *, id: str = "", **options: Unpack[fields.ForkOptions]) -> Session:
        request = session_pb2.ForkSessionRequest(session=self.name, session_id=id, request_id=channel.new_request_id())
        fields.fill(request, policy=fields.to_policy(policy), **options)
        return Session(self._client, (await self._client._call("ForkSession", request)).name, owned=True)

    async def save(self, snapshot: str = "", *, expected_generation: Optional[int] = None) -> session_pb2.Snapshot:
        request = session_pb2.SaveSessionRequest(session=self.name, snapshot_id=snapshot, expected_generation=expected_generation)
        return (await self._client._call("SaveSession", request)).snapshot

    async def prefill(self, prompt: fields.Prompt, *, on_block: OnBlock = None,
                      **options: Unpack[fields.PrefillOptions]) -> inference_pb2.PrefillResponse:
        request = inference_pb2.PrefillRequest(session=self.name, prompt=fields.to_prompt(prompt))
        answer = self._answer(fields.fill(request, **options), on_block)
        await answer.read()
        return answer._progress.read

    def generate(self, prompt: fields.Prompt, *, on_block: OnBlock = None,
                 **options: Unpack[fields.GenerateOptions]) -> Answer:
        return self._answer(fields.generate_request(self.name, prompt, options), on_block)

    def decode(self, **options: Unpack[fields.DecodeOptions]) -> Answer:
        return self._answer(fields.with_options(inference_pb2.DecodeRequest(session=self.name), options), None)

    async def verify(self, draft: Sequence[int], **options: Unpack[fields.VerifyOptions]) -> inference_pb2.VerifyResponse:
        request = inference_pb2.VerifyRequest(session=self.name, draft_tokens=draft)
        return await self._client._call("Verify", fields.with_options(request, options), repeatable=False)

    async def accept(self, count: int, *, expected_generation: Optional[int] = None) -> inference_pb2.AcceptResponse:
        request = inference_pb2.AcceptRequest(session=self.name, count=count, expected_generation=expected_generation)
        return await self._client._call("Accept", request, repeatable=False)

    async def edit(self, *spans: Tuple[int, int, Union[str, Sequence[int], None]],
                   **options: Unpack[fields.EditOptions]) -> inference_pb2.EditResponse:
        return await self._client._call("Edit", fields.edit_request(self.name, spans, options), repeatable=False)

    async def set_policy(self, policy: fields.Policy, *, dry_run: bool = False,
                         expected_generation: Optional[int] = None) -> eviction_pb2.PolicyChange:
        request = eviction_pb2.SetPolicyRequest(session=self.name, policy=fields.to_policy(policy), dry_run=dry_run,
                                                expected_generation=expected_generation)
        return (await self._client._call("SetPolicy", request)).changes[0]

    async def evict(self, *, range: Optional[Tuple[int, int]] = None, keep: Optional[int] = None, scorer: str = "",
                    older_than: Optional[int] = None, slots: Optional[Mapping[Tuple[int, int], Sequence[int]]] = None,
                    **options: Unpack[fields.EvictOptions]) -> eviction_pb2.EvictResponse:
        request = fields.evict_request(self.name, range, keep, scorer, older_than, slots, options)
        return await self._client._call("Evict", request, repeatable=False)

    async def describe(self, layer: Optional[int] = None, head: Optional[int] = None,
                       stride: Optional[int] = None) -> eviction_pb2.DescribeCacheResponse:
        request = eviction_pb2.DescribeCacheRequest(session=self.name, layer=layer, head=head, stride=stride)
        return await self._client._call("DescribeCache", request)

    def watch_evictions(self, *, every: Optional[int] = None,
                        list_victims: bool = False) -> Stream[eviction_pb2.WatchEvictionsResponse]:
        return self._client.watch_evictions(self.name, every=every, list_victims=list_victims)

    def _answer(self, request: Any, on_block: OnBlock) -> Answer:
        progress, client = Progress(request), self._client
        return Answer(client, flow.answer(progress, client._retry, client._resume), progress, on_block)


class Stream(Generic[T]):
    """As ebb.Stream, with `async for`."""

    def __init__(self, client: Client, calls: flow.Flow):
        self._steps = _Run(client, calls)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        step = await self._steps.advance()
        if isinstance(step, flow.Done):
            raise StopAsyncIteration
        return step.message

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        self._steps.close()


class Answer(AnswerState):
    """As ebb.Answer, with `async for`."""

    def __init__(self, client: Client, calls: flow.Flow, progress: Progress, on_block: OnBlock):
        super().__init__(progress)
        self._stream: Stream[Any] = Stream(client, calls)
        self._on_block = on_block

    async def __aiter__(self) -> AsyncIterator[str]:
        async for message in self.messages():
            if message.text:
                yield message.text

    async def messages(self) -> AsyncIterator[inference_pb2.DecodeResponse]:
        async for message in self._stream:
            if isinstance(message, inference_pb2.DecodeResponse):
                yield message
            elif self._on_block is not None:
                self._on_block(message)

    async def read(self) -> str:
        async for _ in self.messages():
            pass
        return self.text

    async def close(self) -> None:
        await self._stream.close()

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


class _Run(flow.Run):
    """Does what a flow says."""

    async def advance(self) -> Any:
        """The next message, as a flow.Give, or the flow's end, a flow.Done."""
        reply: Any = None
        failure: Optional[Error] = None
        while True:
            step = self.next_step(reply, failure)
            if isinstance(step, (flow.Give, flow.Done)):
                return step
            reply = failure = None
            try:
                reply = await self._do(step)
            except grpc.RpcError as error:
                failure = self.failed(from_rpc(error))
            except BaseException:
                self.leave()
                raise

    async def _do(self, step: Any) -> Any:
        client = self._client
        if isinstance(step, flow.Call):
            reply = await self.method(step)(step.request, timeout=client._timeout, metadata=client._metadata)
            client._homes.heard(self.address)
            return reply
        if isinstance(step, flow.Open):
            self._open = self.method(step)(step.request, metadata=client._metadata)
        elif isinstance(step, flow.Read):
            message = await self._open.read()
            client._homes.heard(self.address)
            return None if message is grpc.aio.EOF else message
        else:
            await asyncio.sleep(step.seconds)
        return None
