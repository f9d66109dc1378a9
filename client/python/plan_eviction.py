#!/usr/bin/env python3
"""Eviction for an engine that is not Ebb: its cache is two NumPy arrays, and Ebb says who leaves (see README.md beside this file).

One layer with a few heads attends over a text that never ends. Each head has SLOTS places; when all are taken, PlanEviction names the
one in each head whose token leaves, and the next token's key and value are written there: nothing else moves. Beside it, attention over
everything, and over a sliding window of as many tokens, show what the eviction costs and what it saves.
"""
import os
import sys

try:
    import grpc
    import numpy as np
    from ebb.v1 import eviction_pb2, eviction_pb2_grpc, policy_pb2
except ModuleNotFoundError as missing:
    sys.exit(f"plan_eviction.py: no module {missing.name}; README.md beside this file says how to get grpcio and the stubs")

HEADS, SLOTS, DIM, TOKENS = 4, 64, 16, 256


def attend(query, keys, values):
    """[h, d] against [h, n, d]: the weights [h, n] and the outputs [h, d]."""
    logits = np.einsum("hd,hnd->hn", query, keys) / np.sqrt(query.shape[1])
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights, np.einsum("hn,hnd->hd", weights, values)


class Cache:
    """A fixed number of slots per head. `token` says whose key and value a slot holds: slots are reused, so it is the age, not the place."""

    def __init__(self):
        self.keys = np.zeros((HEADS, SLOTS, DIM), np.float32)
        self.values = np.zeros((HEADS, SLOTS, DIM), np.float32)
        self.token = np.full((HEADS, SLOTS), -1, np.int32)
        self.scores = np.zeros((HEADS, SLOTS), np.float32)  # attention received so far, as in H2O

    def write(self, slots, token, key, value):
        heads = np.arange(HEADS)
        self.keys[heads, slots], self.values[heads, slots] = key, value
        self.token[heads, slots] = token
        self.scores[heads, slots] = 0


def plan(service, cache, weights):
    """Which slot of each head is the next token's, and what its eviction costs: mean attention mass, mean error of the output."""
    request = eviction_pb2.PlanEvictionRequest(evict=1, sinks=4, recent=16, modifier=policy_pb2.MODIFIER_CAOTE)
    for head in range(HEADS):
        request.rows.add(scores=cache.scores[head].astype("<f4").tobytes(), attention=weights[head].astype("<f4").tobytes(),
                         values=cache.values[head].astype("<f4").tobytes(), tokens=cache.token[head].astype("<i4").tobytes())
    rows = service.PlanEviction(request).rows
    slots = np.array([row.victims[0] for row in rows])
    return slots, np.mean([row.attention_mass for row in rows]), np.mean([row.output_error for row in rows])


def text():
    """Keys, values and queries [t, h, d] of a made-up text: each head looks for something, which one token in twelve has."""
    random = np.random.default_rng(7)
    keys, values, queries = random.standard_normal((3, TOKENS, HEADS, DIM)).astype(np.float32)
    topic = random.standard_normal((HEADS, DIM)).astype(np.float32)
    keys[random.random((TOKENS, HEADS)) < 1 / 12] *= 0.1
    keys += topic * (np.linalg.norm(keys, axis=2, keepdims=True) < 1)
    return keys, values, topic + 0.5 * queries


def apart(output, whole):
    return np.linalg.norm(output - whole) / np.linalg.norm(whole)


def stream(address):
    service = eviction_pb2_grpc.EvictionServiceStub(grpc.insecure_channel(address))
    keys, values, queries = text()
    cache, masses, errors, planned, window = Cache(), [], [], [], []
    for token in range(TOKENS):
        if token < SLOTS:
            slots = np.full(HEADS, token)
        else:
            slots, mass, error = plan(service, cache, weights)
            assert (cache.token[np.arange(HEADS), slots] >= 4).all(), "a sink was to leave"
            masses.append(mass)
            errors.append(error)
        cache.write(slots, token, keys[token], values[token])
        live = cache.token[0] >= 0  # the same slots in every head: they fill from the first
        weights, output = attend(queries[token], cache.keys[:, live], cache.values[:, live])
        cache.scores[:, live] += weights
        seen = np.arange(token + 1)
        newest = seen if token < SLOTS else np.r_[0:4, token + 5 - SLOTS:token + 1]
        whole, slid = (attend(queries[token], keys[t].swapaxes(0, 1), values[t].swapaxes(0, 1))[1] for t in (seen, newest))
        planned.append(apart(output, whole))
        window.append(apart(slid, whole))
    print(f"{TOKENS} tokens through {SLOTS} slots in {HEADS} heads: {HEADS * len(masses)} evictions, each written over in place")
    print(f"an eviction took {100 * np.mean(masses):.2f} % of the attention and moved the output by {np.mean(errors):.4f}")
    print(f"from attention to all tokens: {np.mean(planned[:SLOTS]):.4f} apart before the first eviction, {np.mean(planned[SLOTS:]):.4f} "
          f"after, a sliding window {np.mean(window[SLOTS:]):.4f}")
    kept = [int((cache.token[head] < TOKENS - SLOTS).sum()) for head in range(HEADS)]
    print("older than a window of that size, and still there:", ", ".join(f"head {head}: {n}" for head, n in enumerate(kept)))


address = os.environ.get("EBB_ADDR", "127.0.0.1:7700")
try:
    stream(address)
except grpc.RpcError as error:
    sys.exit(f"plan_eviction.py: {error.code().name} from {address}: {error.details()}")
