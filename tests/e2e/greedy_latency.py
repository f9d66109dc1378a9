#!/usr/bin/env python3
"""How much longer a tenant waits for its first token when another one asks for all that it can get: of equal weight, with endless answers on more
streams than a step has rows. Waits are told in steps of the loaded server, since that is what the scheduler promises: one more. Nothing here passes
or fails.

    /usr/bin/python3 tests/e2e/greedy_latency.py --model perf.gguf      one whose step takes some milliseconds, against build/bin
"""
import argparse
import contextlib
import pathlib
import threading
import time

import attacks
import binaries
from binaries import Server
import python_package  # noqa: F401  where the stubs are, for the imports that follow

import grpc
from ebb.v1 import admin_pb2 as admin, inference_pb2 as inference, sampling_pb2 as sampling


class Tenant(attacks.Client):
    def __init__(self, addr, name):
        super().__init__(addr)
        self.metadata = [("x-ebb-tenant", name)]

    def answer(self, stopping):
        return self.Generate(inference.GenerateRequest(prompt=attacks.TEXT, policy=attacks.SMALL, block_size=8, stopping=stopping), metadata=self.metadata)

    def first_token(self):
        """Seconds until it comes, of an answer of one token."""
        begin = time.monotonic()
        for message in self.answer(sampling.Stopping(max_tokens=1, ignore_eos=True)):
            if message.HasField("decode"):
                return time.monotonic() - begin
        raise AssertionError("an answer without a token")

    def steps(self):
        return self.GetStatus(admin.GetStatusRequest(), metadata=self.metadata).work.steps


def read(stream):
    with contextlib.suppress(grpc.RpcError):  # it is cancelled
        for _ in stream:
            pass


def waits(tenant, count):
    return sorted(tenant.first_token() for _ in range(count))


def measure(model, count, rows, endless):
    binaries.MODEL = model
    with Server(f"--scheduling.rows_max={rows}", "--cache.arena=512MiB", "--store.durability=off", "--tenants.meek.weight=1", "--tenants.greedy.weight=1", chatty=True) as server:
        meek, greedy = (Tenant(server.addr, name) for name in ("meek", "greedy"))
        waits(meek, 3)
        alone = waits(meek, count)
        streams = [greedy.answer(attacks.ENDLESS) for _ in range(endless)]
        readers = [threading.Thread(target=read, args=(stream,), daemon=True) for stream in streams]
        for reader in readers:
            reader.start()
        while greedy.running() < endless:
            time.sleep(0.01)
        time.sleep(2)  # their prompts
        begin, steps = time.monotonic(), greedy.steps()
        beside = waits(meek, count)
        step = (time.monotonic() - begin) / (greedy.steps() - steps)
        print(f"{rows} rows a step, {endless} endless streams of another tenant, {count} first tokens each; a loaded step takes {1e3 * step:.1f} ms\n\n"
              "| first token | p50, ms | p99, ms | p99, loaded steps |\n|---|---|---|---|")
        for name, told in (("alone", alone), ("beside", beside)):
            p50, p99 = told[len(told) // 2], told[len(told) * 99 // 100]
            print(f"| {name} | {1e3 * p50:.1f} | {1e3 * p99:.1f} | {p99 / step:.2f} |")
        for stream in streams:
            stream.cancel()
        for reader in readers:
            reader.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=pathlib.Path, default=binaries.MODEL)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--rows", type=int, default=16, help="of a step")
    parser.add_argument("--streams", type=int, default=32, help="of the tenant that asks for all")
    told = parser.parse_args()
    measure(told.model, told.count, told.rows, told.streams)
