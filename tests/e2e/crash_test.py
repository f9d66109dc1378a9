#!/usr/bin/env python3
"""Kills a server that journals its sessions, over and over, in the midst of a random load, and compares every session with one that lived
undisturbed on another server: the same answers, the same cache, the same tokens to come.

    make crash                                       200 rounds
    tests/e2e/crash_test.py --rounds 5 --seed 17     prints the seed that it ran with

Each round: some clients write to sessions of their own, each call after the answer to the one before; at a random instant the server gets
SIGKILL; the next one starts on its store. What was answered must be there. A call that was not answered may have been done or not, or its
tokens in part: what the session says of itself decides what the undisturbed one is told to do. In a quarter of the rounds memory holds some of
the sessions, and the others are swapped: the kill falls among their ways out and in. Needs Debian's python3-grpcio and protoc."""
import argparse
import pathlib
import random
import re
import tempfile
import threading
import time
import urllib.request

from binaries import Server
from patience import PATIENCE, connected
import python_package  # where the stubs are, for the imports that follow

import grpc
from ebb.v1 import (eviction_pb2 as eviction, eviction_pb2_grpc, inference_pb2 as inference, inference_pb2_grpc, policy_pb2 as policy,
                    session_pb2 as session, session_pb2_grpc)

SERVICES = (session_pb2_grpc.SessionServiceStub, inference_pb2_grpc.InferenceServiceStub, eviction_pb2_grpc.EvictionServiceStub)

CLIENTS = 3
ARENA_OF_FEW = "2MiB"  # five to ten of the dozen sessions that clients have at most
VOCABULARY = 250  # ids that every model has
SECONDS = (0.15, 0.7)  # of load before the kill
BEGINNINGS = [[1 + (7 * i + n) % 200 for n in range(40)] for i in range(4)]  # of first prompts: blocks that they share


class Client:
    """All services of one server; use it in a with statement."""

    def __init__(self, server):
        self.server = server

    def __enter__(self):
        self.channel = connected(grpc.insecure_channel(self.server.addr))
        for stub in SERVICES:
            self.__dict__.update(stub(self.channel).__dict__)
        return self

    def __exit__(self, *_):
        self.channel.close()

    def get(self, name):
        try:
            return self.GetSession(session.GetSessionRequest(name=name))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return None
            raise

    def cache(self, name):
        return self.DescribeCache(eviction.DescribeCacheRequest(session=name))

    def metric(self, series):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{self.server.http}/metrics", timeout=PATIENCE) as answer:
            page = answer.read().decode()
        return float(re.search(rf"^{re.escape(series)} (\S+)$", page, re.M).group(1))


def policy_of(scorer, budget):
    spec = policy.PolicySpec(trigger=policy.Trigger(budget=budget))
    getattr(spec, scorer).SetInParent()
    return spec


def made(client, method, request, told=None):
    """What a call is answered, without what differs between two servers: times, and what sessions share. Refusals are answers, too.
    Tokens go to `told` as they come."""
    told = [] if told is None else told
    try:
        answer = getattr(client, method)(request)
        if method in ("Prefill", "Decode"):
            for message in answer:
                told += getattr(message, "tokens", [])
            return told
    except grpc.RpcError as error:
        if error.code() in refusals():
            return error.code()
        raise
    if method == "DeleteSession":
        return None
    for field in ("timings", "elapsed_ms", "create_time", "last_used_time", "expire_time", "shared_bytes"):
        if field in type(answer).DESCRIPTOR.fields_by_name:
            answer.ClearField(field)
    return answer


def refusals():
    code = grpc.StatusCode
    return (code.FAILED_PRECONDITION, code.INVALID_ARGUMENT, code.RESOURCE_EXHAUSTED, code.NOT_FOUND, code.ABORTED)


def has_no_room(error):
    """Memory is full of sessions that cannot leave: whoever is told so has changed nothing."""
    return (isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.UNAVAILABLE and
            any(key == "grpc-status-details-bin" and b"NO_PAGES" in value for key, value in error.trailing_metadata() or ()))


def has_ended(error):
    return isinstance(error, grpc.RpcError) and error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class Load(threading.Thread):
    """One client. `done` are the calls that were answered, in order, with their answers; `open` is the one that was not, and `told` what
    came of it; `in_time`: it began before the kill."""

    def __init__(self, client, dice, sessions, prefix, killed, reserve_copies=False):
        super().__init__()
        self.client, self.dice, self.sessions, self.prefix, self.killed = client, dice, sessions, prefix, killed
        self.reserve_copies = reserve_copies  # of branches: no page is missing in the midst of a call
        self.done, self.open, self.in_time, self.told, self.failed = [], None, False, [], None

    def run(self):
        try:
            while True:
                for method, request in self.pick():
                    self.open, self.in_time, self.told = (method, request), not self.killed.is_set(), []
                    try:
                        answer = made(self.client, method, request, self.told)
                    except grpc.RpcError as error:
                        if not has_no_room(error) or self.told:
                            raise
                        self.open = None
                        break
                    self.done.append((method, request, answer))
                    self.open = None
                    self.heed(method, request)
        except Exception as error:  # looked at by who started the thread
            self.failed = None if self.killed.is_set() and self.was_cut(error) else error

    @staticmethod
    def was_cut(error):
        """The connection broke; the server itself would have given details."""
        return has_ended(error) and not any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ())

    def heed(self, method, request):
        if method in ("CreateSession", "ForkSession"):
            self.sessions.append(f"sessions/{request.session_id}")
        if method == "DeleteSession":
            self.sessions.remove(request.name)

    def tokens(self, most):
        return inference.Tokens(ids=[self.dice.randrange(1, VOCABULARY) for _ in range(self.dice.randint(1, most))])

    def pick(self):
        dice = self.dice
        new_id = f"{self.prefix}-{dice.getrandbits(40):x}"
        if not self.sessions or len(self.sessions) < 3 and dice.random() < 0.1:
            spec = policy_of(dice.choice(["streaming", "h2o", "tova"]), dice.randint(48, 96))
            name = f"sessions/{new_id}"
            prompt = inference.Tokens(ids=dice.choice(BEGINNINGS) + list(self.tokens(60).ids))
            return [("CreateSession", session.CreateSessionRequest(session_id=new_id, policy=spec, block_size=16)),
                    ("Prefill", inference.PrefillRequest(session=name, prompt=inference.Prompt(tokens=prompt)))]
        name = dice.choice(self.sessions)
        now = self.client.get(name)
        if now.pending_draft_tokens:
            return [("Accept", inference.AcceptRequest(session=name, count=dice.randint(0, now.pending_draft_tokens)))]
        if now.tokens < 8:
            return [("Prefill", inference.PrefillRequest(session=name, prompt=inference.Prompt(tokens=self.tokens(60))))]
        kind = dice.choices(["decode", "look up", "prefill", "verify", "draft", "edit", "evict", "swap", "fork", "delete"],
                            [6, 2, 4, 2, 1, 2, 1, 1, 1, 0.5])[0]
        if kind in ("decode", "look up"):
            request = inference.DecodeRequest(session=name)
            request.stopping.max_tokens = dice.randint(1, 24)
            request.stopping.ignore_eos = True
            request.sampling.temperature = dice.choice([0, 0.8])
            request.sampling.seed = dice.getrandbits(32)
            request.speculation.ngram = kind == "look up"
            return [("Decode", request)]
        if kind == "prefill":
            return [("Prefill", inference.PrefillRequest(session=name, prompt=inference.Prompt(tokens=self.tokens(60))))]
        if kind in ("verify", "draft"):
            mode = inference.VERIFY_MODE_AUTO if kind == "verify" else inference.VERIFY_MODE_MANUAL
            return [("Verify", inference.VerifyRequest(session=name, draft_tokens=self.tokens(4).ids, mode=mode))]
        if kind == "edit":
            start = dice.randrange(int(now.tokens) - 6)
            end = min(start + dice.randint(0, 3), int(now.tokens) - 1)
            mode = dice.choice([inference.EDIT_MODE_RECOMPUTE_TAIL, inference.EDIT_MODE_REPOSITION, inference.EDIT_MODE_RECOMPUTE_SPAN])
            return [("Edit", inference.EditRequest(session=name, mode=mode,
                                                   spans=[inference.EditSpan(start=start, end=end, tokens=self.tokens(4))]))]
        if kind == "evict":
            return [("Evict", eviction.EvictRequest(session=name, keep=eviction.KeepTokens(count=dice.randint(40, 60))))]
        if kind == "swap":
            return [("SetPolicy", eviction.SetPolicyRequest(session=name, policy=policy_of(dice.choice(["streaming", "tova"]),
                                                                                          dice.randint(48, 96))))]
        if kind == "fork" and len(self.sessions) < 4:
            return [("ForkSession", session.ForkSessionRequest(session=name, session_id=new_id, reserve_copies=self.reserve_copies))]
        if kind == "delete" and len(self.sessions) > 1:
            return [("DeleteSession", session.DeleteSessionRequest(name=name))]
        return []


class Crash:
    def __init__(self, seed, durability, swaps=False):
        self.seed, self.durability, self.swaps = seed, durability, swaps
        self.store = tempfile.TemporaryDirectory()
        self.sessions = [[] for _ in range(CLIENTS)]
        self.calls = self.cut = self.found = self.unlike = 0
        self.swapped = self.torn = 0  # ways out and in; kills in the midst of a write of one

    def server(self):
        memory = (f"--cache.arena={ARENA_OF_FEW}", "--cache.swap_max=1GiB") if self.swaps else ("--cache.arena=64MiB",)
        return Server(f"--store.dir={self.store.name}", f"--store.durability={self.durability}", "--store.snapshot_every=96",
                      *memory, "--model.threads=1")

    def run(self, rounds):
        with Server("--cache.arena=64MiB", "--model.threads=1") as undisturbed, Client(undisturbed) as self.calm:
            for number in range(rounds):
                self.round(number)
            self.tidy()
        print(f"{rounds} rounds of {self.durability}{', swapping' if self.swaps else ''}: {self.calls} calls answered; {self.cut} cut by the kill, of "
              f"which {self.found} had done something; {self.unlike} sessions dropped whose last call was half done" +
              (f"; {self.swapped} times out or in, {self.torn} kills while one was written" if self.swaps else ""))

    def round(self, number):
        dice = random.Random(f"{self.seed} {self.durability} {number}")
        with self.server() as server, Client(server) as client:
            killed = threading.Event()
            loads = [Load(client, random.Random(dice.random()), sessions, f"c{i}", killed, self.swaps)
                     for i, sessions in enumerate(self.sessions)]
            for load in loads:
                load.start()
            time.sleep(dice.uniform(*SECONDS))
            self.swapped += self.ways(client)
            killed.set()
            server.process.kill()
            for load in loads:
                load.join()
            self.torn += len(list(pathlib.Path(self.store.name).glob("swap/.*.new")))
        with self.server() as server, Client(server) as client:
            for load in loads:
                if load.failed:
                    raise AssertionError(f"round {number}: {load.failed}") from load.failed
                self.cut += load.open is not None and load.in_time
                self.compare(number, client, load)
            assert client.metric('ebb_recovered_sessions_total{result="set_aside"}') == 0
            leaked = client.metric("ebb_kv_pages_limit") - sum(client.metric(f'ebb_kv_pages{{state="{state}"}}') for state in ("free", "owned"))
            assert leaked == 0, f"round {number}: {leaked} pages leaked"

    def ways(self, client):
        return int(sum(client.metric(f'ebb_swaps_total{{direction="{way}"}}') for way in ("out", "in"))) if self.swaps else 0

    def compare(self, number, client, load):
        for method, request, answer in load.done:
            self.calls += 1
            calm = made(self.calm, method, request)
            assert calm == answer, f"round {number}: {method} {request}\nwas answered {answer}\nand undisturbed {calm}"
        if load.open:
            self.settle(client, load, *load.open)
        for name in list(load.sessions):
            now, calm = client.get(name), self.calm.get(name)
            assert now, f"round {number}: {name} is gone"
            what = (number, name, load.done[-3:], load.open)
            assert (now.tokens, now.generation, now.pending_draft_tokens) == (calm.tokens, calm.generation, calm.pending_draft_tokens), what
            assert client.cache(name) == self.calm.cache(name), what
            if now.tokens and not now.pending_draft_tokens:
                decode = inference.DecodeRequest(session=name)
                decode.stopping.max_tokens = 4
                decode.stopping.ignore_eos = True
                assert made(client, "Decode", decode) == made(self.calm, "Decode", decode), what

    def settle(self, client, load, method, request):
        """The call that was not answered: as far as it was done, the undisturbed server does it, too."""
        if method in ("CreateSession", "ForkSession"):
            if client.get(f"sessions/{request.session_id}"):
                self.found += 1
                made(self.calm, method, request)
                load.heed(method, request)
            return
        name = request.name if method == "DeleteSession" else request.session
        now, calm = client.get(name), self.calm.get(name)
        if method == "DeleteSession":
            if not now:
                self.found += 1
                made(self.calm, method, request)
                load.heed(method, request)
            return
        assert now.generation in (calm.generation, calm.generation + 1), (now, calm, method)
        if now.generation == calm.generation:
            assert not load.told, f"{name} has nothing of {load.told}"
            return
        self.found += 1
        more = now.tokens - calm.tokens
        if method == "Decode":
            assert more >= len(load.told), f"{name} has {more} tokens of {load.told}"
            request.stopping.max_tokens = more
        if method == "Prefill":
            del request.prompt.tokens.ids[more:]
        calm_answer = made(self.calm, method, request)
        if method == "Decode":
            assert calm_answer[:len(load.told)] == load.told, (calm_answer, load.told)
        calm = self.calm.get(name)
        if (calm.tokens, calm.pending_draft_tokens) != (now.tokens, now.pending_draft_tokens):
            assert method == "Verify", (now, calm, method)  # between its verdict and its next token: no other call leaves that
            self.unlike += 1
            for of in (client, self.calm):
                of.DeleteSession(session.DeleteSessionRequest(name=name))
            load.sessions.remove(name)

    def tidy(self):
        with self.server() as server, Client(server) as client:
            for name in sum(self.sessions, []):
                client.DeleteSession(session.DeleteSessionRequest(name=name))
            assert client.metric('ebb_kv_pages{state="owned"}') == 0
            left = [path for path in pathlib.Path(self.store.name, "journals").rglob("*") if path.is_file()]
            assert not left, f"files of sessions that are gone: {left}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    crashes = [Crash(options.seed, "step"), Crash(options.seed, "sync"), Crash(options.seed, "step", swaps=True)]
    quarter = options.rounds // 4
    for crash, rounds in zip(crashes, (options.rounds - 2 * quarter, quarter, quarter)):
        crash.run(rounds)
    calls, cut, found = (sum(getattr(crash, count) for crash in crashes) for count in ("calls", "cut", "found"))
    assert quarter == 0 or crashes[2].swapped > 0, "nobody was swapped"
    assert calls > options.rounds and cut > 0 and found > 0, f"too little to tell: {calls} calls, {cut} cut, {found} done and not answered"


if __name__ == "__main__":
    main()
