#!/usr/bin/env python3
"""How long others wait for their next token while a port is abused. Somebody reads an answer without end; beside it each attack of attacks.py is
made, over and over, by a process of its own, and then a process computes for nothing, as much as the attacker did: what remains of the attack's
ratio above that one's is the server's own. Nothing here passes or fails.

    make abuse                                                      the built-in model, against a build with AddressSanitizer
    /usr/bin/python3 tests/e2e/abuse_latency.py --model perf.gguf   one whose step takes longer, against build/bin
"""
import argparse
import collections
import contextlib
import multiprocessing
import os
import pathlib
import statistics
import struct
import tempfile
import threading
import time

import attacks
import binaries
from binaries import Server
import haproxy
from http2 import ACK, Connection, DATA, PING, WINDOW_UPDATE, frame
from patience import eventually
from ebb.v1 import inference_pb2 as inference

# What the witness heard, in seconds, how often it was cut off, the cores that the process beside it and the server used meanwhile, and the server's
# memory afterwards, in bytes.
Heard = collections.namedtuple("Heard", "p50 p99 cut other server resident")
TICKS = os.sysconf("SC_CLK_TCK")
WITNESS = "127.0.0.2"  # where it connects from: a proxy bounds what an address may do
PAUSE = 0.5  # seconds, for what an attack has left behind


def used(pid):
    """Seconds of CPU."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def keep_to(cores):
    if cores:
        os.sched_setaffinity(0, cores)


class Listener(threading.Thread):
    """Reads an answer without end, and begins it again where it is cut off; `gaps` are the seconds between its messages."""

    def __init__(self, addr):
        super().__init__(daemon=True)
        self.addr, self.gaps, self.cut, self.last = addr, [], 0, time.monotonic()
        self.request = inference.GenerateRequest(prompt=attacks.TEXT, policy=attacks.SMALL, block_size=8, stopping=attacks.ENDLESS)
        self.start()

    def run(self):
        while True:
            with contextlib.suppress(OSError):
                self.listen()
            self.cut += 1
            time.sleep(0.01)

    def listen(self):
        with Connection(self.addr, source=WITNESS) as connection:
            connection.call(1, "InferenceService/Generate", self.request)
            for kind, flags, _, payload in connection.frames():
                if kind == PING and not flags & ACK:
                    connection.send(frame(PING, ACK, 0, payload))
                if kind != DATA:
                    continue
                now = time.monotonic()
                self.gaps.append(now - self.last)
                self.last = now
                granted = struct.pack(">I", len(payload))
                connection.send(frame(WINDOW_UPDATE, 0, 0, granted), frame(WINDOW_UPDATE, 0, 1, granted))

    def tell(self):
        """p50 and p99 since the last call, what is waited for just now among them, and how often the answer was cut off."""
        gaps, self.gaps = self.gaps, []
        gaps = sorted([*gaps, time.monotonic() - self.last])
        cut, self.cut = self.cut, 0
        return gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100], cut


def listen(addr, pipe, cores):
    keep_to(cores)
    listener = Listener(addr)
    while pipe.recv():
        pipe.send(listener.tell())


def attack(name, addr, pipe, cores):
    keep_to(cores)
    pipe.send("ready")
    while True:
        with contextlib.suppress(OSError, attacks.grpc.RpcError):
            getattr(attacks, name)(addr)


def compute(share, pipe, cores):
    """For this share of the time, a few milliseconds on end."""
    keep_to(cores)
    pipe.send("ready")
    begin, before = time.monotonic(), time.process_time()
    while True:
        if time.process_time() - before > share * (time.monotonic() - begin):
            time.sleep(0.002)


class Phases:
    """What the witness hears while something else goes on, for `seconds` each time, from `after` seconds after it began."""

    def __init__(self, server, addr, pids, seconds, after, apart):
        self.server, self.pids, self.seconds, self.after = server, pids, seconds, after
        cores = sorted(os.sched_getaffinity(0))
        self.others = {cores[-1]} if apart else None
        self.client = attacks.Client(server.addr)
        self.context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
        self.pipe, end = self.context.Pipe()
        self.witness = self.context.Process(target=listen, args=(addr, end, self.others), daemon=True)
        self.witness.start()
        eventually(lambda: self.client.running() == 1, "the witness does not begin")

    def beside(self, target, *args):
        eventually(lambda: self.client.running() <= 1, "what was begun before does not end")
        mine, theirs = self.context.Pipe()
        other = self.context.Process(target=target, args=(*args, theirs, self.others), daemon=True)
        other.start()
        mine.recv()
        time.sleep(self.after)
        self.ask()
        begin, before = time.monotonic(), self.used(other.pid)
        time.sleep(self.seconds)
        told = self.ask()
        assert other.is_alive(), "what was to go on beside it ended by itself"
        took = time.monotonic() - begin
        shares = [(after - was) / took for after, was in zip(self.used(other.pid), before)]
        other.kill()
        other.join()
        time.sleep(PAUSE)
        return Heard(*told, *shares, self.server.resident())

    def used(self, other):
        return used(other), sum(map(used, self.pids))

    def ask(self):
        self.pipe.send(True)
        return self.pipe.recv()


def rounds_of(phases, name, addr, rounds):
    """Of each round what was heard alone, during the attack, and beside as much computing."""
    for _ in range(rounds):
        alone = phases.beside(compute, 0)
        during = phases.beside(attack, name, addr)
        yield alone, during, phases.beside(compute, during.other)


def row(seen):
    seen = list(seen)

    def median(of):
        return statistics.median(of(*each) for each in seen)
    cells = (f"{1e3 * median(lambda alone, during, computing: alone.p99):.1f}",
             f"{1e3 * median(lambda alone, during, computing: during.p99):.1f}",
             f"{median(lambda alone, during, computing: during.p99 / alone.p99):.1f}",
             f"{median(lambda alone, during, computing: during.p50 / alone.p50):.1f}",
             f"{median(lambda alone, during, computing: computing.p99 / alone.p99):.1f}",
             f"{median(lambda alone, during, computing: computing.p50 / alone.p50):.1f}",
             str(sum(during.cut for _, during, _ in seen)),
             f"{median(lambda alone, during, computing: during.other):.2f}",
             f"{median(lambda alone, during, computing: during.server):.2f}",
             f"{max(during.resident for _, during, _ in seen) / 2**20:.0f}")
    return " | ".join(cells)


@contextlib.contextmanager
def port_of(server, proxied, under):
    """Where clients connect to, and whose time that takes. `under`: what starts the proxy."""
    if not proxied:
        yield server.addr, [server.process.pid]
        return
    with tempfile.TemporaryDirectory() as folder, haproxy.Proxy(folder, None, [server, server], under) as proxy:
        yield f"127.0.0.1:{proxy.port}", [server.process.pid, proxy.process.pid]


def measure(names, model, seconds, after, rounds, apart, proxied, settings):
    binaries.MODEL = model
    cores = sorted(os.sched_getaffinity(0))
    under, beside = [("taskset", "-c", ",".join(map(str, some))) if apart else () for some in (cores[:-1], cores[-1:])]
    threads = [f"--model.threads={len(cores) - 1}"] if apart else []
    with Server("--cache.arena=256MiB", "--store.durability=off", *threads, *(f"--{each}" for each in settings), under=under, chatty=True) as server:
        with port_of(server, proxied, beside) as (addr, pids):
            phases = Phases(server, addr, pids, seconds, after, apart)
            print(f"time between two messages of an answer; medians of {rounds} rounds of {seconds:g} s\n\n"
                  "| beside it | p99 alone, ms | p99 during, ms | times | median, times | computing instead: p99, times | median, times | cut off | its cores | "
                  "the server's | its memory after, MiB |\n|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
            for name in names:
                print(f"| {name.replace('_', ' ')} | {row(rounds_of(phases, name, addr, rounds))} |", flush=True)
            phases.witness.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=pathlib.Path, default=binaries.MODEL)
    parser.add_argument("--seconds", type=float, default=3, help="of a phase; each round has three")
    parser.add_argument("--after", type=float, default=0, help="seconds that it has gone on already when a phase begins")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--apart", action="store_true", help="the last core is the attacker's, the witness's and the proxy's, the others are the server's")
    parser.add_argument("--proxied", action="store_true", help="attacker and witness come through HAProxy as deploy/haproxy configures it, without TLS")
    names = [each.__name__ for each in (*attacks.ORDERLY, *attacks.ATTACKS)]
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the server's configuration")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"none: all of {', '.join(names)}")
    told = parser.parse_args()
    if unknown := set(told.attacks) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    measure(told.attacks or names, told.model, told.seconds, told.after, told.rounds, told.apart, told.proxied, told.set)
