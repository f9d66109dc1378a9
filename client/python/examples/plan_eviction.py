#!/usr/bin/env python3
"""Eviction for an engine that is not Ebb: the caches of four heads are NumPy arrays, and Ebb says which slot the next token takes."""
import os
import sys

import ebb
import numpy as np

HEADS, SLOTS, DIM, TOKENS = 4, 64, 16, 256
random, heads = np.random.default_rng(7), np.arange(HEADS)
keys, values, queries = random.standard_normal((3, HEADS, TOKENS, DIM))  # a made-up text:
topic = random.standard_normal((HEADS, 1, DIM))  # each head looks for something
keys += topic * (random.random((HEADS, TOKENS, 1)) < 1 / 12)  # that one token in twelve has


def attend(query: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The query [h, d] against the tokens seen [h, n]: the weights [h, n] and the outputs [h, d]."""
    weights = np.exp(np.einsum("hd,hnd->hn", query, keys[heads[:, None], seen]) / np.sqrt(DIM))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights, np.einsum("hn,hnd->hd", weights, values[heads[:, None], seen])


try:
    client = ebb.Client(os.environ.get("EBB_ADDR", "127.0.0.1:7700"))
    token, score, apart = np.tile(np.arange(SLOTS), (HEADS, 1)), np.zeros((HEADS, SLOTS)), []  # [h, n]: whose a slot is, and its attention
    for now in range(SLOTS, TOKENS):
        query = topic[:, 0] + queries[:, now] / 2
        weights, output = attend(query, token)
        score += weights
        whole, window = (attend(query, np.tile(seen, (HEADS, 1)))[1] for seen in (np.arange(now), np.r_[0:4, now + 4 - SLOTS : now]))
        apart.append([np.linalg.norm(each - whole) / np.linalg.norm(whole) for each in (output, window)])
        rows = [dict(scores=score[h], attention=weights[h], values=values[h, token[h]], tokens=token[h]) for h in heads]
        slot = [row.victims[0] for row in client.plan_eviction(rows, evict=1, sinks=4, recent=16, modifier="caote")]
        token[heads, slot], score[heads, slot] = now, 0  # the next token's key and value take the place; nothing else moves
    print(f"{len(apart) * HEADS} evictions, each written over in place")
    print("apart from attention to all tokens: {:.4f}, a sliding window of as many {:.4f}".format(*np.mean(apart, axis=0)))
except ebb.Error as error:
    sys.exit(f"plan_eviction.py: {error}")
