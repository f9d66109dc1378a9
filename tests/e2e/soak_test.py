#!/usr/bin/env python3
"""A server under 200 streams of 20 tenants, half of whom have three times the weight of the others: nobody is refused, each has its share, and
afterwards the server is no larger than before.

    make soak                                  ten minutes
    tests/e2e/soak_test.py                     one, as in CI; EBB_SOAK_LOAD names the program that makes the load
"""
import argparse
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request

from binaries import Server
from patience import PATIENCE, eventually

TENANTS, STREAMS, HEAVY = 20, 10, 3
# A weight of 3 brings 3 times the tokens while all have something to run. Between two answers a stream has nothing, which costs the heavy
# more, since their answers come faster: above all on a machine that others use, too.
SHARE = (0.75 * HEAVY, 1.1 * HEAVY)
SHARE_LONG = (0.95 * HEAVY, 1.05 * HEAVY)
EVEN = 1.5  # the most that one of a weight has, to the least: answers differ in length
GROWTH = 0.02  # of the resident memory, from the second quarter of the run to the last
SHORT = 60  # seconds, in which buffers still fill
LONG = 600  # seconds, from which on times count: a shorter run may share its machine
LATE = 3  # of a tenant's gaps between messages, the most that p99 is to the median


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def metrics(server):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{server.http}/metrics", timeout=PATIENCE) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {series: float(value) for series, value in (line.rsplit(" ", 1) for line in lines)}


def mean(values):
    return sum(values) / len(values)


class Samples(threading.Thread):
    """Of the process, ten times a second, or 400 over the run where that is less."""

    def __init__(self, server, seconds):
        super().__init__(daemon=True)
        self.server, self.pause, self.ends, self.bytes = server, max(0.1, seconds / 400), threading.Event(), []

    def run(self):
        while not self.ends.wait(self.pause):
            self.bytes.append(self.server.resident())


def soak(seconds):
    weights = [f"--tenants.t{index:02}.weight={HEAVY if index % 2 else 1}" for index in range(TENANTS)]
    with Server("--cache.arena=256MiB", *weights, chatty=True) as server:
        pid = server.process.pid
        run = [os.environ.get("EBB_SOAK_LOAD", "build/release/tests/e2e/soak_load"), server.addr, str(TENANTS), str(STREAMS)]
        open_before = server.open_files()
        subprocess.run([*run, str(min(seconds / 4, 10))], check=True, capture_output=True, timeout=PATIENCE)  # buffers and pools fill
        before = threads(pid)
        samples = Samples(server, seconds)
        samples.start()
        done = subprocess.run([*run, str(seconds)], check=True, capture_output=True, text=True, timeout=seconds + PATIENCE)
        samples.ends.set()
        samples.join()
        idle = lambda: not any(value for series, value in metrics(server).items() if re.match("ebb_(requests_running|queue_depth|sessions)", series))  # noqa: E731
        eventually(idle, "something still runs")
        after = metrics(server)
        told = json.loads(done.stdout)
        light, heavy = told["tokens"][0::2], told["tokens"][1::2]
        quarter = len(samples.bytes) // 4
        early, final = mean(samples.bytes[quarter:2 * quarter]), mean(samples.bytes[-quarter:])
        late = [p99 / p50 for p50, p99 in told["gaps_ms"] if p50 > 0] or [0]
        kinds = {"a light": told["gaps_ms"][0::2], "a heavy": told["gaps_ms"][1::2]}
        gaps = ", ".join(f"{kind} tenant's messages are {mean([p50 for p50, _ in each]):.1f} ms apart at the median, "
                         f"{mean([p99 for _, p99 in each]):.1f} at p99" for kind, each in kinds.items())
        print(f"{sum(told['tokens']) / (0.9 * seconds):.0f} tokens/s in {told['answers']} answers; a heavy tenant had {mean(heavy) / mean(light):.2f} "
              f"times a light one's tokens; {gaps}, {max(late):.1f} times the median at most; "
              f"resident {early / 2**20:.1f} MiB in the second quarter, {final / 2**20:.1f} in the last")

        assert not told["failures"], told["failures"]
        assert not any(value for series, value in after.items() if series.startswith(("ebb_errors_total", "ebb_refusals_total"))), after
        if seconds >= SHORT:  # a slow machine gives each tenant a handful of answers in less
            assert SHARE[0] <= mean(heavy) / mean(light) <= SHARE[1], told["tokens"]
            for each in (light, heavy):
                assert max(each) <= EVEN * min(each), told["tokens"]
            assert final <= early * (1 + GROWTH), samples.bytes
        else:
            assert mean(heavy) > mean(light), told["tokens"]
        if seconds >= LONG:
            assert SHARE_LONG[0] <= mean(heavy) / mean(light) <= SHARE_LONG[1], told["tokens"]
            assert max(late) <= LATE, told["gaps_ms"]
        assert after["ebb_kv_pages_limit"] == sum(after[f'ebb_kv_pages{{state="{state}"}}'] for state in ("free", "owned")), "pages leaked"
        # gRPC opens a few for its threads with the first call, and keeps them.
        eventually(lambda: server.open_files() <= open_before + 8, lambda: f"{server.open_files()} files are open, {open_before} were before")
        eventually(lambda: threads(pid) <= before + 16, lambda: f"{threads(pid)} threads, {before} were before")
        server.process.terminate()
        assert server.process.wait(timeout=PATIENCE) == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    soak(parser.parse_args().seconds)
    sys.exit(0)
