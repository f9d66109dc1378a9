#!/usr/bin/env python3
"""A drafter of our own: guesses what the text has said before, and lets Ebb check the guess (see README.md beside this file)."""
import os
import sys

try:
    import grpc
    from ebb.v1 import inference_pb2, inference_pb2_grpc, session_pb2, session_pb2_grpc
except ModuleNotFoundError as missing:
    sys.exit(f"draft.py: no module {missing.name}; README.md beside this file says how to get grpcio and the stubs")


def guess(tokens, most=12):
    """What followed the last three tokens, or two, or one, when they were last seen."""
    for size in (3, 2, 1):
        for at in range(len(tokens) - size - 1, -1, -1):
            if tokens[at : at + size] == tokens[-size:]:
                return tokens[at + size : at + size + most]
    return []


def speculate(address, text, count):
    channel = grpc.insecure_channel(address)
    sessions = session_pb2_grpc.SessionServiceStub(channel)
    inference = inference_pb2_grpc.InferenceServiceStub(channel)
    prompt = inference_pb2.Prompt(text=text)
    tokens = list(inference.Tokenize(inference_pb2.TokenizeRequest(prompt=prompt)).ids)
    name = sessions.CreateSession(session_pb2.CreateSessionRequest()).name
    list(inference.Prefill(inference_pb2.PrefillRequest(session=name, prompt=prompt)))

    begin, sure, rounds = len(tokens), [], 0  # sure: the model's next token, which the session has not run yet
    while len(tokens) - begin < count:
        draft = (sure + guess(tokens + sure))[: count - (len(tokens) - begin)] or tokens[-1:]
        seen = inference.Verify(inference_pb2.VerifyRequest(session=name, draft_tokens=draft, mode="VERIFY_MODE_MANUAL", logprobs=1))
        best = [score.top[0].token for score in seen.scores] + [seen.next.token]
        right = next((i for i, (token, said) in enumerate(zip(draft, best)) if token != said), len(seen.scores))
        inference.Accept(inference_pb2.AcceptRequest(session=name, count=right))
        tokens, sure, rounds = tokens + draft[:right], [best[right]], rounds + 1

    print(inference.Detokenize(inference_pb2.DetokenizeRequest(ids=tokens[begin:])).text)
    print(f"[{count} tokens in {rounds} rounds]")
    sessions.DeleteSession(session_pb2.DeleteSessionRequest(name=name))


address = os.environ.get("EBB_ADDR", "127.0.0.1:7700")
try:
    speculate(address, sys.argv[1] if sys.argv[1:] else "one two three four one two three four one two three", 48)
except grpc.RpcError as error:
    sys.exit(f"draft.py: {error.code().name} from {address}: {error.details()}")
