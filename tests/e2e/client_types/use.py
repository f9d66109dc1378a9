"""What a type checker makes of the package's public names: client_types_test.py has mypy read this, and nobody runs it.

A line that ends in `type: ignore[...]` is wrong: mypy fails where it does not see that.
"""
from typing import List, Optional, Type

from typing_extensions import assert_type

import ebb
from ebb.v1 import eviction_pb2, inference_pb2, policy_pb2, session_pb2, usage_pb2


def answers(client: ebb.Client) -> None:
    policy = ebb.policy("h2o", budget=256, allocation={"pyramid": {"beta": 4}})
    assert_type(policy, policy_pb2.PolicySpec)
    with client.create_session(policy, id="s", ttl=60, sampling={"temperature": 0.5}) as session:
        assert_type(session, ebb.Session)
        assert_type(session.prefill([ebb.system("Be short."), ebb.user("Hello."), ebb.assistant("Hello.")]), inference_pb2.PrefillResponse)
        answer = session.generate("Once", max_tokens=8, stop=["."], seed=7)
        assert_type(answer, ebb.Answer)
        for text in answer:
            assert_type(text, str)
        for message in session.decode(ngram=True, draft_tokens_max=4).messages():
            assert_type(message.cache_length, int)
        assert_type(answer.tokens, List[int])
        assert_type(answer.usage, Optional[usage_pb2.Usage])
        assert_type(session.info(), session_pb2.Session)
        assert_type(session.fork("tova", reserve_copies=True), ebb.Session)
        assert_type(session.edit((1, 2, " nine"), (3, 4, None), mode="reposition"), inference_pb2.EditResponse)
        assert_type(session.evict(slots={(0, 1): [3, 4]}, dry_run=True), eviction_pb2.EvictResponse)
        with session.watch_evictions(every=2) as watch:
            assert_type(watch, ebb.Stream[eviction_pb2.WatchEvictionsResponse])
            for event in watch:
                assert_type(event, eviction_pb2.WatchEvictionsResponse)
        session.generate("Once", max_token=8)  # type: ignore[call-arg]
        session.generate("Once", max_tokens="8")  # type: ignore[arg-type]
        session.generate(8)  # type: ignore[arg-type]
        session.edit((1, 2))  # type: ignore[arg-type]
        session.info().cache_size  # type: ignore[attr-defined]
        answer.usage.cache_length  # type: ignore[union-attr]
    assert_type(client.tokenize("Once"), List[int])
    ebb.Client(token="t")  # type: ignore[call-arg]


def failures(retry: ebb.Retry = ebb.Retry(attempts=2)) -> Optional[float]:
    kinds: List[Type[ebb.Error]] = [
        ebb.Aborted, ebb.AlreadyExists, ebb.Cancelled, ebb.DataLoss, ebb.DeadlineExceeded, ebb.FailedPrecondition, ebb.InvalidArgument,
        ebb.NotFound, ebb.NotResumable, ebb.ResourceExhausted, ebb.Unavailable]
    try:
        answers(ebb.Client("127.0.0.1:7700", retry=retry, resume=None, follow=["*.example.org:7700"], keepalive=60))
    except tuple(kinds) as error:
        assert_type(error.reason, str)
        return error.retry_delay
    return None


async def asynchronous() -> None:
    async with ebb.aio.Client(tls=True) as client, await client.create_session() as session:
        assert_type(await session.info(), session_pb2.Session)
        async for text in session.generate("Once"):
            assert_type(text, str)
        for text in session.generate("Once"):  # type: ignore[attr-defined]
            pass
