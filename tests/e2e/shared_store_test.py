#!/usr/bin/env python3
"""Two servers that share their sessions in a Redis, and one that nobody disturbs. Over and over, in the midst of a random load, one of
the two is killed, paused for longer than its lease, or drained, or Redis is killed and started again; then every session is compared
with the undisturbed one, wherever it is served by now. At the end Redis' own history shows that no two servers wrote to a session at
once.

    tests/e2e/shared_store_test.py                        one round of each kind
    tests/e2e/shared_store_test.py --rounds 40 --seed 17  prints the seed that it ran with

What was answered must be there; a call that was not answered may have been done or not, or its tokens in part (crash_test.py). Needs
Debian's redis-server, python3-grpcio and protoc."""
import argparse
import contextlib
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time

import crash_test
from crash_test import Client, Load, has_ended, inference, made, session
from binaries import Server

import grpc

LEASE = 1.0  # seconds
PATIENCE = 60  # seconds until a session that has to move has moved
KINDS = ("kill", "pause", "drain", "redis")
HISTORY_MAX = 100_000  # entries that Redis keeps


def free_port():
    """One that is free now, and that the system gives nobody who asks for any: a Redis that was killed comes back to its own."""
    while True:
        port = random.SystemRandom().randint(20000, 32000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Redis:
    """Debian's redis-server on a free port, which syncs before it acknowledges; use it in a with statement."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.port = free_port()
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
        self.folder.cleanup()

    def start(self):
        self.process = subprocess.Popen(["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--dir", self.folder.name,
                                         "--save", "", "--appendonly", "yes", "--appendfsync", "always"],
                                        stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if "Ready to accept connections" in line:
                return
        raise AssertionError("redis-server ended before it was ready")

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def ask(self, *words):
        return subprocess.run(["redis-cli", "-p", str(self.port), *words], capture_output=True, text=True, check=True).stdout.splitlines()


class PatientClient(Client):
    """Of sessions that may be on their way: as a client does that heeds RetryInfo."""

    def patiently(self, ask):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return ask()
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def get(self, name):
        return self.patiently(lambda: super(PatientClient, self).get(name))

    def cache(self, name):
        return self.patiently(lambda: super(PatientClient, self).cache(name))


class StoppingLoad(Load):
    """Ends between two calls, too, once it is told."""

    def pick(self):
        if self.killed.is_set():
            raise Stopped
        return super().pick()

    @staticmethod
    def was_cut(error):
        return has_ended(error)  # who drains, or was paused, says so

    def heed(self, method, request):  # what a paused server did before may be known by the time it says so
        name = request.name if method == "DeleteSession" else f"sessions/{getattr(request, 'session_id', '')}"
        if method in ("CreateSession", "ForkSession") and name in self.sessions or method == "DeleteSession" and name not in self.sessions:
            return
        super().heed(method, request)


class Stopped(Exception):
    pass


class Shared(crash_test.Crash):
    def __init__(self, seed):
        super().__init__(seed, "step")
        self.channels = contextlib.ExitStack()
        self.sessions = [[] for _ in range(2)]  # at home; a third client's at the other server last for a round
        self.done = {kind: 0 for kind in KINDS}
        # Of Redis' history: the entry looked at last, how many there were, who wrote in an epoch, where each session's writing ended, and
        # how often one changed hands.
        self.checked, self.writes, self.owners, self.last, self.takes = None, 0, {}, {}, 0

    def client(self, server, kind=Client):
        return self.channels.enter_context(kind(server))

    def server(self):
        return Server(f"--store.redis=127.0.0.1:{self.redis.port}", "--store.durability=step", "--store.snapshot_every=96",
                      f"--store.lease={int(LEASE * 1000)}ms", "--server.drain_timeout=100ms", "--cache.arena=64MiB", "--model.threads=1")

    def run(self, rounds):
        with Redis() as self.redis, Server("--cache.arena=64MiB", "--model.threads=1") as undisturbed, self.channels:
            self.calm = self.client(undisturbed)
            self.home, self.other = self.server().__enter__(), self.server().__enter__()
            try:
                for number in range(rounds):
                    self.round(number)
                    self.check_history()
                assert self.takes > 0
                print(f"{self.writes} writes to {len(self.last)} sessions, which changed hands {self.takes} times")
                for name in sum(self.sessions, []):
                    self.client(self.home).DeleteSession(session.DeleteSessionRequest(name=name))
                assert self.redis.ask("KEYS", "ebb:session:*") == [""], "keys of sessions that are gone"
            finally:
                for server in filter(None, (self.home, self.other)):
                    if server.process.poll() is None:
                        server.process.send_signal(signal.SIGCONT)  # where a test failed in the midst of a pause
                    server.__exit__()
        print(f"{rounds} rounds {self.done}, {self.calls} calls answered, {self.unlike} sessions dropped whose last call was half done")

    def round(self, number):
        dice = random.Random(f"{self.seed} {number}")
        kind = KINDS[number % len(KINDS)]
        self.done[kind] += 1
        stop = threading.Event()
        guests = []
        loads = [StoppingLoad(self.client(self.home), random.Random(dice.random()), sessions, f"r{number}c{i}", stop)
                 for i, sessions in enumerate(self.sessions)]
        bystander = StoppingLoad(self.client(self.other), random.Random(dice.random()), guests, f"r{number}b", stop)
        for load in (*loads, bystander):
            load.start()
        time.sleep(dice.uniform(*crash_test.SECONDS))
        {"kill": self.kill, "pause": self.pause, "drain": self.drain, "redis": self.restart_redis}[kind](number, loads, stop, dice)
        bystander.join()
        for load in (*loads, bystander):
            if load.failed and not isinstance(load.failed, Stopped):
                raise AssertionError(f"round {number}, {kind}: {load.failed}")
        assert not bystander.open, f"round {number}, {kind}: {bystander.open} was not answered, and nobody disturbed its server"
        if kind != "pause":  # which compares while it lasts
            for load in loads:
                self.compare(number, self.client(self.home, PatientClient), load)  # where the sessions are by now
        beside = self.client(self.other if kind == "redis" else self.home, PatientClient)
        self.compare(number, beside, bystander)
        for of in (beside, self.calm):
            for name in guests:
                of.DeleteSession(session.DeleteSessionRequest(name=name))
        self.other = self.other or self.server().__enter__()

    def renew(self, ended):
        """The other is at home now. Another takes its place after the round: it would take sessions as it starts."""
        ended.__exit__()
        self.home, self.other = self.other, None

    def kill(self, number, loads, stop, dice):
        stop.set()
        self.home.process.kill()
        for load in loads:
            load.join()
        self.renew(self.home)

    def drain(self, number, loads, stop, dice):
        stop.set()
        self.home.process.send_signal(signal.SIGTERM)
        for load in loads:
            load.join()
        self.home.process.stderr.read()  # its log, to the end
        assert self.home.process.wait(timeout=60) == 0
        self.renew(self.home)

    def pause(self, number, loads, stop, dice):
        """The other takes the sessions and writes to them; then the paused one wakes, in the midst of its calls."""
        paused = self.home
        stop.set()
        paused.process.send_signal(signal.SIGSTOP)
        client = self.client(self.other, PatientClient)
        for name in sum((load.sessions for load in loads), []):
            client.get(name)  # waits for the lease to end
        for load in loads:
            self.compare(number, client, load)
        before = {name: client.cache(name) for load in loads for name in load.sessions}
        told = [list(load.told) for load in loads]
        paused.process.send_signal(signal.SIGCONT)
        for load in loads:
            known = list(load.sessions)
            load.join()
            for name in set(load.sessions) - set(known):  # of a call that did not need what the other has
                self.client(paused, PatientClient).DeleteSession(session.DeleteSessionRequest(name=name))
                load.sessions.remove(name)
        for load, so_far in zip(loads, told):  # what it was about to say it may say, but nothing that it had yet to write
            more = load.told[len(so_far):]
            if more and load.open and load.open[0] == "Decode":
                kept = self.log_of(client, load.open[1].session)
                assert self.within(load.told, kept), f"round {number}: the paused server told {more}, which nobody wrote"
        for name, cache in before.items():
            try:
                self.client(paused).GetSession(session.GetSessionRequest(name=name))
                raise AssertionError(f"round {number}: the paused server still answers for {name}")
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE and self.other.addr in error.details(), error
            assert client.cache(name) == cache, f"round {number}: {name} changed when the paused server woke"
        self.home, self.other = self.other, self.home

    @staticmethod
    def log_of(client, name):
        decode = inference.DecodeRequest(session=name, resume_from=0)
        decode.stopping.max_tokens = int(client.get(name).tokens)
        decode.stopping.ignore_eos = True
        return made(client, "Decode", decode)

    @staticmethod
    def within(part, whole):
        return any(whole[at:at + len(part)] == part for at in range(len(whole) - len(part) + 1))

    def restart_redis(self, number, loads, stop, dice):
        """Writes wait for it, and nobody is told more than that."""
        self.redis.kill()
        time.sleep(dice.uniform(0, 0.3))
        self.redis.start()
        time.sleep(dice.uniform(*crash_test.SECONDS))
        stop.set()
        for load in loads:
            load.join()
            assert not load.open, f"round {number}: {load.open} was not answered: {load.failed}"

    def check_history(self):
        """What was written since it was last asked: Redis keeps the newest entries alone."""
        words = self.redis.ask("XRANGE", "ebb:history", f"({self.checked}" if self.checked else "-", "+")
        entries = [(words[at], words[at + 1:at + 13]) for at in range(0, len(words), 13)]
        assert len(entries) < HISTORY_MAX, len(entries)
        for self.checked, entry in entries:
            self.writes += 1
            field = dict(zip(entry[::2], entry[1::2]))
            name, epoch = field["session"], int(field["epoch"])
            number, at, size = (int(field[key]) for key in ("journal", "at", "bytes"))
            owner = self.owners.setdefault((name, epoch), field["server"])
            assert owner == field["server"], f"{name} was written by {owner} and {field['server']} in epoch {epoch}"
            if name in self.last:
                before, journal, end = self.last[name]
                assert epoch >= before, f"{name} was written in epoch {epoch} after {before}"
                assert (number, at) in ((journal, end), (journal + 1, 0)), f"{name}: {field} does not follow byte {end} of journal {journal}"
                self.takes += epoch > before
            self.last[name] = (epoch, number, at + size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=len(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    Shared(options.seed).run(options.rounds)


if __name__ == "__main__":
    main()
