"""Client of Ebb, a gRPC server for LLM inference whose sessions keep their KV cache inside a budget.

    import ebb

    with ebb.Client("127.0.0.1:7700") as client, client.create_session(ebb.policy("h2o", budget=256)) as session:
        for text in session.generate("It was a dark and stormy night", max_tokens=64):
            print(text, end="", flush=True)

`ebb.aio.Client` is the same for asyncio. Messages that calls return are those of ebb.v1; docs/reference/api.md describes them.
"""
from ebb import aio
from ebb.client import Answer, Client, Session, Stream
from ebb.errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error, FailedPrecondition, InvalidArgument,
                        NotFound, NotResumable, ResourceExhausted, Unavailable)
from ebb.fields import assistant, policy, system, user
from ebb.retry import Retry

__all__ = ["Aborted", "AlreadyExists", "Answer", "Cancelled", "Client", "DataLoss", "DeadlineExceeded", "Error", "FailedPrecondition",
           "InvalidArgument", "NotFound", "NotResumable", "ResourceExhausted", "Retry", "Session", "Stream", "Unavailable", "aio",
           "assistant", "policy", "system", "user"]
