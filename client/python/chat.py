#!/usr/bin/env python3
"""A conversation that outlives its cache: plain grpcio over generated stubs (see README.md beside this file)."""
import os
import sys

try:
    import grpc
    from ebb.v1 import inference_pb2, inference_pb2_grpc, session_pb2, session_pb2_grpc
except ModuleNotFoundError as missing:
    sys.exit(f"chat.py: no module {missing.name}; README.md beside this file says how to get grpcio and the stubs")


def converse(address, turns):
    channel = grpc.insecure_channel(address)
    sessions = session_pb2_grpc.SessionServiceStub(channel)
    inference = inference_pb2_grpc.InferenceServiceStub(channel)

    request = session_pb2.CreateSessionRequest()
    request.policy.h2o.SetInParent()
    request.policy.trigger.budget = 256
    session = sessions.CreateSession(request)

    for line in turns:
        ask = inference_pb2.GenerateRequest(session=session.name)
        ask.prompt.chat.messages.add(role="user", content=line)
        ask.sampling.temperature = 0
        ask.stopping.max_tokens = 48
        print(">", line)
        for message in inference.Generate(ask):
            if message.HasField("decode"):
                print(message.decode.text, end="", flush=True)
                usage = message.decode.usage
        print(f"\n[cache {usage.cache_length} of {usage.session_tokens} tokens seen]")

    sessions.DeleteSession(session_pb2.DeleteSessionRequest(name=session.name))


address = os.environ.get("EBB_ADDR", "127.0.0.1:7700")
try:
    converse(address, sys.argv[1:] or ["The lamp is in the cellar. Where is the lamp?"])
except grpc.RpcError as error:
    sys.exit(f"chat.py: {error.code().name} from {address}: {error.details()}")
